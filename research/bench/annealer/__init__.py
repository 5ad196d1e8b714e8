"""Benchmarks of calls to a quantum annealer."""
