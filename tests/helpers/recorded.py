"""Recorded runs with random QUBOs, built by hand."""

import numpy as np

from keras_qpsbgd.analysis import run as runs
from keras_qpsbgd.analysis.run import Run
from keras_qpsbgd.analysis.run import Update
from keras_qpsbgd.qubo import Qubo


def make_update(rng, step, layer="hidden", n=6, m=3, reads=12):
    rows, v = rng.normal(size=(8, n)), rng.normal(size=(8, m))
    qubo = Qubo.from_rows(rows, v)
    samples = rng.choice([-1, 1], size=(reads, n, m)).astype(np.int8)
    energies = np.stack([qubo.energy(states) for states in samples])
    best = samples[energies.argmin(axis=0), :, np.arange(m)].T
    info = {
        "calls": 2,
        "retries": int(step == 3),
        "reads": reads,
        "qpu_access_time": 1500.0,
        "chain_break_fraction": [0.0, 0.25, 0.5][:m],
    }
    return Update(step, layer, qubo, best, samples, energies, info)


def make_run(num_updates=10, epochs=5, layers=("hidden", "output"), **sizes):
    rng = np.random.default_rng(0)
    run = Run(
        settings={
            "optimizer": {"name": "QPSBGD", "backend": {"name": "dwave"}},
            "versions": {"keras_qpsbgd": "1.2.3"},
        },
        complete=True,
    )
    for step in range(num_updates):
        for layer in layers:
            run.updates.append(make_update(rng, step, layer, **sizes))
    for epoch in range(epochs):
        run.epochs.append(
            {
                "loss": 1 / (epoch + 1),
                "val_loss": 1.2 / (epoch + 1),
                "accuracy": 1 - 0.5 / (epoch + 1),
                "solver_s": 0.1,
                "solver_calls": 8,
                "solver_retries": 1,
                "solver_failures": 3,
                "solver_fallbacks": 2,
                "solver_qpu_s": 0.5,
                "solver_chain_breaks": 0.03,
            }
        )
    return run


def save(run, path):
    """Writes a run to a file, as a recorder does."""
    with open(path, "wb") as file:
        file.write(runs.HEADER)
        runs.append(file, "settings", run.settings)
        for update in run.updates:
            runs.append_update(file, update)
        for logs in run.epochs:
            runs.append(file, "epoch", logs)
        if run.complete:
            runs.append(file, "end", {})
    return path
