"""The experiments of the command line."""
