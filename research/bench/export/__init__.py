"""Sizes and outputs of exported files."""
