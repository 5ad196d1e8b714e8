"""Benchmarks of speed and solver quality.

`python -m research bench` runs the benchmarks. `harness.py` lists the suites. A
suite is a module with

- a docstring that describes what is measured and how;
- `HELP`, a one-line summary;
- `THREADS`, the thread counts to measure with;
- `names()`, the rows and columns that `--only` accepts;
- `measure(options)`, which runs in a separate process with a fixed number of
  threads;
- `table(results)`, where `results` maps thread counts to the values that
  `measure` returned;
- `blocks(result)`, the tables of the documentation by name.

`results/bench` has one record of each suite. `stored.py` reads them, and lists
the code that each suite measures.
"""
