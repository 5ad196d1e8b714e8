"""Suites that measure the time of a step."""
