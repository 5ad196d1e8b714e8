"""Backends on the host, and how they are called."""
