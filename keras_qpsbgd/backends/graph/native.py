"""The default backend: exact for small layers, local search for others."""

import copy
import math
from typing import Any

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.graph import batches
from keras_qpsbgd.backends.graph import beam
from keras_qpsbgd.backends.graph import descent
from keras_qpsbgd.backends.graph import exact
from keras_qpsbgd.backends.graph import products
from keras_qpsbgd.backends.graph import search
from keras_qpsbgd.backends.graph.graph_backend import GraphBackend
from keras_qpsbgd.qubo import Qubo
from keras_qpsbgd.qubo import ops

ENUMERATE_UP_TO = 16
FAST = search.Effort(
    lanes=2, size=2**17, sweeps=16, min_sweeps=0, work=2**26, hot=0.5
)
# A single call of the preset `"once"` may take about a second. Its problems are
# large, and get too few sweeps to recover from a hotter start.
ONCE = search.Effort(
    lanes=16,
    size=2**14,
    sweeps=800,
    min_sweeps=30,
    work=2**33,
    hot=0.2,
    has_beam=True,
)
PRESETS = {"fast": FAST, "once": ONCE}
# The descent in float64 takes too long for layers with more weights.
DESCEND_UP_TO = 50_000


class NativeBackend(GraphBackend):
    """Solves in the training graph, without other packages, licenses or tokens.

    The method depends on the size of the layer:

    - Up to 16 inputs: exact, by enumeration (float32 in training, float64 in
      `solve`).
    - More inputs: sweeps that set each variable to the better of its values,
      until nothing changes. Several runs start close to the rounded ridge
      solution and add random numbers that become smaller, as in simulated
      annealing. The best result is used. `solve` then descends in float64.

    With the default rule of `QPSBGD`, the problems of consecutive updates are
    similar. Training then makes a single sweep from the states of the last
    update.

    Args:
        preset: String. `"fast"` or `"once"`. Use `"once"` for problems that are
            solved once, such as those of `kq.quantize`. With it, `solve` makes
            many more sweeps, and also a beam search for small layers. Training
            is the same with both presets. Defaults to `"fast"`.

    Raises:
        ValueError: If `preset` is unknown.

    Example:
        ```python
        backend = kq.backends.get({"name": "native", "preset": "once"})
        solution = backend.solve(qubo)
        ```
    """

    name = "native"
    warm_start = True

    def __init__(self, preset: str = "fast") -> None:
        if preset not in PRESETS:
            raise ValueError(
                f"`preset` must be one of {tuple(PRESETS)}. "
                f"Received: preset={preset!r}"
            )
        super().__init__()
        self.preset = preset
        # In training, all presets are the same.
        self._effort = FAST

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        if problem.fields.shape[0] <= ENUMERATE_UP_TO:
            return exact.enumerate_states(problem)
        return search.search(_rounded_on_gpu(problem), seed, self._effort)

    def _search_all(self, layers, seeds, is_warm):
        warm = [
            is_warm[i] and layer[0].fields.shape[0] > ENUMERATE_UP_TO
            for i, layer in enumerate(layers)
        ]
        swept = batches.in_batches(
            [layer for layer, sweeps in zip(layers, warm) if sweeps],
            _sweep,
            self._finished,
        )
        swept = iter(swept)
        return [
            next(swept)
            if sweeps
            else super(NativeBackend, self)._search_all(
                [layer], [seed], [False]
            )[0]
            for layer, seed, sweeps in zip(layers, seeds, warm)
        ]

    def sample(
        self, qubo: Qubo, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        if qubo.num_variables <= ENUMERATE_UP_TO:
            proven = np.ones(qubo.num_columns, bool)
            return exact.best_states(qubo)[None], {"proven_optimal": proven}
        solver = copy.copy(self)
        solver._effort = PRESETS[self.preset]
        samples, info = GraphBackend.sample(solver, qubo, seed)
        states = samples[0]
        found = beam.beam_search(qubo) if solver._effort.has_beam else None
        if found is not None:
            before, after = qubo.varying_energies([states, found])
            states = np.where(after < before, found, states)
        if math.prod(qubo.fields.shape) <= DESCEND_UP_TO:
            start = states if qubo.start is None else qubo.start
            states = descent.descend(qubo, states, start)
        return states[None], info

    def get_config(self) -> dict[str, Any]:
        return {"preset": self.preset}


def _sweep(stack, sizes):
    """Sweeps once over a stack of problems. See `in_batches`."""
    del sizes
    return search.warm_sweep(_rounded_on_gpu(stack))


def _rounded_on_gpu(problem):
    """Rounds couplings, so that products do not depend on the GPU."""
    if not products.on_gpu():
        return problem
    return problem._replace(couplings=products.rounded(problem.couplings))
