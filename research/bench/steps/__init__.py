"""Suites that time a step."""
