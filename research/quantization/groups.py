r"""Measures scales for groups of inputs, as in other tools for GPTQ and AWQ.

    python -m research.quantization.groups --data DIR --seeds 5

`kq.quantize` has one scale per output. Here, every output has one scale for
each group of `size` consecutive inputs of the kernel as a matrix. The networks
are those of `train_on_gpu.py`. All layers are quantized with `gptq+scales` and
`descent+scales`. `mixed` has one scale per output, and spends the memory of
groups on one more bit for some layers. One line of JSON is printed per
quantized network.

With given levels, the error of an output is a quadratic function of its scales,
so their best values solve a small linear system. GPTQ and the descent are those
of `keras_qpsbgd.quantization.numerics.heuristics`, in units of the weights.
"""

import argparse
import itertools
import json
import time
import warnings

import numpy as np
from scipy import linalg

from keras_qpsbgd.quantization.numerics import grid
from keras_qpsbgd.quantization.numerics import heuristics
from keras_qpsbgd.quantization.numerics.layer import LayerResult
from keras_qpsbgd.quantization.numerics.output_error import fit_scales
from research.quantization import methods
from research.quantization import tasks

# The layers of each task that have one more bit in `mixed`. It costs as much as
# scales for groups of 128 inputs (CIFAR-10), or of 64 (transformer).
MIXED = {"cifar10": "conv_[013]|logits", "transformer": "attention_[01]"}
# The number of inputs that share a scale.
SIZES = {
    "one scale per output": None,
    "groups of 128": 128,
    "groups of 64": 64,
    "mixed": None,
}
BITS = (1, 2, 3)
MAX_SWEEPS = 30


class Grouped:
    """The damped error of a layer with several scales per output.

    Args:
        problem: An `OutputError` with one group of channels.
        size: Integer (optional). The number of inputs of a group. `None` is all
            of them.
        bits: Integer.
    """

    def __init__(self, problem, size, bits):
        self.couplings, self.products = (
            problem.couplings[0],
            problem.products[0],
        )
        self.kernel, self.bits = problem.kernel[0], bits
        n = len(self.kernel)
        self.starts = np.arange(0, n, size or n)
        self._groups = np.arange(n) // (size or n)
        # The last weight is rounded first.
        self._order = np.diag(self.couplings).argsort(kind="stable")
        ordered = self.couplings[np.ix_(self._order, self._order)]
        factor = linalg.cholesky(ordered, overwrite_a=True)
        self._target = linalg.cho_solve(
            (factor, False), self.products[self._order]
        )
        self._feedback = factor / np.diag(factor)[:, None]

    def weight_scales(self):
        """Returns the scales that change the kernel least, `(groups, m)`."""
        parts = np.split(self.kernel, self.starts[1:])
        scales = [grid.weight_scales(part[None], self.bits) for part in parts]
        return np.concatenate(scales, axis=1)[0]

    def best_scales(self, levels, columns=slice(None)):
        """Returns the best scales of given levels of some columns."""
        count = len(self.starts)
        matrix = np.empty((count, count, levels.shape[1]))
        for row in range(count):
            own = self._groups == row
            forces = self.couplings[:, own] @ levels[own]
            matrix[row] = np.add.reduceat(levels * forces, self.starts)
        linear = np.add.reduceat(
            levels * self.products[:, columns], self.starts
        )
        found = np.linalg.solve(matrix.transpose(2, 0, 1), linear.T[..., None])
        return found[..., 0].T

    def kernel_of(self, levels, scales):
        """Returns the levels times the scales of their groups."""
        return levels * scales[self._groups]

    def errors(self, kernel):
        """Returns the damped error of each column, up to a constant."""
        forces = self.couplings @ kernel
        return (kernel * (forces - 2 * self.products)).sum(axis=0)

    def nearest(self, values, steps):
        """Returns the nearest levels of values with the scales `steps`."""
        return grid.nearest_levels(grid.divide(values, steps), self.bits)

    def gptq(self, scales):
        """Returns the levels of GPTQ with given scales."""
        steps = scales[self._groups][self._order]
        levels, rest = np.zeros_like(steps), np.zeros_like(steps)
        for i in range(len(steps) - 1, -1, -1):
            value = self._target[i] + self._feedback[i, i + 1 :] @ rest[i + 1 :]
            levels[i] = self.nearest(value, steps[i])
            rest[i] = self._target[i] - steps[i] * levels[i]
        unsorted = np.empty_like(levels)
        unsorted[self._order] = levels
        return unsorted

    def search(self):
        """Returns the best levels and scales of GPTQ over several scales."""
        start = self.weight_scales()
        lowest = np.full(start.shape[1], np.inf)
        best = np.zeros_like(self.kernel), np.zeros_like(start)
        for factor in (1.0, *heuristics.SCALES[min(self.bits, 2)]):
            levels = self.gptq(factor * start)
            found = levels, self.best_scales(levels)
            errors = self.errors(self.kernel_of(*found))
            better = errors < lowest
            lowest = np.where(better, errors, lowest)
            best = tuple(np.where(better, *pair) for pair in zip(found, best))
        return best

    def descend(self, levels, scales):
        """Changes single weights, and then all scales, while this helps."""
        levels, scales = levels.copy(), scales.copy()
        active = np.arange(levels.shape[1])
        for _ in range(MAX_SWEEPS):
            part, steps = levels[:, active], scales[self._groups][:, active]
            moved = self._sweep(part, steps, self.products[:, active])
            levels[:, active] = part
            scales[:, active] = self.best_scales(part, active)
            active = active[moved]
            if not len(active):
                break
        return levels, scales

    def _sweep(self, levels, steps, products):
        """Updates levels in place; returns which columns changed."""
        forces = self.couplings @ (steps * levels) - products
        moved = np.zeros(levels.shape[1], bool)
        for i, step in enumerate(steps):
            value = step * levels[i] - forces[i] / self.couplings[i, i]
            change = self.nearest(value, step) - levels[i]
            columns = np.flatnonzero(change)
            if len(columns):
                levels[i] += change
                forces[:, columns] += np.outer(
                    self.couplings[i], (step * change)[columns]
                )
                moved[columns] = True
        return moved


