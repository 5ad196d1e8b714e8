import numpy as np
import pytest
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras
from keras_qpsbgd import recording


def rich_model(seed=1):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [
            keras.layers.InputLayer((6, 6, 1)),
            kq.layers.BinaryConv2D(3, 3, activation="hard_tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            kq.layers.BinaryDense(3, output_scale=None),
        ]
    )


def images():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(24, 6, 6, 1)).astype("float32")
    return x, rng.integers(3, size=(24,))


def run(model, x, y):
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)


@pytest.mark.parametrize("seed", [3, None])
def test_save_load_continue(tmp_path, seed):
    """To the bit, seed, schedule and inner optimizer included."""
    x, y = images()
    opt = kq.QPSBGD(
        keras.optimizers.schedules.CosineDecay(0.05, 20),
        {"name": "native", "preset": "accurate"},
        real_optimizer=keras.optimizers.Adam(
            keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.9)
        ),
        seed=seed,
    )
    model = rich_model()
    model.compile(opt, tools.loss())
    run(model, x, y)
    path = str(tmp_path / "model.keras")
    model.save(path)
    loaded = keras.models.load_model(path)
    assert isinstance(loaded.layers[0], kq.layers.BinaryConv2D)
    assert isinstance(loaded.optimizer, kq.QPSBGD)
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    run(model, x, y)
    run(loaded, x, y)
    tools.assert_equal(loaded.get_weights(), model.get_weights())
    tools.assert_equal(
        [np.array(v) for v in loaded.optimizer.variables],
        [np.array(v) for v in model.optimizer.variables],
    )


@pytest.mark.skipif(
    not _keras.KERAS_3, reason="legacy Keras does not accumulate"
)
def test_partial_accumulation_is_dropped_on_load(tmp_path):
    x, y = tools.data()
    model = tools.small_model()
    model.compile(tools.optimizer(gradient_accumulation_steps=2), tools.loss())
    for begin in (0, 6, 12):
        model.train_on_batch(x[begin : begin + 6], y[begin : begin + 6])
    path = str(tmp_path / "model.keras")
    model.save(path)
    with pytest.warns(UserWarning, match="middle of a gradient accumulation"):
        loaded = keras.models.load_model(path)
    opt = loaded.optimizer
    assert int(opt._iterations) == int(opt.real_optimizer._iterations) == 2
    before = tools.kernels(loaded)
    loaded.train_on_batch(x[:6], y[:6])
    tools.assert_equal(tools.kernels(loaded), before)
    loaded.train_on_batch(x[6:12], y[6:12])
    assert not np.array_equal(tools.kernels(loaded)[0], before[0])


@pytest.mark.parametrize(
    "layer",
    [
        kq.layers.BinaryDense(3, activation="hard_tanh", output_scale=None),
        kq.layers.BinaryConv2D(2, (3, 2), strides=2, padding="same"),
    ],
)
def test_layer_config(layer):
    config = layer.get_config()
    again = type(layer).from_config(config)
    assert again.get_config() == config
    revived = keras.layers.deserialize(keras.layers.serialize(layer))
    assert type(revived) is type(layer)


def test_clone_model_and_functional():
    inputs = keras.Input((5,))
    outputs = kq.layers.BinaryDense(3)(
        kq.layers.BinaryDense(4, activation="hard_tanh")(inputs)
    )
    model = keras.Model(inputs, outputs)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    x = np.random.default_rng(0).normal(size=(4, 5)).astype("float32")
    np.testing.assert_array_equal(
        clone.predict(x, verbose=0), model.predict(x, verbose=0)
    )
    marks = {
        id(recording.mark_of(layer.kernel))
        for layer in [*model.layers[1:], *clone.layers[1:]]
    }
    assert len(marks) == 4


def test_weights_move_between_dense_and_binary_dense():
    dense, binary = keras.layers.Dense(3), kq.layers.BinaryDense(3)
    for layer in (dense, binary):
        layer.build((None, 5))
    binary.set_weights(dense.get_weights())
    np.testing.assert_array_equal(
        binary.binary_kernel, np.sign(dense.get_weights()[0])
    )
