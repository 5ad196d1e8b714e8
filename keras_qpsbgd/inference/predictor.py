"""The class `Predictor`."""

import math
import numbers
import os
from typing import Any

import numpy as np
from tensorflow import keras

from keras_qpsbgd import _keras
from keras_qpsbgd import export
from keras_qpsbgd.export import container
from keras_qpsbgd.inference import bits
from keras_qpsbgd.inference import products
from keras_qpsbgd.inference import program
from keras_qpsbgd.inference.workers import Workers

KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
EXPECTED = (
    "`path_or_model` must be a Keras model, or the path of a packed, .keras or "
    "HDF5 file."
)
# Number of inputs, in floats, and of samples that are computed at a time.
MAX_INPUTS = 2**22
MAX_SAMPLES = 1024


class Predictor:
    """Fast predictions of a binary network on a CPU.

    The prediction itself does not use TensorFlow, but importing the package
    does.

    The kernels of binary layers are stored as bits, one to four per weight. If
    the inputs of a layer come from `activation="binary"`, its product is
    computed with XNOR and popcount. Otherwise, signed inputs are added without
    a multiplication. The network is converted once, in the constructor. Later
    changes of the model have no effect.

    The predictions are those of `model.predict`:

    - Products of binary inputs and weights are integers, exactly equal. Batch
      normalization, bias and scale before a binary activation become a
      threshold, which gives exactly the same signs.
    - Real numbers are computed in float32 and differ by rounding errors. A
      binary activation turns a rounding error at zero into another sign. A
      model with mixed precision also differs by the rounding of its layers.

    Supported are Sequential models and functional models in which each layer
    has one input and one output, also nested, with these layers: `BinaryDense`,
    `BinaryConv2D`, `Dense`, `Conv2D`, `BatchNormalization`, `Activation`,
    `ReLU`, `Softmax`, `Flatten`, `Reshape`, `MaxPooling2D`,
    `AveragePooling2D`, `GlobalMaxPooling2D`, `GlobalAveragePooling2D`, and
    dropout and noise, which have no effect. Activations are `binary`, `relu`,
    `hard_tanh`, `tanh`, `sigmoid`, `softmax` and `linear`. Images are
    `channels_last`.

    An instance can be called from several threads.

    Args:
        path_or_model: Keras model, path of a `.keras` or HDF5 file, or path of
            a file of `keras_qpsbgd.export.packed`. `~` is expanded. Pass the
            model that you trained, not the result of
            `keras_qpsbgd.export.inference_model`, whose kernels are floats.
        threads: Positive integer. The number of threads that share the samples
            of a batch in binary layers. They do not change the results.
            Defaults to `1`.
        kernels: `"auto"`, `"c"` or `"numpy"`. `"c"` are the compiled kernels of
            the package. They need a C compiler when the package is installed
            from source. `"numpy"` is slower. `"auto"` uses `"c"` if they are
            installed. Defaults to `"auto"`.

    Raises:
        ValueError: If an argument is invalid, or the model has layers that are
            not supported. The message names all of them.
        FileNotFoundError: If the file does not exist.

    Example:
        ```python
        import numpy as np
        from tensorflow import keras

        import keras_qpsbgd as kq

        model = keras.Sequential(
            [
                keras.layers.InputLayer((784,)),
                kq.layers.BinaryDense(1024, activation="binary"),
                kq.layers.BinaryDense(10),
            ]
        )
        predictor = kq.inference.Predictor(model)
        print(predictor.predict(np.ones((2, 784))).shape)  # (2, 10)
        ```
    """

    def __init__(
        self,
        path_or_model: Any,
        threads: int = 1,
        kernels: str = "auto",
    ) -> None:
        is_integer = isinstance(threads, numbers.Integral)
        if not is_integer or isinstance(threads, bool) or threads < 1:
            raise ValueError(
                "`threads` must be a positive integer. "
                f"Received: threads={threads!r}"
            )
        available = products.available()
        if kernels not in ("auto", *available):
            reason = "the C kernels are not installed. "
            raise ValueError(
                f"`kernels` must be one of {('auto', *available)}"
                f"{': ' + reason if kernels == 'c' else '. '}"
                f"Received: kernels={kernels!r}"
            )
        model = _model(path_or_model)
        self._kernels = available[0] if kernels == "auto" else kernels
        self._steps = program.build(model, self._kernels)
        self._input_shape = tuple(model.input_shape)
        self._workers = Workers(int(threads))

    @property
    def input_shape(self) -> tuple[int | None, ...]:
        """The shape of the inputs. `None` stands for any size."""
        return self._input_shape

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self._workers.threads

    @property
    def kernels(self) -> str:
        """The kernels in use, `"c"` or `"numpy"`."""
        return self._kernels

    @property
    def weight_bytes(self) -> int:
        """The memory of all weights in bytes.

        It counts the bits of binary kernels and their padding, real kernels as
        float32, and the numbers per output, such as scales and thresholds. The
        configuration of the model does not count.
        """
        return sum(
            array.nbytes for step in self._steps for array in step.arrays
        )

    def predict(self, x: Any) -> np.ndarray:
        """Returns the predictions for a batch.

        Args:
            x: Array of shape `input_shape`. It is converted to float32. NaN and
                infinite inputs are not checked.

        Returns:
            A float32 array.

        Raises:
            ValueError: If `x` has another shape or no numbers.
        """
        x = self._checked(x)
        if len(x) == 0:
            empty = np.zeros((1, *x.shape[1:]), np.float32)
            return self._run(empty)[:0]
        per_sample = max(1, math.prod(x.shape[1:]))
        step = max(1, min(MAX_SAMPLES, MAX_INPUTS // per_sample))
        if len(x) <= step:
            return self._run(x)
        return np.concatenate(
            [self._run(x[i : i + step]) for i in range(0, len(x), step)]
        )

    def __call__(self, x: Any) -> np.ndarray:
        """Returns `predict(x)`."""
        return self.predict(x)

    def __repr__(self) -> str:
        steps = "".join(f"\n  {step}" for step in self._steps)
        return (
            f"<Predictor kernels={self.kernels!r} threads={self.threads} "
            f"weight_bytes={self.weight_bytes}>{steps}"
        )

    def _checked(self, x):
        x = np.asarray(x)
        if x.dtype.kind not in "fiub":
            raise ValueError(
                "`x` must be an array of real numbers. "
                f"Received: dtype={x.dtype}"
            )
        expected = self._input_shape
        matches = x.ndim == len(expected) and all(
            size is None or size == found
            for size, found in zip(expected[1:], x.shape[1:])
        )
        if not matches:
            raise ValueError(
                f"`x` must have the shape {('batch', *expected[1:])}. "
                f"Received: x.shape={x.shape}"
            )
        return np.ascontiguousarray(x, np.float32)

    def _run(self, value):
        for step in self._steps:
            value = step(value, self._workers)
        # A model without layers would return the array of the user.
        return bits.to_floats(value) if self._steps else value.copy()


def _loaded(given):
    """Returns the Keras model of a file."""
    received = f"{EXPECTED} Received: path_or_model={given!r}"
    path = os.path.expanduser(given)
    if os.path.isdir(path):
        raise ValueError(f"{received}, which is a folder")
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{received}, which does not exist")
    with open(path, "rb") as file:
        is_packed = file.read(len(container.MAGIC)) == container.MAGIC
    if is_packed:
        return export.load_packed(path)
    if path.endswith(KERAS_SUFFIXES):
        return keras.models.load_model(path, compile=False)
    raise ValueError(f"{received}, which is another kind of file")


def _model(path_or_model):
    """Returns the Keras model of the argument, after checks."""
    model = path_or_model
    if isinstance(model, (str, os.PathLike)):
        model = _loaded(os.fspath(model))
    if not isinstance(model, keras.Model):
        raise ValueError(f"{EXPECTED} Received: path_or_model={model!r}")
    if not _keras.is_graph_of_layers(model):
        raise ValueError(
            "`path_or_model` must be a Sequential or functional model. "
            f"Received: a model of the class {type(model).__name__}"
        )
    try:
        shape = model.input_shape if model.built else None
    except AttributeError:  # Keras has no shape before the first call
        shape = None
    if shape is None:
        raise ValueError(
            "`path_or_model` must be a model that has been built. Call it on a "
            f"batch first. Received: model with the name {model.name!r}"
        )
    if not isinstance(shape, tuple) or isinstance(shape[0], tuple):
        raise ValueError(
            "`path_or_model` must be a model with one input. "
            f"Received: input_shape={shape}"
        )
    return model
