"""Benchmarks: what a step costs, what it is worth, how it grows.

`python -m research bench` runs them, `suites.py` lists them. A suite is a
module with

- a docstring that says what is measured and how, and `HELP`, one line;
- `names()`, the rows and columns that `--only` takes;
- `THREADS`, the thread counts that it is measured with;
- `measure(options)`, run in a process of its own, whose threads are set;
- `table(results)`, `verdicts(results)` and `draw(results, path)`, for a
  dictionary from thread counts to what `measure` returned.
"""
