"""Writes training step and prediction of a network as programs of XLA.

    python -m research.cifar10.export FOLDER NAME ...

A name is one of `OPTIMIZERS`, which has the arguments of the optimizers.

The programs are those of `model.train_step` and of the model, compiled with XLA
as on a GPU and with the searches that run on a GPU. Learning rates, the weight
decay of real weights, label smoothing and the threshold of Bop are variables,
which `train.py` sets. It also chooses the initial kernels. `FOLDER/NAME`
contains

- `train.hlo.xz` and `predict.hlo.xz`, the programs;
- `state.npz`, the initial values of the variables and constants that the
  training step uses, in the order of its parameters;
- `program.json`, which tells what they are.
"""

import argparse
import functools
import json
import pathlib
import sys

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.backends.graph import products
from keras_qpsbgd.layers.statistics import mark_of
from keras_qpsbgd.optimizers.base import BinaryOptimizer
from research import code_version
from research.bench.gpu import lowering

IMAGE = (32, 32, 3)
CLASSES = 10
PREDICTED = 1000  # images per call of the prediction


class BinaryConnect(BinaryOptimizer):
    """Trains binary kernels with an optimizer of Keras.

    As with the optimizers of this library, Adam trains all other variables,
    with its own learning rate.

    Args:
        kernels: Optimizer of Keras.
    """

    def __init__(self, kernels):
        super().__init__(0.0, "adam")
        self.kernels = kernels

    @property
    def learning_rate(self):
        return self.kernels.learning_rate

    @property
    def variables(self):
        return super().variables + self.kernels.variables

    def add_state(self, marks):
        self.kernels.build([mark.kernel for mark in marks])

    def apply_binary(self, grads, variables, others, aggregate=True):
        self.kernels.apply(grads, variables)


def adam():
    """BinaryConnect with Adam."""
    return BinaryConnect(keras.optimizers.Adam(0.0))


def sgd(momentum):
    """BinaryConnect with SGD."""
    return BinaryConnect(keras.optimizers.SGD(0.0, momentum))


# Functions and arguments. The learning rates are set in training.
OPTIMIZERS = {
    "adam": (adam, {}),
    "sgd": (sgd, {"momentum": 0.9}),
    "signum": (kq.optimizers.SignSGD, {"momentum": 0.9}),
    "bop": (kq.optimizers.Bop, {}),
    "averaged": (kq.QPSBGD, {"seed": 0}),
    "paper": (kq.QPSBGD, {"rule": "paper", "seed": 0}),
    # Variants of `averaged`, as in `research/experiments/tasks/ablation.py`.
    "no-momentum": (kq.QPSBGD, {"seed": 0, "momentum": 0.0}),
    "one-batch": (kq.QPSBGD, {"seed": 0, "covariance_decay": 0.0}),
    "no-averages": (
        kq.QPSBGD,
        {"seed": 0, "momentum": 0.0, "covariance_decay": 0.0},
    ),
    "kappa-3": (kq.QPSBGD, {"seed": 0, "kappa": 3.0}),
    "kappa-30": (kq.QPSBGD, {"seed": 0, "kappa": 30.0}),
    "no-couplings": (kq.QPSBGD, {"seed": 0, "backend": "sign"}),
    # For networks with real weights alone.
    "float": (functools.partial(keras.optimizers.SGD, 0.0), {"momentum": 0.9}),
}
ACTIVATIONS = ("relu", "binary")
NETWORKS = ("pooled", "vgg", "vgg-binary", "vgg-float")
DTYPES = ("float32", "mixed_bfloat16")
CODE = (
    *code_version.TRAINING,
    "research/cifar10/batches.py",
    "research/cifar10/export.py",
    "research/cifar10/train.py",
)
# Arguments of the optimizer that become variables.
SETTINGS = {"bop": ("threshold",)}


