"""The version of Keras, and smaller differences between the versions."""

import importlib.metadata
import os
import sys

import tensorflow as tf
from tensorflow import keras
from tensorflow.python.ops import control_flow_util

from keras_qpsbgd.qubo import ops


def is_keras_3(version):
    """Returns whether a version is Keras 3 or later, not legacy Keras."""
    return int(version.partition(".")[0]) >= 3


def version():
    """Returns the Keras version, in legacy Keras from its metadata."""
    return getattr(keras, "__version__", None) or importlib.metadata.version(
        "tf_keras"
    )


def _check_backend(name):
    if name != "tensorflow":
        raise ImportError(
            "keras_qpsbgd requires the TensorFlow backend of Keras. Set "
            "`KERAS_BACKEND=tensorflow` before you import Keras. Received: "
            f"KERAS_BACKEND={name}"
        )


try:
    # Old copies of Keras 2 inside TensorFlow have no `__version__`.
    KERAS_3 = is_keras_3(getattr(keras, "__version__", "2"))
except ImportError:
    # Keras does not name a backend that is not installed.
    _check_backend(os.environ.get("KERAS_BACKEND", "tensorflow"))
    raise
if KERAS_3:
    _check_backend(keras.config.backend())

if not KERAS_3:
    # The networks of the paper need a hard tanh, which legacy Keras lacks.
    keras.utils.get_custom_objects().setdefault("hard_tanh", ops.hard_tanh)

# The argument of `Layer.add_weight` that keeps a weight in its own precision.
AUTOCAST = "autocast" if KERAS_3 else "experimental_autocast"

# The package with the classes of the version that this process does not use.
OTHER_PACKAGE = "tf_keras" if KERAS_3 else "keras"

register = keras.utils.register_keras_serializable("keras_qpsbgd")


def advice_on_version(value):
    """Returns sentences for an error about an object of the other version.

    Returns:
        String. Advice that ends with a space, or `""` if the object does not
        belong to the other version of Keras.
    """
    modules = [cls.__module__ for cls in type(value).__mro__]
    if OTHER_PACKAGE not in [m.partition(".")[0] for m in modules]:
        return ""
    if KERAS_3:
        return (
            "It belongs to legacy Keras. Set the environment variable "
            "`TF_USE_LEGACY_KERAS=1` before you import TensorFlow, or create "
            "it with `from tensorflow import keras`, which is Keras 3 here. "
        )
    return (
        "It belongs to Keras 3. Remove the environment variable "
        "`TF_USE_LEGACY_KERAS`, or create it with `from tensorflow import "
        "keras`, which is legacy Keras here. "
    )


def register_activation(function):
    """Makes a function available as an activation by its name.

    Models that use the function can be saved. If Keras already has a function
    with this name, that function takes precedence.
    """
    # A custom object with a short name would replace all equal strings in the
    # configurations of HDF5 files, such as `training_weights="binary"`. Both
    # versions of Keras also use the functions of their own module.
    name = function.__name__
    module = sys.modules[keras.activations.get.__module__]
    is_new = vars(module).setdefault(name, function) is function
    if KERAS_3:
        vars(module).get("ALL_OBJECTS_DICT", {}).setdefault(name, function)
    elif is_new:
        function.__module__ = module.__name__
    return function


def inside_xla():
    """Returns whether a function compiled with XLA is being traced."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return control_flow_util.GraphOrParentsInXlaContext(graph)
