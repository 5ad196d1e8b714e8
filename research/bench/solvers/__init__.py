"""Benchmarks of solvers."""
