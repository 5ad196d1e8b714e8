"""Performs runs in this process or on all cores. Killed runs can be resumed."""
