"""The memory of a training step is freed with its optimizer."""

import gc
import weakref

import numpy as np
import pytest
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.optimizers import memory

pytestmark = pytest.mark.once


class Freeing(keras.optimizers.SGD):
    def apply(self, *arguments):
        super().apply(*arguments)
        memory.free_with(self)


def entries():
    names = memory._table()
    return {name for name in names if name.startswith("CustomGradient-")}


def train(optimizer, fits=1):
    """Trains a model and returns weak references to optimizer and layer."""
    model = keras.Sequential(
        [keras.layers.InputLayer((5,)), kq.layers.BinaryDense(2)]
    )
    model.compile(optimizer, "mse")
    for batch in range(4, 4 + fits):  # each batch size traces the step again
        model.fit(np.ones((batch, 5)), np.ones((batch, 2)), verbose=0)
    return weakref.ref(optimizer), weakref.ref(model.layers[-1])


def test_tensorflow_never_clears_its_table():
    """This behavior of TensorFlow is not public and causes the leak."""
    before = entries()
    optimizer, _ = train(keras.optimizers.SGD())
    gc.collect()
    assert optimizer() is None
    assert entries() - before


def test_the_training_step_is_freed_with_its_optimizer():
    before = entries()
    optimizer, layer = train(Freeing(), fits=2)
    gc.collect()
    assert optimizer() is None
    assert not entries() - before
    gc.collect()  # objects that the entries kept alive
    assert layer() is None


@pytest.mark.slow
def test_our_optimizers_free_their_steps():
    """A tuner needs this, because it trains many models in one process."""
    optimizer, layer = train(kq.QPSBGD())
    gc.collect()
    assert optimizer() is None
    gc.collect()
    assert layer() is None


def test_step_is_kept_as_long_as_its_optimizer():
    before = entries()
    kept = Freeing()
    train(kept)
    gc.collect()
    assert entries() - before
