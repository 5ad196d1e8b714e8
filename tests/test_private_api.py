"""The few uses of behaviour that is not public: fails when one goes away."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tools
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import _keras


def test_a_variable_makes_tf_function_trace_again():
    traces = []

    @tf.function
    def function(x):
        traces.append(len(traces))
        if len(traces) == 1:
            _keras.trace_again()
        return x + float(len(traces))

    assert function(tf.constant(0.0)) == 2.0
    assert len(traces) == 2


def test_while_gradient_is_recognised():
    seen = []

    @tf.custom_gradient
    def spy(x):
        def backward(upstream):
            seen.append(_keras.inside_while_gradient())
            return upstream

        return tf.identity(x), backward

    @tf.function
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = spy(x)
            y = tf.while_loop(
                lambda i, y: i < 2, lambda i, y: (i + 1, spy(y)), (0, y)
            )[1]
        return tape.gradient(y, x)

    function(tf.constant(1.0))
    assert set(seen) == {True, False}


def test_loss_scale_optimizer_is_recognised():
    seen = []

    class Spy(keras.optimizers.SGD):
        def apply_gradients(self, *args, **kwargs):
            seen.append(_keras.inside_loss_scale_optimizer())
            return super().apply_gradients(*args, **kwargs)

        def apply(self, grads, trainable_variables=None):
            seen.append(_keras.inside_loss_scale_optimizer())
            return super().apply(grads, trainable_variables)

    wrapper = (
        keras.optimizers.LossScaleOptimizer
        if _keras.KERAS_3
        else keras.mixed_precision.LossScaleOptimizer
    )
    for opt, expected in ((Spy(), False), (wrapper(Spy()), True)):
        seen.clear()
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(opt, "mse", run_eagerly=True)
        model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
        assert seen[0] is expected


def test_optimizers_of_the_model_in_fit():
    """Found through the frame of `train_step`, on the way to every layer."""
    seen = []

    class Spy(keras.layers.Dense):
        def call(self, inputs):
            seen.append(_keras.training_optimizers())
            return super().call(inputs)

    wrapper = (
        keras.optimizers.LossScaleOptimizer
        if _keras.KERAS_3
        else keras.mixed_precision.LossScaleOptimizer
    )
    opt = keras.optimizers.SGD()
    model = keras.Sequential([keras.layers.InputLayer((2,)), Spy(1)])
    model.compile(wrapper(opt), "mse")
    others = [keras.optimizers.SGD() for _ in range(3)]
    model.one, model.more = others[0], {"a": [others[1], others[2]]}
    x, y = np.ones((2, 2)), np.ones((2, 1))
    model(x)
    model.evaluate(x, y, verbose=0)
    assert set(seen) == {None}
    seen.clear()
    model.fit(x, y, verbose=0)
    assert seen
    for found in seen:
        assert found[0] is opt
        assert all(any(o is f for f in found) for o in others)


def test_keras_announces_the_pass_before_the_gradients():
    """`scale_loss` in Keras 3, `compute_gradients` in legacy Keras."""
    order = []

    class Spy(kq.QPSBGD):
        def scale_loss(self, loss):
            order.append("announced")
            return super().scale_loss(loss)

        def compute_gradients(self, loss, var_list, tape=None):
            order.append("announced")
            return super().compute_gradients(loss, var_list, tape)

        def apply(self, grads, trainable_variables=None):
            order.append("applied")
            return super().apply(grads, trainable_variables)

    model = tools.small_model()
    tools.fit(model, Spy(backend="sign"), *tools.data(), run_eagerly=True)
    assert order == ["announced", "applied"] * tools.STEPS
    # Nothing had to go through variables.
    for layer in model.layers[-2:]:
        assert layer.kernel.qubo_accumulator.sums is None


def test_attributes_of_keras_optimizers():
    x, y = tools.data()
    model = tools.small_model()
    opt = tools.optimizer()
    tools.fit(model, opt, x, y)
    assert len(opt._trainable_variables) == 4
    assert int(opt._iterations) == tools.STEPS
    assert opt.variable_key(model.trainable_variables[0]) in opt._binary


def test_finalize_is_called_at_the_end_of_fit():
    called = []

    class Spy(kq.QPSBGD):
        def finalize_variable_values(self, var_list):
            called.append(len(list(var_list)))
            super().finalize_variable_values(var_list)

    tools.fit(tools.small_model(), Spy(backend="sign"), *tools.data())
    assert called == [4]


def test_nothing_warns_in_ordinary_training():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        tools.fit(tools.small_model(), tools.optimizer(), *tools.data())


@pytest.mark.once
def test_other_keras_backends_are_refused():
    import os
    import subprocess
    import sys

    code = (
        "import sys, types\n"
        "import tensorflow as tf\n"
        "from tensorflow import keras\n"
        "keras.config.backend = lambda: 'jax'\n"
        "import keras_qpsbgd\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert done.returncode != 0
    assert "KERAS_BACKEND=tensorflow" in done.stderr
    assert "Received: KERAS_BACKEND=jax" in done.stderr
