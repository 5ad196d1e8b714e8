"""Backends that are traced into the training graph."""
