"""The hardware: cliques on the chip, and the ranges of its biases."""
