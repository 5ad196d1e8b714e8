"""The QUBOs of a training run, with any backend."""

import warnings

import numpy as np
from tensorflow import keras

from keras_qpsbgd import analysis
from keras_qpsbgd import backends
from keras_qpsbgd import optimizers


class Collector(backends.Backend):
    """Passes QUBOs on to another backend and keeps them with its answers.

    Args:
        backend: what solves them, as in `backends.get`.
    """

    def __init__(self, backend="exact"):
        super().__init__()
        self.backend = backends.get(backend)
        self.solved = []

    def sample(self, qubo, seed):
        solution = self.backend.solve(qubo, seed)
        self.solved.append((qubo.copy(), solution))
        samples = solution.samples
        return solution.states[None] if samples is None else samples, {}


def compiled(model, collector, learning_rate, gradient_scale="raw", **options):
    """Compiles a model so that the collector solves its QUBOs."""
    with warnings.catch_warnings():
        # "raw" is the paper's rule, which is what is looked at.
        warnings.filterwarnings("ignore", message=".*raw.*")
        optimizer = optimizers.QPSBGD(
            learning_rate,
            backend=collector,
            gradient_scale=gradient_scale,
            seed=0,
            **options,
        )
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def run_of(collector):
    """What was collected as a `Run`; a layer is named after its shape."""
    run = analysis.Run(complete=True)
    steps = {}
    for qubo, solution in collector.solved:
        layer = "{} x {}".format(*qubo.fields.shape)
        steps[layer] = steps.get(layer, -1) + 1
        # The optimizer holds columns without fields, inputs without couplings.
        moved = np.outer(qubo.couplings.any(axis=1), qubo.fields.any(axis=0))
        run.updates.append(
            analysis.Update(
                steps[layer],
                layer,
                qubo,
                (moved * solution.states).astype(np.int8),
                solution.samples,
                solution.sample_energies,
            )
        )
    return run
