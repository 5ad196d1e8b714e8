"""Training with few solver calls: `python -m research few-solves`."""
