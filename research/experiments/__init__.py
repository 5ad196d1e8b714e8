"""Experiments that the command line runs."""
