"""Trains and evaluates the network of one configuration of a method."""

import time

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from research.engine.task import marked_kernels
from research.few_solves import costs
from research.few_solves.methods import COLUMNS
from research.few_solves.methods import MINI

PARTS = ("train", "validation", "test")
# First rates of Adam for batch normalization. Few updates need a large one.
REAL_RATE, MINI_REAL_RATE = 0.1, 0.005
# Purposes of random numbers.
WEIGHTS, BATCHES = 23, 24


class Trainer:
    """A network that is built and compiled once, for all seeds.

    Args:
        task: A `Task`.
        method: A `Method`.
        configuration: List of numbers.
        splits: The splits of one of the seeds.
    """

    def __init__(self, task, method, configuration, splits):
        self._task = task
        self._is_mini = method.kind == MINI
        self.model = task.network()
        self._loss = _loss(self.model)
        self._first = self.model.get_weights()
        self._columns = None
        if method.kind == COLUMNS:
            self._columns = method.make(configuration)
        self._parts = self._optimizers(method, configuration)
        for optimizer, variables in self._parts:
            optimizer.build(variables)
        self._rates = [float(part.learning_rate) for part, _ in self._parts]
        self._state = [
            (variable, variable.numpy())
            for optimizer, _ in self._parts
            for variable in optimizer.variables
        ]
        self._step = tf.function(self._make_step)
        rows = len(splits["train"].rows)
        self._size = costs.batch_size(task, method.kind, rows)
        self._price = costs.price(task, method, rows)
        self._compiling = self._compile(splits)

    def run(self, seed, splits, counts, rate=None):
        """Trains the network.

        Args:
            seed: Integer. Draws the initial weights and the batches.
            splits: Dictionary of the `Split` of all parts.
            counts: Tuple of the numbers of sweeps to evaluate after, or of the
                lengths of runs with updates. Learning rates fall to zero at the
                end of each run, with a cosine.
            rate: Float (optional). First learning rate of the binary kernels.
                Defaults to that of the configuration.

        Returns:
            A dictionary of the results by number of sweeps or updates.
        """
        if self._columns:
            return self._sweeps(seed, splits, counts)
        if rate is not None:
            self._rates[0] = rate
        return {count: self._updates(seed, splits, count) for count in counts}

    def _optimizers(self, method, configuration):
        """Returns optimizers with the variables that they train."""
        kernels = marked_kernels(self.model)
        known = {id(kernel) for kernel in kernels}
        others = [
            v for v in self.model.trainable_variables if id(v) not in known
        ]
        rate = MINI_REAL_RATE if self._is_mini else REAL_RATE
        parts = [(keras.optimizers.Adam(rate), others)] if others else []
        if self._columns:
            return parts
        return [(method.make(configuration), kernels), *parts]

    def _compile(self, splits):
        """Returns the CPU seconds that compiling takes."""
        if not self._parts:
            return 0.0
        batches = self._batches(0, splits["train"].rows)
        seconds = []
        for _ in range(3):
            start = time.process_time()
            self._make_update(splits["train"], next(batches))
            seconds.append(time.process_time() - start)
        return max(seconds[0] - seconds[2], 0.0)

    def _reset(self, seed):
        """Draws the kernels. All other variables start as they are."""
        self._seconds = self._compiling
        for variable, value in self._state:
            variable.assign(value)
        rng = np.random.default_rng([seed, WEIGHTS])
        weights = []
        for first in self._first:
            if first.ndim == 2:  # Glorot and Bengio
                limit = np.sqrt(6.0 / sum(first.shape))
                first = rng.uniform(-limit, limit, first.shape)
            weights.append(first)
        self.model.set_weights(weights)

    def _batches(self, seed, rows):
        """Yields the rows of successive updates."""
        rng = np.random.default_rng([seed, BATCHES])
        while True:
            if self._size == len(rows):
                yield rows
            else:
                yield rng.choice(rows, self._size, replace=False)

    # Updates of all kernels at once

    def _updates(self, seed, splits, length):
        """Returns the results of a run with some number of updates."""
        self._reset(seed)
        batches = self._batches(seed, splits["train"].rows)
        start = time.process_time()
        for update in range(length):
            decay = 0.5 * (1 + np.cos(np.pi * update / length))
            for (optimizer, _), rate in zip(self._parts, self._rates):
                optimizer.learning_rate = decay * rate
            self._make_update(splits["train"], next(batches))
        self._seconds += time.process_time() - start
        return self._evaluated(splits, length)

    def _make_update(self, split, rows):
        self._step(
            tf.constant(split.inputs[0][rows]), tf.constant(split.y[rows])
        )

    def _make_step(self, x, y):
        variables = [v for _, part in self._parts for v in part]
        with tf.GradientTape() as tape:
            outputs = self.model(x, training=True)
            loss = self._loss(_targets(y, outputs), outputs)
        gradients = iter(tape.gradient(loss, variables))
        for optimizer, part in self._parts:
            optimizer.apply_gradients([(next(gradients), v) for v in part])

    # Column by column

    def _sweeps(self, seed, splits, counts):
        """Returns the results by number of sweeps."""
        self._reset(seed)
        split = splits["train"]
        rows = split.rows
        batches = self._batches(seed, rows)
        arguments = {"seed": seed}
        if self._size < len(rows):
            arguments["batch_size"] = self._size
        results = {}
        self._normalize(splits)
        before = self._charged()
        start = time.process_time()
        last = 0

        def evaluate():
            found = self._evaluated(splits, last)
            if before is not None:
                seconds = self._charged() - before
                found["qpu_seconds"] = round(seconds, 6)
            return found

        def on_sweep(number, loss):
            nonlocal start, last
            del loss
            last = number
            if self._parts:
                self._make_update(split, next(batches))
                self._normalize(splits)
            self._seconds += time.process_time() - start
            if number in counts:
                results[number] = evaluate()
            start = time.process_time()

        self.model.compile(loss=self._loss)
        kq.fit_columns(
            self.model,
            split.inputs[0][rows],
            split.y[rows],
            sweeps=max(counts),
            on_sweep=on_sweep,
            verbose=0,
            **self._columns,
            **arguments,
        )
        # It ends when three sweeps change nothing, and would stay there.
        for count in counts:
            if count > last:
                results[count] = evaluate()
        return results

    def _charged(self):
        """Returns the QPU seconds that the mock QPU has reported so far."""
        budget = getattr(self._columns.get("backend"), "budget", None)
        return None if budget is None else budget.charged

    # Evaluation

    def _normalize(self, splits):
        """Computes the statistics of batch normalization."""
        if self._task.is_normalized:
            split = splits["train"]
            rows = split.rows[: self._task.probe]
            # QP-SBGD must not see this pass.
            before = [
                (variable, variable.numpy()) for variable, _ in self._state
            ]
            self.model(split.inputs[0][rows], training=True)
            for variable, value in before:
                variable.assign(value)

    def _evaluated(self, splits, count):
        """Returns the costs so far, and loss and accuracy of all parts."""
        gradients, qpu_seconds = self._price
        found = {
            "gradients": round(count * gradients, 3),
            "qpu_seconds": round(count * qpu_seconds, 6),
            "cpu_seconds": round(self._seconds, 4),
        }
        self._normalize(splits)
        for name in PARTS:
            split = splits[name]
            rows = split.rows
            if name == "train":
                rows = rows[: self._task.probe]
            y = split.y[rows]
            outputs = self.model(split.inputs[0][rows], training=False)
            loss = self._loss(_targets(y, outputs), outputs)
            outputs = outputs.numpy()
            if outputs.shape[1] == 1:
                predicted = outputs[:, 0] > 0
            else:
                predicted = outputs.argmax(axis=1)
            found[f"{name}_loss"] = round(float(loss), 6)
            found[f"{name}_accuracy"] = round(float((predicted == y).mean()), 6)
        return found


def _loss(model):
    if model.output_shape[-1] == 1:
        return keras.losses.BinaryCrossentropy(from_logits=True)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _targets(y, outputs):
    if outputs.shape[1] > 1:
        return y
    return tf.cast(tf.reshape(y, (-1, 1)), outputs.dtype)
