"""The suite of solvers."""
