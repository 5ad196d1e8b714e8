"""The QUBOs of a training run."""

from tensorflow import keras

from keras_qpsbgd import callbacks
from keras_qpsbgd import optimizers


def compiled(model, backend, learning_rate, rule, metrics=(), **options):
    """Compiles a model with QP-SBGD.

    Args:
        model: Keras model with one output per class.
        backend: solver of the QUBOs, as in `backends.get`.
        learning_rate: float.
        rule: see `optimizers.QPSBGD`.
        metrics: list of metrics.
        **options: more arguments of `optimizers.QPSBGD`.
    """
    optimizer = optimizers.QPSBGD(
        learning_rate, backend=backend, rule=rule, seed=0, **options
    )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=list(metrics),
    )
    optimizer.build(model.trainable_variables)
    return model


def record(model, x, y, batch_size, **arguments):
    """Trains a model and records every update.

    Args:
        model: model of `compiled`.
        x: inputs, in the order of training.
        y: classes.
        batch_size: number of samples per step.
        **arguments: more arguments of `fit`.

    Returns:
        `analysis.Run`.
    """
    recorder = callbacks.QuboRecorder(every=1)
    model.fit(
        x,
        y,
        batch_size=batch_size,
        shuffle=False,
        verbose=0,
        callbacks=[recorder],
        **arguments,
    )
    return recorder.run
