"""Short training runs for the tests of `QuboRecorder`."""

import numpy as np
import tools
from tensorflow import keras


class Kernels(keras.callbacks.Callback):
    """Collects the kernels before each update and after the last one."""

    values = None

    def on_train_batch_begin(self, batch, logs=None):
        if self.values is None and self.model.built:
            self.values = [tools.kernels(self.model)]

    def on_train_batch_end(self, batch, logs=None):
        if self.values is not None:
            self.values.append(tools.kernels(self.model))


def data():
    """Returns data in which input 2 is never active."""
    x, y = tools.data()
    x[:, 2] = 0.0
    return x, y


def train(backend, *callbacks, model=None, wrap=None, epochs=1, **arguments):
    """Trains for 4 steps per epoch. Compiles the model if given a backend."""
    model = model or tools.small_model()
    if backend is not None:
        optimizer = tools.optimizer(backend=backend)
        if model.built:  # otherwise, a first eager step has no couplings
            optimizer.build(model.trainable_variables)
        optimizer = wrap(optimizer) if wrap else optimizer
        model.compile(optimizer, tools.loss(), **arguments)
    seen = Kernels()
    model.fit(
        *data(),
        batch_size=tools.BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[*callbacks, seen],
    )
    return seen.values, model


def names(model):
    return [layer.name for layer in model.layers[-2:]]


def check(run, kernels, model, every=3, num_updates=tools.STEPS):
    """Checks the recorded updates against the movement of the kernels."""
    steps = range(0, num_updates, every)
    expected = [(step, name) for step in steps for name in names(model)]
    found = [(update.step, update.layer) for update in run.updates]
    assert found == expected
    for update in run.updates:
        layer = names(model).index(update.layer)
        before, after = (kernels[update.step + k][layer] for k in (0, 1))
        np.testing.assert_array_equal(update.states, np.sign(before - after))
        if layer == 0:
            assert (update.states[2] == 0).all()  # never active
        assert (update.states != 0).any()
