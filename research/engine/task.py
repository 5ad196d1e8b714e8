"""A task: the data, the network, the batches and the reported measures."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import layers
from keras_qpsbgd.layers import statistics
from research.engine.statistics import VALIDATION_ACCURACY
from research.engine.statistics import Measure

TUNING = "tuning"
FRESH = "fresh"


@dataclasses.dataclass(frozen=True)
class Split:
    """A subset of the rows of a dataset or of the nodes of a graph.

    Attributes:
        inputs: tuple of the inputs of the model: arrays of rows, or the
            features and the adjacency of a graph.
        rows: indices of the rows (nodes) that belong to the split.
        y: classes or targets of all rows (nodes) of `inputs`.
    """

    inputs: tuple
    rows: np.ndarray
    y: np.ndarray


def marked_kernels(model):
    """Returns the kernels of all binary layers that are trainable."""
    variables = model.trainable_variables
    return [v for v in variables if statistics.mark_of(v) is not None]


def use_weights(model, weights):
    """Sets the kind of weights with which binary layers compute.

    Args:
        model: a model.
        weights: `"binary"`, `"latent"` or `"real"`, see `Method`.

    Returns:
        The model.
    """
    for layer in _keras.all_layers(model):
        if isinstance(layer, layers.BinaryLayer):
            if weights == "real":
                layer.use_real_kernel()
            else:
                layer.training_weights = weights
    return model


@dataclasses.dataclass(frozen=True)
class Task:
    """A network and a dataset on which all methods are compared.

    Attributes:
        name: name in the records.
        load: function of a data folder that returns the source. It is called
            once in each process.
        splits: function of (source, seed, stage) that returns a dict of `Split`
            with the keys train, validation and test. The shapes are the same
            for all seeds. In the stage `tuning`, test may be missing and is not
            used.
        batches: function of (seed, training rows, stage) that returns an int
            array (evaluations, steps, batch) of row indices. Losses and
            accuracies are computed after each group of steps.
        build: function of (source, weights) that returns a built model. See
            `Method` for the values of `weights`.
        chosen_by: the measure on validation data that chooses a configuration.
        reported: measures whose best values select the iterate that is
            reported. The second one breaks ties in the first, and so on. With
            `()` it is the last iterate.
        decay: whether learning rates decay to zero along a cosine.
        weight_decay: weight decay of the layer named `encoder`.
        unit_variance: methods whose initial kernels are scaled to unit
            variance. ProxQuant computes with the real kernel. With the small
            initial values of the other methods, no signal would pass ten scaled
            layers. The signs, and therefore the binary network, are the same.
        is_graph: whether `inputs` are the features and the adjacency of a
            graph.
        first_weights: function of (source, seed) that returns the initial
            values of `Trainer.model_variables`. `None` draws all variables with
            at least two axes from Glorot's uniform distribution.
        loss: function of (outputs, y) that returns the mean over the rows.
            `None` means the cross-entropy from logits, with an accuracy.
        sums_loss: whether training minimizes the sum over the rows of a batch
            in place of the mean. Reported losses are means.
        evaluation_rows: number of rows that are evaluated at once. `None` means
            all rows.
        probe: number of training rows for the training loss. `None` means
            all rows.
        ablation: whether all configurations get fresh seeds and none is chosen.
        trainer: the class that performs the runs. `None` means `Trainer`.
    """

    name: str
    load: Callable
    splits: Callable
    batches: Callable
    build: Callable
    chosen_by: Measure = VALIDATION_ACCURACY
    reported: tuple = ()
    decay: bool = True
    weight_decay: float = 0.0
    unit_variance: tuple = ()
    is_graph: bool = False
    first_weights: Callable | None = None
    loss: Callable | None = None
    sums_loss: bool = False
    evaluation_rows: int | None = None
    probe: int | None = None
    ablation: bool = False
    trainer: Callable | None = None

    def logits(self, model, inputs, rows, training):
        """Returns the outputs of the model for some rows or nodes."""
        if self.is_graph:
            return tf.gather(model(list(inputs), training=training), rows)
        parts = [tf.gather(part, rows) for part in inputs]
        return model(parts if len(parts) > 1 else parts[0], training=training)


def random(*numbers):
    """Returns a NumPy generator. Pass the seed and a number for the purpose."""
    return np.random.default_rng(numbers)


def shuffled_batches(seed, rows, batch, epochs, evaluations=1):
    """Returns the batches of several epochs with rows in random order.

    Args:
        seed: int.
        rows: row indices.
        batch: number of rows in a batch. Incomplete batches are dropped.
        epochs: number of epochs.
        evaluations: number of evaluations in each epoch.

    Returns:
        An int array (total evaluations, steps, batch).
    """
    steps = len(rows) // batch
    steps -= steps % evaluations
    generator = random(seed, 1)
    order = [
        generator.permutation(rows)[: steps * batch] for _ in range(epochs)
    ]
    return np.reshape(
        order, (epochs * evaluations, steps // evaluations, batch)
    )
