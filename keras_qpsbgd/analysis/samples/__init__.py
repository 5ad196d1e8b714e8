"""What the reads of a solver look like, and how good they are."""
