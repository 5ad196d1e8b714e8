"""Experiments and benchmarks beside the library; not installed with it.

    python -m research reproduce    the paper's experiments, and their pages
    python -m research bench        speed, solvers, accuracy

Run from a clone, with the packages of the extra `research`.
"""
