"""Trains one method on one task. All seeds share the compiled graphs."""

import dataclasses
import functools
import math

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import _keras
from research.engine import methods
from research.engine.task import FRESH
from research.engine.task import marked_kernels

DEFAULT_REAL_RATE = 0.01
SCORES = ("loss", "accuracy")


def graph(method, *arguments):
    """Returns a `tf.function` of a method.

    TensorFlow counts how often a method is traced, for all objects together,
    and warns after five times. It counts `partial` functions on their own.
    """
    return tf.function(functools.partial(method, *arguments))


class Trainer:
    """Performs runs that do not depend on each other.

    The initial weights and the batches depend only on the seed. They are the
    same for all methods, so differences between methods are paired.

    Args:
        task: a `Task`.
        source: the return value of `task.load`.
        method: a `Method`.
        settings: dict of further arguments of the optimizer. They are compiled
            into the graph.
    """

    def __init__(self, task, source, method, settings):
        self.task = task
        self.source = source
        self.model = task.build(source, method.weights)
        self.kernels = marked_kernels(self.model)
        self.update = methods.Update(method, self.model, self.kernels, settings)
        self._decayed = None
        if task.weight_decay:
            self._decayed = self.model.get_layer("encoder").kernel
        self._unit_variance = method.key in task.unit_variance
        self._data = {}
        variables = [*self.model_variables(), *self.update.state()]
        self._state = [(v, v.numpy()) for v in variables]
        self._steps = graph(self._make_steps)
        self._scores = {}

    # One run

    def run(self, seed, configuration, stage):
        """Performs one run.

        Args:
            seed: int.
            configuration: dict with a `rate` and optionally a `real_rate`.
            stage: `"tuning"` or `"fresh"`. Only the latter uses the test data.

        Returns:
            A dict with `curves` and `result`.
        """
        self._reset(seed)
        splits = self.task.splits(self.source, seed, stage)
        if stage != FRESH:
            splits.pop("test", None)
        rows = splits["train"].rows
        if self.task.probe is not None:
            splits["train"] = dataclasses.replace(
                splits["train"], rows=rows[: self.task.probe]
            )
        self._assign(splits)
        # A configuration may have its own number of batches.
        number = {k: v for k, v in configuration.items() if k == "batches"}
        batches = self.task.batches(seed, rows, stage, **number)
        rates, real_rates = self._rates(configuration, batches)
        curves = {"epoch": [0]}
        self._append_scores(curves, splits)
        for position in range(len(batches)):
            self._steps(
                tf.constant(batches[position], tf.int32),
                tf.constant(rates[position], tf.float32),
                tf.constant(real_rates[position], tf.float32),
            )
            seen = (position + 1) * math.prod(batches.shape[1:])
            curves["epoch"].append(seen / len(rows))
            self._append_scores(curves, splits)
        return {"curves": curves, "result": self._result(curves)}

    def model_variables(self):
        """Returns the weights and the random states of the model."""
        return _keras.variables_with_random_states(self.model)

    def _reset(self, seed):
        for variable, value in self._state:
            variable.assign(value)
        if self.task.first_weights is None:
            self._draw_first_weights(seed)
        else:
            values = self.task.first_weights(self.source, seed)
            for variable, value in zip(self.model_variables(), values):
                variable.assign(value)
        if self._unit_variance:
            for kernel in self.kernels:
                kernel.assign(kernel / np.std(kernel))

    def _draw_first_weights(self, seed):
        # After `set_random_seed`, TensorFlow would rebuild all graphs.
        for position, variable in enumerate(self.model_variables()):
            # Kernels of convolutions have four axes.
            if len(variable.shape) >= 2:
                initializer = keras.initializers.GlorotUniform(
                    seed=1_000 * seed + position
                )
                variable.assign(initializer(variable.shape))
            elif variable.name == "seed_generator_state":
                variable.assign([seed, 0])  # of dropout

    def _assign(self, splits):
        """Assigns the data to the variables that the graphs read."""
        for name, split in splits.items():
            if name not in self._data:
                shapes = [part.shape[1:] for part in split.inputs]
                if self.task.is_graph:
                    # Seeds may have graphs of different sizes.
                    shapes = [part.shape[1:] for part in self.model.inputs]
                self._data[name] = _Data(split, shapes)
            else:
                self._data[name].assign(split)

    def _rates(self, configuration, batches):
        """Returns the rates of all steps, for kernels and other variables."""
        shape = batches.shape[:2]
        progress = np.arange(shape[0] * shape[1]) / (shape[0] * shape[1])
        decay = 0.5 * (1.0 + np.cos(math.pi * progress))
        if not self.task.decay:
            decay = np.ones_like(decay)
        decay = decay.reshape(shape)
        real_rate = configuration.get("real_rate") or DEFAULT_REAL_RATE
        rate = configuration.get("rate") or 0.0
        return rate * decay, real_rate * decay

    def _result(self, curves):
        """Returns the scores of the iterate that is reported."""
        positions = range(len(curves["epoch"]))
        if self.task.reported:
            # The first of equal positions: training could have stopped there.
            position = max(positions, key=lambda k: self._rank(curves, k))
        else:
            position = positions[-1]
        return {name: values[position] for name, values in curves.items()}

    def _rank(self, curves, position):
        return [
            measure.sign * curves[measure.key][position]
            for measure in self.task.reported
        ]

    # In the graph

    def loss(self, logits, y):
        """Returns the mean loss: the task's, by default the cross-entropy."""
        if self.task.loss is not None:
            return self.task.loss(logits, y)
        if logits.shape[-1] == 1:
            losses = tf.nn.sigmoid_cross_entropy_with_logits(
                tf.cast(y, logits.dtype), logits[:, 0]
            )
        else:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        return tf.reduce_mean(losses)

    def gradients(self, rows, training=True):
        """Returns straight-through gradients of the loss on training rows."""
        data = self._data["train"]
        with tf.GradientTape() as tape:
            logits = self.task.logits(self.model, data.inputs, rows, training)
            loss = self.loss(logits, tf.gather(data.y, rows))
            if self.task.sums_loss:
                loss *= tf.cast(tf.shape(rows)[0], loss.dtype)
            if self._decayed is not None:
                kernel = tf.convert_to_tensor(self._decayed)
                loss += self.task.weight_decay * tf.nn.l2_loss(kernel)
            if self.model.losses:  # from regularizers
                loss += tf.add_n(self.model.losses)
        return tape.gradient(loss, self.model.trainable_variables)

    def _make_steps(self, batches, rates, real_rates):
        for position in tf.range(tf.shape(batches)[0]):
            self.update.set_rates(rates[position], real_rates[position])
            self.update.apply(self.gradients(batches[position]))

    def _make_scores(self, name):
        """Returns a dict of the mean scores over the rows of a split."""
        data = self._data[name]
        size = self.task.evaluation_rows
        if size is None or self.task.is_graph or data.num_rows <= size:
            return self._scores_of(data, data.rows)
        return self._scores_in_parts(data, size)

    def _scores_in_parts(self, data, size):
        """Computes the scores in parts to limit the memory of activations."""
        total = tf.shape(data.rows)[0]
        names = ["loss"] if self.task.loss is not None else SCORES
        sums = [tf.constant(0.0)] * len(names)
        for start in tf.range(0, total, size):
            rows = data.rows[start : start + size]
            scores = self._scores_of(data, rows)
            weight = tf.cast(tf.shape(rows)[0], tf.float32)
            sums = [
                before + weight * scores[one]
                for before, one in zip(sums, names)
            ]
        total = tf.cast(total, tf.float32)
        return {one: sum_ / total for one, sum_ in zip(names, sums)}

    def _scores_of(self, data, rows):
        logits = self.task.logits(self.model, data.inputs, rows, training=False)
        y = tf.gather(data.y, rows)
        scores = {"loss": self.loss(logits, y)}
        if self.task.loss is None:
            scores["accuracy"] = accuracy(logits, y)
        return scores

    def _append_scores(self, curves, splits):
        for name in splits:
            if name not in self._scores:
                self._scores[name] = graph(self._make_scores, name)
            found = self._scores[name]()
            for score in SCORES:
                if score in found:
                    curve = curves.setdefault(f"{name}_{score}", [])
                    curve.append(float(found[score]))


