"""What is trained: data, network, batches, and what is reported."""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_qpsbgd import recording
from keras_qpsbgd.compare.methods import METHODS
from keras_qpsbgd.compare.report.protocol import VALIDATION_ACCURACY
from keras_qpsbgd.compare.report.protocol import Measure

TUNING = "tuning"
FRESH = "fresh"


@dataclasses.dataclass(frozen=True)
class Split:
    """Some rows of a data set, or some nodes of a graph.

    Attributes:
        inputs: what the model takes: arrays of rows, or features and
            adjacency of a graph.
        rows: numbers of the rows (nodes) that belong to the split.
        y: classes, or targets, of all rows (nodes) of `inputs`.
    """

    inputs: tuple
    rows: np.ndarray
    y: np.ndarray


def marked_kernels(model):
    """The kernels of all binary layers, those of frozen layers left out."""
    variables = model.trainable_variables
    return [v for v in variables if recording.mark_of(v) is not None]


@dataclasses.dataclass(frozen=True)
class Task:
    """One network on one data set: all methods train this.

    Attributes:
        name: name of its records.
        load: function of a data folder; returns the source, once a process.
        prepare: function of a data folder, called once before the processes
            start: downloads, and what takes long and can be kept.
        splits: function of (source, seed, stage); returns a dict of `Split`
            named train, validation and test, of the same shapes for all seeds.
            While configurations are compared (stage `tuning`) test may be
            missing and is not looked at.
        batches: function of (seed, rows to train on, stage); returns an int
            array (evaluations, steps, batch) of row numbers: losses and
            accuracies are taken after every so many steps.
        build: function of (source, weights); returns a built model. What
            `weights` may be says `Method`.
        grids: lists of configurations by key of a method; of the same length
            for all that have something to choose.
        chosen_by: the measure on validation data that chooses among them.
        reported: measures whose best values pick the iterate that counts,
            the second among those that are equal in the first, and so on;
            `()` is the last one.
        like: the `Task` whose chosen configurations it takes.
        methods: keys of the methods that are affordable.
        tuning_seeds, fresh_seeds: numbers of runs.
        first_seed: of the fresh ones. Grids of some tasks were moved after
            runs with the seeds from 0 on; what is shown comes from others.
        host_seeds: number of fresh seeds where a solver on the host is asked.
        scale: `gradient_scale` of QP-SBGD.
        decay: whether learning rates fall to zero along a cosine.
        weight_decay: of the layer named `encoder`.
        unit_variance: methods whose kernels start with the variance of +1 and
            -1. ProxQuant computes with the real kernel, and from the small
            numbers that others start with no signal would pass ten scaled
            layers. Signs, and so the binary network, are the same.
        is_graph: whether `inputs` are features and adjacency of a graph.
        kernels: function of a model; returns the kernels that the methods
            differ in.
        first_weights: function of (source, seed); returns the values that
            `Trainer.model_variables` start from. `None` draws all that have
            two axes or more from Glorot's uniform distribution.
        loss: function of (outputs, y); returns the mean over the rows. `None`
            is the cross-entropy from logits, beside which there is an accuracy.
        evaluation_rows: rows that are evaluated at once; `None` is all.
        probe: training rows on which the training loss is taken; `None` is all.
        ablation: whether all configurations get fresh seeds and none is chosen.
        cost: seconds of one run, roughly; long ones are started first.
        trainer: the class that makes its runs, as `module:name`.
    """

    name: str
    load: Callable
    splits: Callable
    batches: Callable
    build: Callable
    grids: dict
    prepare: Callable | None = None
    chosen_by: Measure = VALIDATION_ACCURACY
    reported: tuple = ()
    like: object = None
    methods: tuple = tuple(METHODS)
    tuning_seeds: int = 3
    fresh_seeds: int = 10
    first_seed: int = 0
    host_seeds: int = 3
    scale: str = "max"
    decay: bool = True
    weight_decay: float = 0.0
    unit_variance: tuple = ()
    is_graph: bool = False
    kernels: Callable = marked_kernels
    first_weights: Callable | None = None
    loss: Callable | None = None
    evaluation_rows: int | None = None
    probe: int | None = None
    ablation: bool = False
    cost: float = 1.0
    trainer: str = "keras_qpsbgd.compare.training:Trainer"

    def logits(self, model, inputs, rows, training):
        """The model's answer for some rows, or nodes."""
        if self.is_graph:
            return tf.gather(model(list(inputs), training=training), rows)
        parts = [tf.gather(part, rows) for part in inputs]
        return model(parts if len(parts) > 1 else parts[0], training=training)


def random(*numbers):
    """A random generator for a purpose: seed, and what it is for."""
    return np.random.default_rng(numbers)


def shuffled_batches(seed, rows, batch, epochs, evaluations=1):
    """Passes over the rows in random order, what is left of each dropped.

    Args:
        seed: int.
        rows: row numbers.
        batch: rows in a batch.
        epochs: number of passes.
        evaluations: of the network in each pass.

    Returns:
        An int array (evaluations in all, steps, batch).
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


def grid(rates, real_rates=(None,), **settings):
    """Configurations: all combinations of rates.

    Args:
        rates: learning rates of the kernels.
        real_rates: learning rates of everything else.
        **settings: further arguments of the optimizer, in all of them.
    """
    configurations = []
    for rate in rates:
        for real_rate in real_rates:
            configuration = {"rate": rate, "real_rate": real_rate, **settings}
            configurations.append(
                {k: v for k, v in configuration.items() if v is not None}
            )
    return configurations
