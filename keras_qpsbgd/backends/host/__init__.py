"""Backends that run on the host, and the code that calls them."""
