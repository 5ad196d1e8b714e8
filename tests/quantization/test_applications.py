"""`kq.quantize` on the architectures of `keras.applications`."""

import inspect

import numpy as np
import pytest
import quantizing
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.quantization import kinds
from keras_qpsbgd.quantization import targets

# The smallest network of each module of `keras.applications`, and the size of
# the smallest image that it takes, or that leaves its last layers a pixel. The
# other networks of a module come from the same code with other numbers.
SMALLEST = {
    "ConvNeXtTiny": 32,
    "DenseNet121": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 32,
    "InceptionV3": 75,
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "NASNetMobile": 32,
    "RegNetX002": 32,  # only in legacy Keras, with grouped convolutions
    "ResNet50": 32,
    "ResNet50V2": 32,
    "ResNetRS50": 32,  # only in legacy Keras
    "VGG16": 32,
    "Xception": 71,
}
# In modules of their own. The second one has the blocks of Inception and takes
# minutes.
SAME_CODE = {"VGG19": "VGG16", "InceptionResNetV2": "InceptionV3"}
# A floor for each network would only repeat its ratio of kernels to others.
COMPRESSION = {"MobileNetV2": 9.5}


def networks():
    return {
        name: value
        for name, value in vars(keras.applications).items()
        if inspect.isfunction(value)
    }


def test_every_network_is_covered():
    found = networks()
    covered = {
        found[name].__module__
        for name in [*SMALLEST, *SAME_CODE]
        if name in found
    }
    assert {function.__module__ for function in found.values()} == covered


# The others take minutes: python -m pytest -m exhaustive
SLOW = ("MobileNetV2", "MobileNetV3Small", "RegNetX002")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.slow if name in SLOW else pytest.mark.exhaustive,
        )
        for name in SMALLEST
    ],
)
def test_applications(name):
    if name not in networks():
        pytest.skip("this version of Keras does not have it")
    keras.utils.set_random_seed(0)
    size = SMALLEST[name]
    model = networks()[name](
        weights=None, input_shape=(size, size, 3), classes=10
    )
    images = 255 * quantizing.data(4, size, size, 3)
    with pytest.warns(UserWarning, match="`calibration` is too small"):
        quantized, report = kq.quantize(
            model, images, bits=2, method="nearest", seed=0, verbose=0
        )
    outputs = quantizing.outputs(quantized, images)[0]
    assert outputs.shape == (4, 10) and np.isfinite(outputs).all()
    assert report.compression > COMPRESSION.get(name, 8.0)

    # All products are quantized, and the rest has a reason.
    done = {layer.name for layer in report.layers}
    reasons = {layer.name: layer.reason for layer in report.unchanged}
    copies = dict(targets.walk(quantized))
    for name, layer in targets.walk(model):
        kernels = kinds.kernels_of(layer)
        assert {f"{name}/{k}" if k else name for k in kernels} <= done
        if copies[name].weights and not kernels:  # not folded
            assert reasons[name]
            # Nothing that multiplies rows by a matrix is left out.
            assert all(len(weight.shape) < 2 for weight in layer.weights)
    keras.backend.clear_session()
