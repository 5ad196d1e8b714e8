"""The search for GPUs. `search.py` describes it."""
