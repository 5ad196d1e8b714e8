"""The quantization of Keras: `model.quantize("int4")` and `("gptq")`.

What it can do is checked in `research/tests/test_quantization.py`.
"""

import numpy as np
from tensorflow import keras

INT4 = "Keras int4"
GPTQ = "Keras gptq"
GPTQ_BITS = (2, 3, 4)
SAMPLES = 256


def int4(model):
    """Returns a copy with 4 bits in dense layers, groups of 128 weights."""
    copied = _copy(model)
    copied.quantize("int4")
    return copied


def gptq(model, calibration, bits):
    """Returns a copy of a network of dense layers after Keras's GPTQ.

    Its calibration data are integer tokens. Here a token is the number of an
    image, and an embedding turns it into the image.
    """
    copied = _copy(model)
    images = np.asarray(calibration[:SAMPLES])
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
