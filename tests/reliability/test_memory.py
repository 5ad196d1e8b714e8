"""What TensorFlow keeps of a training step goes with its optimizer."""

import gc
import weakref

import numpy as np
import pytest
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _memory

pytestmark = pytest.mark.once


class Dropping(keras.optimizers.SGD):
    def apply(self, *arguments):
        super().apply(*arguments)
        _memory.free_with(self)


def entries():
    names = _memory._table()
    return {name for name in names if name.startswith("CustomGradient-")}


def train(optimizer, fits=1):
    """Trains a model and returns weak references to what may stay."""
    model = keras.Sequential(
        [keras.layers.InputLayer((5,)), kq.layers.BinaryDense(2)]
    )
    model.compile(optimizer, "mse")
    for batch in range(4, 4 + fits):  # each traces the step again
        model.fit(np.ones((batch, 5)), np.ones((batch, 2)), verbose=0)
    return weakref.ref(optimizer), weakref.ref(model.layers[-1])


def test_a_table_that_is_never_emptied():
    """The behaviour of TensorFlow that this is about; it is not public."""
    before = entries()
    optimizer, layer = train(keras.optimizers.SGD())
    gc.collect()
    assert optimizer() is None
    assert entries() - before and layer() is not None


def test_the_training_step_is_freed_with_its_optimizer():
    before = entries()
    optimizer, layer = train(Dropping(), fits=2)
    gc.collect()
    assert optimizer() is None
    assert not entries() - before
    gc.collect()  # what the entries had kept
    assert layer() is None


@pytest.mark.parametrize(
    "make",
    [kq.QPSBGD, lambda: kq.QPSBGD(backend="ridge"), kq.optimizers.Bop],
    ids=["native", "ridge", "bop"],
)
def test_our_optimizers_free_their_steps(make):
    """As a tuner needs it, which trains many models in one process."""
    optimizer, layer = train(make())
    gc.collect()
    assert optimizer() is None
    gc.collect()
    assert layer() is None


def test_it_is_kept_as_long_as_the_optimizer():
    before = entries()
    kept = Dropping()
    train(kept)
    gc.collect()
    assert entries() - before


def test_others_are_left_alone():
    train(keras.optimizers.SGD())
    before = entries()
    train(Dropping())
    gc.collect()
    assert entries() == before


def test_eager_mode():
    _memory.free_with(object)
