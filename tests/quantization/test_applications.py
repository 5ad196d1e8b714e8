"""`kq.quantize` on networks of `keras.applications`."""

import numpy as np
import pytest
import quantizing
from tensorflow import keras

import keras_qpsbgd as kq
from keras_qpsbgd.quantization import kinds
from keras_qpsbgd.quantization import targets

# Networks with depthwise, separable and grouped convolutions, and the size of
# an image that leaves their last layers a pixel. The others have no other kinds
# of layers and take minutes: python -m pytest -m exhaustive
NETWORKS = {
    "MobileNetV2": (32, 9.5),
    "MobileNetV3Small": (32, 8.0),
    "RegNetX002": (32, 8.0),  # only in legacy Keras
    "ConvNeXtTiny": (32, 8.0),
    "InceptionV3": (75, 8.0),
    "NASNetMobile": (32, 8.0),
    "ResNet50": (32, 8.0),
    "Xception": (71, 8.0),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.slow
            if place in (0, 2)
            else pytest.mark.exhaustive,
        )
        for place, name in enumerate(NETWORKS)
    ],
)
def test_applications(name):
    if not hasattr(keras.applications, name):
        pytest.skip("this version of Keras does not have it")
    keras.utils.set_random_seed(0)
    size, compression = NETWORKS[name]
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(size, size, 3), classes=10
    )
    images = 255 * quantizing.data(4, size, size, 3)
    with pytest.warns(UserWarning, match="`calibration` is too small"):
        quantized, report = kq.quantize(
            model, images, bits=2, method="nearest", seed=0, verbose=0
        )
    outputs = quantizing.outputs(quantized, images)[0]
    assert outputs.shape == (4, 10) and np.isfinite(outputs).all()
    assert report.compression > compression

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
