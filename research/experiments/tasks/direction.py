"""Compares the signs of updates with those of the gradient on all data.

The paper's convergence proof assumes that a component of the binary gradient g
has the sign of the gradient of the full loss in more than half of all cases.
Its appendix counts how often the two signs agree over all steps, layers and
weights, without zeros. With N comparisons and a share p of agreements, the
statistic

    Z = (p - 1/2) / sqrt(1 / (4 N))

is standard normal for a fair coin. The network is that of the pairs of digits.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from research.analysis.direction_test import DirectionTest
from research.engine.methods import METHODS
from research.engine.methods import grid
from research.engine.statistics import Measure
from research.engine.training import Trainer
from research.engine.training import graph
from research.experiments.tasks import mnist_pairs

NAME = "direction"
STEPS = 45
RUNS = 10
RATE = 0.03
COMPARED = ("native", "paper", "signsgd", "signum")
# Shares of equal signs, and Z of QP-SBGD.
PAPER = {
    METHODS["native"].label: (0.584, 0.603),
    METHODS["signsgd"].label: (0.449, 0.622),
}
PAPER_Z = (10.4, 12.4)

AGREEMENT = Measure("agreement", "agreement of signs", True)
Z = Measure("z", "Z", True)


class DirectionTrainer(Trainer):
    """Counts agreements instead of losses."""

    def __init__(self, *args):
        super().__init__(*args)
        self._compare_steps = graph(self._compare)

    def run(self, seed, configuration, stage):
        self._reset(seed)
        splits = self.task.splits(self.source, seed, stage)
        splits = {"train": splits["train"]}
        self._assign(splits)
        rows = splits["train"].rows
        batches = self.task.batches(seed, rows, stage).reshape(
            -1, mnist_pairs.BATCH
        )
        rate = configuration["rate"]
        compare = self._compare_steps
        counts = np.array(
            [
                np.array(compare(tf.constant(batch, tf.int32), rows, rate))
                for batch in batches[:STEPS]
            ]
        )
        test = DirectionTest(*map(int, counts.sum(axis=0)))
        return {
            "curves": {},
            "result": {
                "agreement": test.agreement,
                "z": test.z,
                "comparisons": test.comparisons,
            },
        }

    def _compare(self, batch, rows, rate):
        """Makes one step; returns the numbers of agreements and comparisons."""
        # With `training=False`, so that it is not part of the QUBO.
        of_all = self.gradients(tf.cast(rows, tf.int32), training=False)
        full = dict(zip(map(id, self.model.trainable_variables), of_all))
        before = [tf.identity(tf.convert_to_tensor(k)) for k in self.kernels]
        with tf.control_dependencies(before):
            self.update.set_rates(rate, 0.0)
            self.update.apply(self.gradients(batch))
        agreed, compared = tf.constant(0, tf.int64), tf.constant(0, tf.int64)
        for kernel, old in zip(self.kernels, before):
            moved = tf.sign(old - tf.convert_to_tensor(kernel))
            wanted = tf.sign(full[id(kernel)])
            counted = (moved != 0) & (wanted != 0)
            agreed += tf.math.count_nonzero(counted & (moved == wanted))
            compared += tf.math.count_nonzero(counted)
        return agreed, compared


def tasks(options):
    """Returns the task."""
    pair = mnist_pairs.tasks(options)[0]
    return [
        dataclasses.replace(
            pair,
            name=NAME,
            title="Agreement of signs",
            measures=(AGREEMENT, Z),
            curves=(),
            paper=PAPER,
            kind="bars",
            grids={key: grid([RATE]) for key in COMPARED},
            methods=COMPARED,
            fresh_seeds=RUNS,
            trainer=DirectionTrainer,
        )
    ]
