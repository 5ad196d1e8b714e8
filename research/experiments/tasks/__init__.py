"""What is trained: the paper's networks and data."""