class Constant:
    """Gives every row the same answer: the shares of the training classes.

    A method that is not better has learned nothing. See `Trainer`.

    Raises:
        ValueError: If the task has a loss of its own.
    """

    def __init__(self, task, source, method, settings):
        del method, settings
        if task.loss is not None:
            raise ValueError(
                "The constant answer needs a task with classes. Received: "
                f"loss={task.loss}"
            )
        self.task = task
        self.source = source

    def run(self, seed, configuration, stage):
        """Returns the scores of the constant answer as a record."""
        del configuration
        splits = self.task.splits(self.source, seed, stage)
        classes = {name: one.y[one.rows] for name, one in splits.items()}
        num_classes = 1 + max(y.max() for y in classes.values())
        counts = np.bincount(classes["train"], minlength=num_classes)
        shares = counts / counts.sum()
        result = {"epoch": 0}
        for name, y in classes.items():
            with np.errstate(divide="ignore"):
                result[f"{name}_loss"] = -np.mean(np.log(shares[y]))
            result[f"{name}_accuracy"] = np.mean(y == shares.argmax())
        return {"curves": {}, "result": result}


def trainer_of(task, method):
    """Returns the class that performs the runs of a method."""
    if method.key == "constant":
        return Constant
    return task.trainer or Trainer


