"""The default backend: exact for small layers, local search for others."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.graph import exact
from keras_qpsbgd.backends.graph import gpu_batches
from keras_qpsbgd.backends.graph import gpu_search
from keras_qpsbgd.backends.graph import local_search
from keras_qpsbgd.backends.graph import numpy_search
from keras_qpsbgd.backends.graph import products
from keras_qpsbgd.backends.graph import relaxed
from keras_qpsbgd.qubo import Qubo
from keras_qpsbgd.qubo import ops

PRESETS = ("fast", "once")
ENUMERATE_UP_TO = 16
# Layers with more weights than this are wide. One flip per step would take too
# long.
SWEEP_FROM = 50_000


class NativeBackend(gpu_batches.BatchedBackend):
    """Solves in the training graph, without other packages, licenses or tokens.

    The method depends on the size of the layer:

    - Up to 16 inputs: exact, by enumeration (float32 in training, float64 in
      `solve`).
    - More inputs: 1-opt descent from the rounded ridge solution, which is
      closer to the optimum than sign(-s) and costs one factorization.
    - Wide layers (more than 50,000 weights): a sweep from zero, or from the
      start of the problem if it has one.

    With the default rule of `QPSBGD`, the problems of consecutive updates are
    similar. Training then makes a single sweep from the states of the last
    update.

    Args:
        preset: String. One of `"fast"` (the methods above) and `"once"`, for
            problems that are solved once, such as those of `kq.quantize`. Its
            `solve` uses a beam search and simulated annealing in sweeps, which
            are also fast for wide layers. In training it is the same as
            `"fast"`. Defaults to `"fast"`.
        search: String. One of `"sequential"` (the methods above), `"parallel"`
            (above 16 inputs, flips many variables at once, in all layers
            together) and `"auto"`, which means `"parallel"` if TensorFlow finds
            a GPU, else `"sequential"`. The energies are about the same. On a
            GPU, sequential searches are slow, because they consist of thousands
            of small operations. On a CPU, the parallel search is slower.
            Defaults to `"auto"`.

    Example:
        ```python
        backend = kq.backends.get({"name": "native", "preset": "once"})
        solution = backend.solve(qubo)
        ```
    """

    name = "native"
    warm_start = True

    def __init__(self, preset: str = "fast", search: str = "auto") -> None:
        if preset in ("balanced", "accurate"):
            raise ValueError(
                f'`preset` "{preset}" was removed. Use "once" to solve a '
                'problem well, and the default "fast" to train. '
                f"Received: preset={preset!r}"
            )
        if preset not in PRESETS:
            raise ValueError(
                f"`preset` must be one of {PRESETS}. "
                f"Received: preset={preset!r}"
            )
        super().__init__(search)
        self.preset = preset

    def start(self, problem: ops.Problem) -> tf.Tensor | None:
        n = problem.fields.shape[0]
        if self.is_parallel():
            return None
        if n <= ENUMERATE_UP_TO or _is_wide(problem):
            return None
        return ops.sign(relaxed.ridge_solution(problem))

    def search(self, problem: ops.Problem, seed: tf.Tensor) -> tf.Tensor:
        if problem.fields.shape[0] <= ENUMERATE_UP_TO:
            return exact.enumerate_states(problem)
        if _is_wide(problem):
            return local_search.shuffled_sweep(problem, seed)
        return local_search.greedy(problem)

    def _search_all(self, layers, seeds, is_warm):
        if not self.is_parallel():
            return [
                self._sequential(*layer)
                for layer in zip(layers, seeds, is_warm)
            ]
        states: list = [None] * len(layers)
        swept, searched = [], []
        for i, problems in enumerate(layers):
            if problems[0].fields.shape[0] <= ENUMERATE_UP_TO:
                states[i] = [
                    self._finished(exact.enumerate_states(problem), problem)
                    for problem in problems
                ]
            elif is_warm[i]:
                swept.append(i)
            else:
                searched.append(i)
        found = gpu_batches.in_batches(
            [layers[i] for i in swept],
            [seeds[i] for i in swept],
            gpu_sweep,
            self._finished,
        )
        found += gpu_search.search(
            [layers[i] for i in searched],
            [seeds[i] for i in searched],
            self._finished,
        )
        for i, layer in zip(swept + searched, found):
            states[i] = layer
        return states

    def _sequential(self, problems, seed, is_warm):
        """Solves the problems of one layer."""
        if is_warm and problems[0].fields.shape[0] > ENUMERATE_UP_TO:
            found = _swept(problems)
            return [self._finished(g, p) for g, p in zip(found, problems)]
        return super()._search_all([problems], [seed], [False])[0]

    def sample(
        self, qubo: Qubo, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        if qubo.num_variables <= ENUMERATE_UP_TO:
            proven = np.ones(qubo.num_columns, bool)
            return exact.best_states(qubo)[None], {"proven_optimal": proven}
        if self.preset == "fast" and _is_wide(qubo):
            return super().sample(qubo, seed)
        start = qubo.start
        if start is None:
            problem = self._as_problem(qubo)
            start = np.asarray(ops.sign(relaxed.ridge_solution(problem)))
        start = start.astype(np.int8)
        if self.preset == "once":
            found = numpy_search.beam_search(qubo)
            if found is not None:
                before, after = qubo.varying_energies([start, found])
                start = np.where(after < before, found, start)
            annealed = numpy_search.anneal(qubo, start, seed)
            return np.stack([start, annealed]), {}
        samples, info = super().sample(qubo, seed)
        return numpy_search.descend(qubo, samples[0], start)[None], info

    def get_config(self) -> dict[str, Any]:
        return {"preset": self.preset, **super().get_config()}


def _is_wide(problem):
    """Returns whether single flips would take too long."""
    return math.prod(problem.fields.shape) > SWEEP_FROM


def _swept(problems):
    """Sweeps once over the problems of a layer, which have the same shape."""
    stack = ops.Problem(
        couplings=tf.stack([problem.couplings for problem in problems]),
        fields=tf.stack([problem.fields for problem in problems]),
        start=tf.stack([problem.start for problem in problems]),
    )
    return tf.unstack(local_search.warm_sweep(stack))


def gpu_sweep(stack, sizes, seeds):
    """Sweeps once over a stack of problems. See `gpu_batches.in_batches`."""
    del sizes, seeds
    stack = stack._replace(couplings=products.rounded(stack.couplings))
    return tf.linalg.matrix_transpose(local_search.warm_sweep(stack))
