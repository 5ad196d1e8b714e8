"""Small problems for a QPU, and a page about the answers."""
