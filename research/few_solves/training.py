"""Trains and evaluates the network of one configuration of a method."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import statistics
from keras_qpsbgd.comparison.task import marked_kernels
from keras_qpsbgd.optimizers.binary_optimizer import BinaryOptimizer

REAL_RATE = 0.01
PARTS = ("train", "validation", "test")
# Later sweeps of `fit_columns` with all training samples change nothing.
MOST_SWEEPS = 20
# Purposes of random numbers.
WEIGHTS, BATCHES = 23, 24


class Trainer:
    """A network that is built and traced once, for all seeds.

    Args:
        task: A `Task`.
        method: A `Method`.
        configuration: List of numbers.
        splits: The splits of one of the seeds.
    """

    def __init__(self, task, method, configuration, splits):
        self._task = task
        self._columns = method.columns and method.columns(configuration)
        self.model = task.network(splits)
        self._loss = _loss(self.model)
        self._first = self.model.get_weights()
        self._marked = [
            statistics.mark_of(v) is not None for v in self.model.weights
        ]
        self._is_normalized = any(
            isinstance(layer, keras.layers.BatchNormalization)
            for layer in self.model.layers
        )
        self._parts = self._optimizers(method, configuration)
        for optimizer, variables in self._parts:
            optimizer.build(variables)
        self._state = [
            (variable, variable.numpy())
            for optimizer, _ in self._parts
            for variable in optimizer.variables
        ]
        self._step = tf.function(self._make_step)

    def run(self, seed, splits, counts):
        """Trains the network.

        Args:
            seed: Integer. Draws the initial weights and the batches.
            splits: Dictionary of the `Split` of all parts.
            counts: Tuple of the numbers of updates to evaluate after.

        Returns:
            A dictionary of the results by number of updates.
        """
        for variable, value in self._state:
            variable.assign(value)
        self.model.set_weights(self._initial_weights(seed))
        batches = _batches(self._task.batch, seed, splits["train"].rows)
        train = self._sweeps if self._columns else self._updates
        return train(seed, splits, batches, counts)

    def _optimizers(self, method, configuration):
        """Returns optimizers with the variables that they train."""
        variables = self.model.trainable_variables
        kernels = marked_kernels(self.model)
        known = {id(kernel) for kernel in kernels}
        others = [v for v in variables if id(v) not in known]
        rate = self._task.real_rate
        adam = keras.optimizers.Adam(rate or REAL_RATE)
        real = [(adam, others)] if others else []
        if self._columns:
            return real if self._is_normalized else []
        optimizer = method.optimizer(adam, configuration)
        has_own = isinstance(optimizer, BinaryOptimizer)
        if has_own or rate is None:
            return [(optimizer, variables)]
        return [(optimizer, kernels), *real]

    def _initial_weights(self, seed):
        """Returns random kernels. All other variables start as they are."""
        rng = np.random.default_rng([seed, WEIGHTS])
        weights = []
        for first, marked in zip(self._first, self._marked):
            if first.dtype.kind == "i":  # the random state of dropout
                first = np.array([seed, 0], first.dtype)
            elif first.ndim == 2:
                limit = self._task.first_limit if marked else None
                if limit is None:  # Glorot and Bengio
                    limit = np.sqrt(6.0 / sum(first.shape))
                first = rng.uniform(-limit, limit, first.shape)
            weights.append(first)
        return weights

    # Updates of all kernels at once

    def _updates(self, seed, splits, batches, counts):
        del seed
        results = {}
        for update in range(1, max(counts) + 1):
            self._make_update(splits["train"], next(batches))
            if update in counts:
                results[update] = self._evaluated(splits)
        return results

    def _make_update(self, split, rows):
        y = tf.constant(split.y[rows])
        if self._task.is_graph:
            self._step(split.inputs, tf.constant(rows), y)
        else:
            inputs = [tf.constant(part[rows]) for part in split.inputs]
            self._step(inputs, None, y)

    def _make_step(self, inputs, rows, y):
        variables = [v for _, part in self._parts for v in part]
        with tf.GradientTape() as tape:
            outputs = self._outputs(inputs, rows, training=True)
            loss = self._loss(_targets(y, outputs), outputs)
            if self._task.weight_decay:
                kernel = self.model.get_layer("encoder").kernel
                kernel = tf.convert_to_tensor(kernel)
                loss += self._task.weight_decay * tf.nn.l2_loss(kernel)
        gradients = iter(tape.gradient(loss, variables))
        for optimizer, part in self._parts:
            optimizer.apply_gradients([(next(gradients), v) for v in part])

    def _outputs(self, inputs, rows, training):
        inputs = list(inputs) if len(inputs) > 1 else inputs[0]
        outputs = self.model(inputs, training=training)
        return outputs if rows is None else tf.gather(outputs, rows)

    # Column by column

    def _sweeps(self, seed, splits, batches, counts):
        per_sweep = len(self._columns["dampings"])
        last = max(counts) // per_sweep
        split = splits["train"]
        rows = split.rows
        arguments = {}
        if self._task.batch is None:
            last = min(last, MOST_SWEEPS)
        else:
            size = _batch_size(self._task.batch, rows)
            arguments = {"batch_size": size, "seed": seed}
        results = {}

        def evaluate(sweep, loss):
            del loss
            for _ in range(per_sweep if self._parts else 0):
                self._make_update(split, next(batches))
            if per_sweep * sweep in counts:
                results[per_sweep * sweep] = self._evaluated(splits)
            else:
                self._normalize(splits)

        self._normalize(splits)
        self.model.compile(loss=self._loss)
        kq.fit_columns(
            self.model,
            split.inputs[0][rows],
            split.y[rows],
            sweeps=last,
            on_sweep=evaluate,
            verbose=0,
            **self._columns,
            **arguments,
        )
        # It ends when a sweep changes nothing.
        for count in counts:
            is_end = count % per_sweep == 0 and count <= per_sweep * last
            if is_end and count not in results:
                results[count] = self._evaluated(splits)
        return results

    # Evaluation

    def _normalize(self, splits):
        """Computes the statistics of batch normalization."""
        if self._is_normalized:
            split = splits["train"]
            rows = split.rows[: self._task.probe]
            # This pass is not a part of training.
            before = [
                (variable, variable.numpy()) for variable, _ in self._state
            ]
            self.model(split.inputs[0][rows], training=True)
            for variable, value in before:
                variable.assign(value)

    def _evaluated(self, splits):
        """Returns loss and accuracy of all parts."""
        self._normalize(splits)
        found = {}
        for name in PARTS:
            split = splits[name]
            rows = split.rows
            if name == "train" and self._task.probe:
                rows = rows[: self._task.probe]
            y = split.y[rows]
            if self._task.is_graph:
                outputs = self._outputs(split.inputs, rows, training=False)
            else:
                inputs = [part[rows] for part in split.inputs]
                outputs = self._outputs(inputs, None, training=False)
            loss = self._loss(_targets(y, outputs), outputs)
            outputs = outputs.numpy()
            if outputs.shape[1] == 1:
                predicted = outputs[:, 0] > 0
            else:
                predicted = outputs.argmax(axis=1)
            accuracy = float((predicted == y).mean())
            found[f"{name}_loss"] = round(float(loss), 6)
            found[f"{name}_accuracy"] = round(accuracy, 6)
        return found


def _loss(model):
    if model.output_shape[-1] == 1:
        return keras.losses.BinaryCrossentropy(from_logits=True)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _targets(y, outputs):
    if outputs.shape[1] > 1:
        return y
    return tf.cast(tf.reshape(y, (-1, 1)), outputs.dtype)


def _batch_size(batch, rows):
    # Quick runs have few rows.
    return min(batch, len(rows) // 2)


def _batches(batch, seed, rows):
    """Yields the rows of successive updates."""
    rng = np.random.default_rng([seed, BATCHES])
    while True:
        if batch is None:
            yield rows
        else:
            size = _batch_size(batch, rows)
            yield rng.choice(rows, size, replace=False)
