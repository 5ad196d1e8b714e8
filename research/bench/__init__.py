"""Benchmarks of speed and solver quality.

`python -m research bench` runs the benchmarks. `harness.py` lists the suites. A
suite is a module with

- a docstring that describes what is measured and how;
- `HELP`, a one-line summary;
- `measure(quick)`, which runs in a process with one thread;
- `blocks(result)`, the tables of the documentation by name.

`results/bench` has one record of each suite. `stored.py` reads them, and lists
the code that each suite measures.
"""
