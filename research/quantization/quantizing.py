"""Quantizes a network with all methods and measures each layer.

The methods of Keras are `model.quantize("int4")` and `("gptq")`. What they can
do is checked in `research/tests/test_quantization.py`.

`descent+scales` is the ablation of `qubo`. It has the same line search of the
scales and the same final descent, but solves no QUBO.
"""

import contextlib
import importlib
import time

import numpy as np
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd import backends
from keras_qpsbgd.quantization.numerics.layer import quantize_layer

# The attribute of the package is the function.
_function = importlib.import_module("keras_qpsbgd.quantization.layer_by_layer")

SCALES_ONLY = "descent+scales"
METHODS = ("nearest", "gptq", "descent", SCALES_ONLY, "qubo")
ONCE = {"name": "native", "preset": "once"}
DAMPING = 0.01
# Layers for which Gurobi proves optima: at most 64 variables, and more than
# `native` enumerates.
PROVABLE = (17, 64)
PROOF_COLUMNS = 8
GUROBI = {"name": "gurobi", "work_limit": 1.0}
TOLERANCE = 0.005
KERAS_INT4 = "Keras int4"
KERAS_GPTQ = "Keras gptq"
KERAS_GPTQ_BITS = (2, 3, 4)
KERAS_SAMPLES = 256


class KeepStart(backends.Backend):
    """Returns the state that a problem starts from.

    `first` is the first problem.
    """

    first = None

    def sample(self, qubo, seed):
        del seed
        if self.first is None:
            self.first = qubo
        return qubo.start[None], {}


def quantize(model, calibration, bits, method, seed, observe=None):
    """Quantizes a model.

    Args:
        model: The float model.
        calibration: Inputs.
        bits: Integer.
        method: One of `METHODS`.
        seed: Integer.
        observe: Function (optional) that is called after each layer with its
            `Statistics`.

    Returns:
        A tuple `(quantized, report, seconds)`. `seconds` is the CPU time
        without that of `observe`.
    """
    own = 0.0

    def timed(statistics):
        nonlocal own
        start = time.process_time()
        if observe is not None:
            observe(statistics)
        own += time.process_time() - start

    backend = KeepStart() if method == SCALES_ONLY else ONCE
    start = time.process_time()
    with _observed(timed):
        quantized, report = kq.quantize(
            model,
            calibration,
            bits=bits,
            backend=backend,
            method="qubo" if method == SCALES_ONLY else method,
            seed=seed,
            damping=DAMPING,
            verbose=0,
        )
    return quantized, report, time.process_time() - start - own


@contextlib.contextmanager
def _observed(observe):
    """Calls a function after each layer that `kq.quantize` quantizes."""

    def observed(statistics, **settings):
        # `observe` still needs the statistics.
        result = quantize_layer(statistics, **{**settings, "release": False})
        observe(statistics)
        return result

    _function.quantize_layer = observed
    try:
        yield
    finally:
        _function.quantize_layer = quantize_layer


def layer_rows(report, method):
    """Returns names, sizes and output errors, for a record."""
    return [
        {
            "name": layer.name,
            "type": layer.type,
            "inputs": layer.num_inputs,
            "outputs": layer.num_outputs,
            "errors": {
                # The ablation runs as `qubo` with another backend.
                method if name == "qubo" else name: error
                for name, error in layer.errors.items()
            },
        }
        for layer in report.layers
    ]


def without_qubo(statistics, bits):
    """Quantizes a layer with `descent+scales`.

    Returns:
        A tuple `(error, qubo)` of the output error and the first QUBO that
        `qubo` would solve, with the state to start from.
    """
    backend = KeepStart()
    result = quantize_layer(
        statistics,
        bits=bits,
        method="qubo",
        backend=backend,
        damping=DAMPING,
    )
    return result.errors["qubo"], backend.first


# Proven optima


def is_provable(qubo):
    """Returns whether Gurobi may prove the optima of a layer."""
    low, high = PROVABLE
    return qubo is not None and low <= qubo.num_variables <= high


def prove(qubo, seed):
    """Compares `native` with the optima that Gurobi proves.

    Returns:
        Dictionary for a record: the number of `columns`, of `proven` ones, and
        the relative `excess` of the error of the preset `once` over the proven
        one.
    """
    qubo = qubo.columns(0, min(PROOF_COLUMNS, qubo.num_columns))
    exact = backends.get(GUROBI).solve(qubo, seed)
    proven = np.asarray(exact.info["proven_optimal"], bool)
    found = backends.get(ONCE).solve(qubo, seed)
    ratio = found.energies[proven] / exact.energies[proven] - 1.0
    return {
        "columns": qubo.num_columns,
        "proven": int(proven.sum()),
        "excess": {"once": [float(max(value, 0.0)) for value in ratio]},
    }


# Quantization in Keras


def keras_int4(model):
    """Returns a copy with 4 bits in dense layers, groups of 128 weights."""
    copied = _copy(model)
    copied.quantize("int4")
    return copied


def keras_gptq(model, calibration, bits):
    """Returns a copy of a network of dense layers after Keras's GPTQ.

    Its calibration data are integer tokens. Here a token is the number of an
    image, and an embedding turns it into the image.
    """
    copied = _copy(model)
    images = np.asarray(calibration[:KERAS_SAMPLES])
    lookup = keras.layers.Embedding(*images.shape)
    lookup.build((None, 1))
    lookup.set_weights([images])
    dense = [x for x in copied.layers if isinstance(x, keras.layers.Dense)]
    config = keras.quantizers.GPTQConfig(
        dataset=np.arange(len(images)),
        tokenizer=len,  # required, but not used for integers
        weight_bits=bits,
        num_samples=len(images),
        sequence_length=1,
        # With one group per output, Keras 3.15.1 raises a `ValueError` for
        # layers with more than 128 inputs.
        group_size=128,
        activation_order=True,
        quantization_layer_structure={
            "pre_block_layers": [lookup],
            "sequential_blocks": dense,
        },
    )
    copied.quantize("gptq", config=config)
    return copied


def _copy(model):
    copied = keras.models.clone_model(model)
    copied.set_weights(model.get_weights())
    return copied
