"""Backends for D-Wave's annealers and hybrid solver."""
