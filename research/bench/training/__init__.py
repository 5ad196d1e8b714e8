"""Suites that train networks."""