def group_layer(statistics, size, bits, damping=0.01, **ignored):
    """Quantizes a layer with `size` inputs per scale. See `quantize_layer`.

    The `levels` of the result are weights.
    """
    del ignored
    problem = statistics.problem(damping)
    grouped = Grouped(problem, size, bits)
    found = {"gptq+scales": grouped.search()}
    found["descent+scales"] = grouped.descend(*found["gptq+scales"])
    errors = {}
    for name, pair in found.items():
        # The scales are the best ones, so their common factor stays 1.
        best = fit_scales(problem, grouped.kernel_of(*pair)[None])
        errors[name] = problem.relative(best.errors)
    return LayerResult(
        levels=best.levels,
        scales=best.scales,
        bias_change=statistics.bias_change(best.levels * best.scales),
        # `with_floats` needs this key.
        errors={**errors, "nearest": errors["descent+scales"]},
        improved=None,
        proven=None,
        solver={"scales": found["descent+scales"][1].size},
    )


def measure(task, model, data, bits, setting):
    """Quantizes a network, and returns its errors, quality and memory."""
    if setting == "mixed":
        bits = {MIXED[task]: bits + 1, ".": bits}
    start = time.process_time()
    scales = []

    def quantize_layer(statistics, **arguments):
        result = group_layer(statistics, SIZES[setting], **arguments)
        scales.append(result.solver["scales"])
        return result

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`calibration` is small")
        quantized, report = methods.with_floats(
            model, data.calibration, quantize_layer, bits=bits, seed=0
        )
    weights = [layer.num_inputs * layer.num_outputs for layer in report.layers]
    used = sum(n * layer.bits for n, layer in zip(weights, report.layers))
    return {
        "measured": data.measure(quantized),
        "bits_per_weight": (used + 32 * sum(scales)) / sum(weights),
        "errors": {layer.name: layer.errors for layer in report.layers},
        "cpu_seconds": time.process_time() - start,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=MIXED, default="cifar10")
    parser.add_argument("--data", help="folder of cifar10.npz")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    data = tasks.load(options.task, options.data, quick=False)
    for seed in range(options.seeds):
        model = tasks.float_network(options.task, seed, data)
        for bits, setting in itertools.product(BITS, SIZES):
            record = {"seed": seed, "bits": bits, "setting": setting}
            record.update(measure(options.task, model, data, bits, setting))
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
