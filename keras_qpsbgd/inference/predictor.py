"""The class `Predictor`."""

import math
import numbers
import os
import pathlib
import warnings
from typing import Any

import numpy as np

from keras_qpsbgd import bits
from keras_qpsbgd.export import container
from keras_qpsbgd.inference import products
from keras_qpsbgd.inference import program
from keras_qpsbgd.inference import steps
from keras_qpsbgd.inference.products import Workers

KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
EXPECTED = (
    "`path_or_model` must be a Keras model, or the path of a packed, .keras or "
    "HDF5 file."
)
# At most this many input values and samples are computed at a time.
MAX_INPUTS = 2**22
MAX_SAMPLES = 1024


class Predictor:
    """Fast predictions of a binary network on a CPU.

    Predictions need only NumPy. Packed files are also loaded without
    TensorFlow, so they can be used where TensorFlow is not installed. Keras
    models and Keras files require TensorFlow.

    The kernels of binary layers are stored as bits, one to four per weight. If
    the inputs of a layer come from `activation="binary"`, its product is
    computed with XNOR and popcount. Otherwise, inputs are added with their
    signs, without multiplications. The network is converted once, in the
    constructor. Later changes to the model have no effect.

    The predictions are those of `model.predict`:

    - Products of binary inputs and weights are integers and exactly equal.
      Batch normalization, bias and scale before a binary activation become a
      threshold, which gives exactly the same signs. Max pooling between them
      is computed on the signs.
    - Real numbers are computed in float32 and differ by rounding errors. Near
      zero, a rounding error can change the sign that a binary activation
      returns. With mixed precision, the rounding in the layers of the model
      adds to the difference.

    The model must be Sequential, or functional with one input and one output
    per layer, and may contain nested models. These layers are supported:
    `BinaryDense`, `BinaryConv2D`, `Dense`, `Conv2D`, `BatchNormalization`,
    `Activation`, `ReLU`, `Softmax`, `Flatten`, `Reshape`, `MaxPooling2D`,
    `AveragePooling2D`, `GlobalMaxPooling2D`, `GlobalAveragePooling2D`, and
    dropout and noise, which have no effect. The activations can be `binary`,
    `relu`, `hard_tanh`, `tanh`, `sigmoid`, `softmax` and `linear`. Images must
    be `channels_last`.

    Several threads can use the same instance.

    Args:
        path_or_model: Keras model, path of a `.keras` or HDF5 file, or path of
            a file written by `keras_qpsbgd.export.packed`. `~` is expanded.
            Pass the model that you trained, not the result of
            `keras_qpsbgd.export.inference_model`, whose kernels are floats.
        threads: Positive integer. The number of threads that share the samples
            of a batch, and the rows of an image, in binary layers. It does not
            change the results. Defaults to `1`.
        kernels: `"auto"`, `"c"` or `"numpy"`. `"c"` uses the compiled kernels
            of the package, which need a C compiler if you install the package
            from source. `"numpy"` is slower. `"auto"` uses `"c"` if it is
            available, and otherwise `"numpy"`, with a warning that says how
            to get the C kernels. Defaults to `"auto"`.

    Raises:
        ValueError: If an argument is invalid, or if the model has layers that
            are not supported. The message names all of them.
        FileNotFoundError: If the file does not exist.
        ImportError: If the file is a Keras file and TensorFlow is not
            installed.

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
            advice = ""
            if kernels == "c":
                advice = f" There are no C kernels. {_how_to_compile()}"
            raise ValueError(
                f"`kernels` must be one of {('auto', *available)}.{advice} "
                f"Received: kernels={kernels!r}"
            )
        self._kernels = available[0] if kernels == "auto" else kernels
        self._input_shape, self._steps = _program(path_or_model, self._kernels)
        self._workers = Workers(int(threads))
        if kernels == "auto" and self._kernels == "numpy":
            _warn_if_slow(self._steps)

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

        It includes the bits of binary kernels and their padding, real kernels
        as float32, and the values per output, such as scales and thresholds. It
        does not include the configuration of the model.
        """
        return sum(
            array.nbytes for step in self._steps for array in step.arrays
        )

    def predict(self, x: Any) -> np.ndarray:
        """Returns the predictions for a batch.

        Args:
            x: Array of shape `input_shape`. It is converted to float32. It is
                not checked for NaN and infinite values.

        Returns:
            A float32 array.

        Raises:
            ValueError: If `x` has the wrong shape or does not contain numbers.
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
            f"<Predictor kernels={self._description()} threads={self.threads} "
            f"weight_bytes={self.weight_bytes}>{steps}"
        )

    def _description(self):
        """Returns the kernels, and the instruction set that they use."""
        if self._kernels != "c":
            return repr(self._kernels)
        return f"{self._kernels!r} ({products.variants()[0]})"

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
        # A model without layers would return the user's array.
        return bits.to_floats(value) if self._steps else value.copy()


def _warn_if_slow(found):
    """Warns if C kernels would be faster.

    Args:
        found: List of steps. Only products with binary kernels are slower.
    """
    is_slower = any(
        isinstance(step, steps.Product)
        and not isinstance(step.product, products.RealProduct)
        for step in found
    )
    if is_slower:
        warnings.warn(
            "`Predictor` uses NumPy, which is slower, because there are no C "
            f'kernels. {_how_to_compile()} Pass `kernels="numpy"` to '
            "use NumPy without this warning.",
            stacklevel=3,
        )


def _how_to_compile():
    """Returns what to do if there are no C kernels."""
    root = pathlib.Path(__file__).parents[2]
    if (root / "setup.py").is_file():
        return (
            "This process has imported the package from a clone, where they "
            "are not compiled. With a C compiler, `python -m pip install -e "
            f"{root}` compiles them there."
        )
    return (
        "The package was installed without a C compiler. Install a compiler, "
        "and then the package again with the options `--force-reinstall "
        "--no-deps --no-cache-dir` of pip."
    )


def _program(path_or_model, kernels):
    """Returns the `Program` of the argument, after checks."""
    if not isinstance(path_or_model, (str, os.PathLike)):
        return _program_of_model(path_or_model, kernels)
    given = os.fspath(path_or_model)
    received = f"{EXPECTED} Received: path_or_model={given!r}"
    path = os.path.expanduser(given)
    if os.path.isdir(path):
        raise ValueError(f"{received}, which is a folder")
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{received}, which does not exist")
    with open(path, "rb") as file:
        start = file.read(len(container.MAGIC))
        content = start + file.read() if start == container.MAGIC else None
    if content is not None:
        try:
            return program.load(content, kernels)
        except container.InvalidFile as error:
            raise ValueError(
                "`path_or_model` must be a file written by `export.packed`, "
                f"but {error}. Received: path_or_model={given!r}"
            ) from error
    if not path.endswith(KERAS_SUFFIXES):
        raise ValueError(f"{received}, which is another kind of file")
    try:
        from tensorflow import keras
    except ImportError as error:
        raise ImportError(
            "Keras files require TensorFlow. Install it, or use a file written "
            f"by `export.packed`. Received: path_or_model={given!r}"
        ) from error
    model = keras.models.load_model(path, compile=False)
    return _program_of_model(model, kernels)


def _program_of_model(model, kernels):
    """Returns the `Program` of a Keras model. This requires TensorFlow."""
    received = f"Received: path_or_model={model!r}"
    try:
        from tensorflow import keras
    except ImportError as error:
        raise ValueError(
            f"{EXPECTED} {received}, and TensorFlow is missing"
        ) from error
    from keras_qpsbgd import _keras

    if not isinstance(model, keras.Model):
        advice = _keras.advice_on_version(model)
        raise ValueError(f"{EXPECTED} {advice}{received}")
    from keras_qpsbgd.export.description import describe

    return program.build(describe(model), kernels)