def main(arguments=None):
    """Exports the programs of the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m research.cifar10.export",
        description="Write training steps and predictions as programs of XLA.",
    )
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument(
        "programs",
        nargs="+",
        metavar="NAME",
        choices=OPTIMIZERS,
        help=f"of {', '.join(OPTIMIZERS)}",
    )
    parser.add_argument(
        "--network",
        choices=NETWORKS,
        default="pooled",
        help="vgg: VGG-small, whose first and last layers have real weights. "
        "vgg-binary: VGG-small with binary weights alone. vgg-float: with real "
        "weights alone. pooled: with binary weights alone, and with global "
        "average pooling instead of its large dense layer (default)",
    )
    parser.add_argument(
        "--width",
        type=int,
        default=64,
        metavar="N",
        help="channels of the first two layers (default: %(default)s)",
    )
    parser.add_argument(
        "--activation",
        choices=ACTIVATIONS,
        default="relu",
        help="activation after each convolution (default: %(default)s)",
    )
    parser.add_argument(
        "--batch",
        type=int,
        default=128,
        metavar="N",
        help="images per training step (default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default=DTYPES[0],
        help="dtype policy of the convolutions in training. Predictions always "
        "use float32 (default: %(default)s)",
    )
    arguments = parser.parse_args(arguments)
    products.on_gpu = lambda: True
    for name in arguments.programs:
        size = export(
            arguments.folder / name,
            name,
            arguments.network,
            width=arguments.width,
            activation=arguments.activation,
            batch=arguments.batch,
            dtype=arguments.dtype,
        )
        print(f"{name}: {size:,} bytes", flush=True)
        keras.backend.clear_session()
    return 0


def network(width, activation, kind="pooled", dtype=DTYPES[0]):
    """Returns a network of six convolutions and a dense layer.

    Binary activations come after the pooling. The maximum of binary numbers
    would nearly always be +1. A real last layer has real inputs, as in the
    papers on VGG-small.

    Args:
        width: Integer. Channels of the first two layers. The next two have
            twice as many, and the last two four times.
        activation: String. One of `ACTIVATIONS`.
        kind: String. One of `NETWORKS`. Defaults to `"pooled"`.
        dtype: String. Dtype policy of all layers before the dense layer.
            Defaults to `"float32"`.
    """
    layers = {
        name: functools.partial(getattr(keras.layers, name), dtype=dtype)
        for name in ("Activation", "BatchNormalization", "MaxPooling2D")
    }
    is_float = kind == "vgg-float"
    has_real_ends = is_float or kind == "vgg"
    model = keras.Sequential([keras.layers.InputLayer(IMAGE)])
    for index, factor in enumerate([1, 1, 2, 2, 4, 4]):
        is_real = is_float or (has_real_ends and index == 0)
        create = keras.layers.Conv2D if is_real else kq.layers.BinaryConv2D
        arguments = {"padding": "same", "use_bias": False, "dtype": dtype}
        model.add(create(width * factor, 3, **arguments))
        is_last = index == 5 and activation == "binary" and has_real_ends
        following = [
            layers["BatchNormalization"](momentum=0.9),
            layers["Activation"]("hard_tanh" if is_last else activation),
        ]
        if index % 2:
            place = 0 if activation == "binary" else len(following)
            following.insert(place, layers["MaxPooling2D"]())
        for layer in following:
            model.add(layer)
    if kind == "pooled":
        model.add(keras.layers.GlobalAveragePooling2D())
    else:
        model.add(keras.layers.Flatten())
    if has_real_ends:
        model.add(keras.layers.Dense(CLASSES))
        return model
    model.add(kq.layers.BinaryDense(CLASSES, use_bias=False))
    model.add(keras.layers.BatchNormalization(momentum=0.9))
    return model


def export(folder, optimizer, kind, width, activation, batch, dtype=DTYPES[0]):
    """Exports the programs of one optimizer.

    Args:
        folder: `pathlib.Path` of the programs of this optimizer.
        optimizer: String. One of `OPTIMIZERS`.
        kind, width, activation, dtype: See `network`.
        batch: Integer. Images per training step.

    Returns:
        The size of the files in bytes.
    """
    keras.utils.set_random_seed(0)
    create, arguments = OPTIMIZERS[optimizer]
    rule = create(**arguments)
    settings = {"label_smoothing": _setting("label_smoothing", 0.0)}
    inner = getattr(rule, "real_optimizer", None)
    owners = {"weight_decay": inner or rule}
    owners |= dict.fromkeys(SETTINGS.get(optimizer, ()), rule)
    for name, owner in owners.items():
        settings[name] = _setting(name, getattr(owner, name) or 0.0)
        setattr(owner, name, settings[name])
    model = network(width, activation, kind, dtype)
    model.compile(rule, cross_entropy(settings["label_smoothing"]))
    rule.build(model.trainable_variables)

    @tf.function(jit_compile=True, autograph=False)
    def train(x, y):
        return model.train_step((x, y))

    @tf.function(jit_compile=True, autograph=False)
    def predict(x):
        return model(x, training=False)

    inputs = tf.zeros((batch, *IMAGE)), tf.zeros((batch,), tf.int32)
    train_program, step = lowering.lower(train, *inputs)
    for layer in model.layers:
        layer.dtype_policy = "float32"
    predict_program, prediction = lowering.lower(
        predict, tf.zeros((PREDICTED, *IMAGE))
    )
    state = lowering.State(step)
    kernels = [
        v for v in model.trainable_variables if v.path.endswith("kernel")
    ]
    binary = [v for v in kernels if mark_of(v) is not None]
    record = {
        "code": code_version.version(*CODE),
        "optimizer": type(rule).__name__,
        "arguments": arguments,
        "network": kind,
        "width": width,
        "activation": activation,
        "batch": batch,
        "dtype": dtype,
        "predicted": PREDICTED,
        # Positions in the state.
        "rate": state.position(rule.learning_rate),
        "real_rate": inner and state.position(inner.learning_rate),
        "settings": {k: state.position(v) for k, v in settings.items()},
        "kernels": [state.position(v) for v in kernels],
        "binary": [state.position(v) for v in binary],
        # In the order of the model.
        "weights": [state.position(v) for v in model.weights],
        "metrics": [state.position(v) for v in model.metrics_variables],
        "predict": [state.captured(t) for t in prediction.captured_inputs],
        "paths": state.paths(
            model.variables + rule.variables + model.metrics_variables
        ),
    }
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "train.hlo.xz": train_program,
        "predict.hlo.xz": predict_program,
        "program.json": json.dumps(record).encode(),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    values = state.values()
    for index in record["kernels"]:
        values[index] = np.zeros_like(values[index])  # chosen in training
    np.savez_compressed(folder / "state.npz", *values)
    return sum(path.stat().st_size for path in folder.iterdir())


def _setting(name, value):
    return keras.Variable(value, trainable=False, name=name)


def cross_entropy(label_smoothing):
    """Returns the loss of logits, with label smoothing by a variable."""

    def loss(labels, logits):
        right = keras.losses.sparse_categorical_crossentropy(
            labels, logits, from_logits=True
        )
        every = -tf.reduce_mean(tf.nn.log_softmax(logits), -1)
        return right + label_smoothing * (every - right)

    return loss


if __name__ == "__main__":
    sys.exit(main())
