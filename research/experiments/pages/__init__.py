"""What is said about it: the page of results and its pictures."""
