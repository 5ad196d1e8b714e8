"""Tests of how much of Spektral works."""
