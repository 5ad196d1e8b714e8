"""Thresholds that replace all operations before a binary activation.

Behind a product, Keras computes scale, bias, batch normalization and
activations before the sign. Each of them is a monotone function of one number,
also with its rounding errors. So the result is +1 from some number on, or up to
some number. This number is found by bisection over all floats, with the
functions of Keras, and the comparison gives exactly the same signs.
"""

import numpy as np

# The largest product. Larger ones would overflow on the way.
LARGEST = np.float32(2.0**64)


def find(function, outputs):
    """Returns the thresholds of monotone functions, one per output.

    Args:
        function: Function that takes a float32 array of shape `(outputs,)` and
            returns a Boolean one.
        outputs: Integer.

    Returns:
        A tuple `(signs, limits)` of float32 arrays. `function(x)` is equal to
        `signs * x >= limits`. The signs are 1 and -1.
    """
    ends = np.full(outputs, LARGEST.view(np.int32), np.int64)
    at_low, at_high = function(_floats(-ends)), function(_floats(ends))
    signs = np.where(at_low & ~at_high, -1, 1).astype(np.float32)
    low, high = -ends, ends
    while (high - low > 1).any():
        middle = (low + high) // 2
        found = function(signs * _floats(middle))
        low, high = np.where(found, low, middle), np.where(found, middle, high)
    limits = _floats(high)
    limits[at_low & at_high] = -np.inf
    limits[~at_low & ~at_high] = np.inf
    return signs, limits


def _floats(keys):
    """Returns the floats at places in their order, where zero is at 0."""
    sizes = np.abs(keys).astype(np.int32).view(np.float32)
    return np.where(keys < 0, -sizes, sizes)
