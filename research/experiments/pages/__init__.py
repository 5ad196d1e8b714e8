"""Pages, pictures and summaries of the results."""