def accuracy(logits, y):
    """Returns the share of correct rows, with half a row for a tie of two.

    A single logit is compared with 0. In small binary networks, which have few
    different outputs, the highest logits are often exactly equal. If k classes
    share the highest logit and the correct class is one of them, the row counts
    1 / k. This is the expected accuracy if chance breaks the tie. The first
    class, as in `argmax`, may be the frequent one or the rare one.

    Args:
        logits: tensor of shape `(rows, classes)` or `(rows, 1)`.
        y: classes.
    """
    if logits.shape[-1] == 1:
        logits = tf.concat([tf.zeros_like(logits), logits], axis=1)
    highest = tf.reduce_max(logits, axis=1, keepdims=True)
    best = tf.cast(logits == highest, tf.float32)
    correct = tf.gather(best, y, axis=1, batch_dims=1)
    # No logit is the highest if some are NaN. Then the row is wrong.
    return tf.reduce_mean(
        tf.math.divide_no_nan(correct, tf.reduce_sum(best, axis=1))
    )


class _Data:
    """A split in variables, so that all seeds can share one graph.

    Args:
        split: a `Split`.
        shapes: shapes of a row of each input, with `None` for sizes that differ
            between seeds.
    """

    def __init__(self, split, shapes):
        self._split = split
        self.inputs = tuple(
            tf.Variable(array, trainable=False, shape=(None, *shape))
            if isinstance(array, np.ndarray)
            else array
            for array, shape in zip(split.inputs, shapes)
        )
        self.num_rows = len(split.rows)
        # The stage `tuning` may have fewer training rows.
        self.rows = tf.Variable(
            split.rows.astype("int32"), trainable=False, shape=(None,)
        )
        y = _targets(split.y)
        self.y = tf.Variable(y, trainable=False, shape=(None, *y.shape[1:]))

    def assign(self, split):
        for variable, old, new in zip(
            self.inputs, self._split.inputs, split.inputs
        ):
            if new is not old:
                variable.assign(new)
        self.rows.assign(split.rows.astype("int32"))
        if split.y is not self._split.y:
            self.y.assign(_targets(split.y))
        self._split = split


def _targets(y):
    """Converts targets to float32 and classes to int32."""
    kind = "float32" if y.dtype.kind == "f" else "int32"
    return y.astype(kind)
