"""Reference runs for `test_equalities.py` and `test_replicas.py`."""

import numpy as np
import pytest
import tools

from keras_qpsbgd import recording


class Case:
    """Clear-cut data and the kernels after an eager `fit` on them.

    Args:
        inputs: Integer. Number of inputs of the first layer.
        seed: Integer. Seed of the data and the initial weights.
        backend: String. Name of a backend that solves in the graph.
        on_host: Class of a host backend that finds the same states.
        gap: Float. Minimum distance of all decisions from a tie.
    """

    def __init__(self, inputs, seed, backend, on_host, gap):
        self.inputs = inputs
        self.seed = seed
        self.backend = backend
        self.on_host = on_host
        self.x, self.y = tools.data(seed, inputs)
        solver = on_host()
        start = tools.kernels(self.model())
        opt = self.optimizer(backend=solver)
        self.expected = self.fit(opt, run_eagerly=True)
        assert solver.least > gap, solver.least
        assert solver.solved == 2 * tools.STEPS
        moved = [np.abs(a - b).max() for a, b in zip(self.expected, start)]
        assert min(moved) > 0.04

    @property
    def is_wide(self):
        return self.inputs > recording.WIDE

    def model(self):
        return tools.small_model(self.seed, self.inputs)

    def optimizer(self, **arguments):
        return tools.optimizer(**{"backend": self.backend, **arguments})

    def fit(self, opt, **arguments):
        return tools.fit(self.model(), opt, self.x, self.y, **arguments)


NARROW = (tools.INPUTS, tools.CLEAR_CUT["max"], "native", tools.GapBackend)
# Above `recording.WIDE`, the problem keeps rows instead of couplings.
WIDE = (300, 92, "sign", tools.SignBackend)


@pytest.fixture(scope="module", params=["narrow", "wide"])
def reference(request):
    if request.param == "narrow":
        return Case(*NARROW, gap=1e-3)
    wide = Case(*WIDE, gap=1e-4)
    assert wide.is_wide
    return wide


@pytest.fixture(scope="module")
def narrow():
    return Case(*NARROW, gap=1e-3)
