"""Compares ways to train a binary network, all under the same protocol."""
