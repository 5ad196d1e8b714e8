"""From a gradient to the backward passes that it came from."""

from typing import Any

import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.recording import carried
from keras_qpsbgd.recording import match
from keras_qpsbgd.recording import walk
from keras_qpsbgd.recording.passes import UnknownOrigin
from keras_qpsbgd.recording.passes import mark_of
from keras_qpsbgd.recording.passes import pass_of


def calls_of(gradient, mark):
    """The calls of the layer that a gradient of its kernel came from.

    A gradient that was scaled, or added to others, is a sum of `c_i` times the
    gradient of pass `i`. The row gradients of each call are multiplied by its
    `c_i`, so that the update belongs to the gradient as it is. Other changes
    (clipping each entry, a mask, a regularizer) are left out: the binary
    gradient is made of rows and row gradients alone.

    Args:
        gradient: what an optimizer received: a tensor or a `RecordedGradient`.
        mark: the `BinaryKernel` of the variable.

    Returns:
        List of `ops.LayerCall`.

    Raises:
        UnknownOrigin: if the passes cannot be found.
    """
    if isinstance(gradient, carried.RecordedGradient):
        return gradient.layer_calls()
    if isinstance(gradient, tf.IndexedSlices):
        gradient = tf.convert_to_tensor(gradient)
    one_pass = pass_of(gradient, mark)
    if one_pass is not None:
        found = [(one_pass, 1.0)]
    elif tf.is_symbolic_tensor(gradient):
        found = walk.passes(gradient, mark)
    else:
        found = match.passes(gradient, mark)
    return [
        ops.scale_call(one_pass.make_call(), coefficient)
        for one_pass, coefficient in found
    ]


@tf.autograph.experimental.do_not_convert
def with_rows(gradients: Any, variables: Any) -> list:
    """Attaches to gradients the rows that they came from.

    A gradient that leaves the `tf.function` in which it was computed, or the
    branch of a `tf.cond`, no longer shows which backward passes it came from.
    `with_rows` attaches what `QPSBGD` needs of them to the gradients of binary
    kernels. Gradients of other variables stay as they are. You do not need it
    if gradients are computed and applied in the same function, or eagerly.

    Clip gradients before you call `with_rows`. The result is for optimizers of
    this package; a `LossScaleOptimizer` or another Keras optimizer does not
    take it.

    Args:
        gradients: list of gradients, as `tape.gradient` returns it.
        variables: list of the variables that they belong to.

    Returns:
        List with a `RecordedGradient` for every binary kernel that has a
        gradient. They can be added, subtracted, and multiplied or divided by a
        number.

    Raises:
        ValueError: if the backward pass of a gradient is not known here.

    Example:

    ```python
    @tf.function
    def gradients(x, y):
        with tf.GradientTape() as tape:
            loss = loss_function(y, model(x, training=True))
        found = tape.gradient(loss, model.trainable_variables)
        return kq.with_rows(found, model.trainable_variables)

    @tf.function
    def update(found):
        optimizer.apply_gradients(zip(found, model.trainable_variables))
    ```
    """
    gradients, variables = list(gradients), list(variables)
    if len(gradients) != len(variables):
        raise ValueError(
            "`gradients` and `variables` must have the same length. Received: "
            f"{len(gradients)} gradients and {len(variables)} variables"
        )
    packed = []
    for gradient, variable in zip(gradients, variables):
        mark = mark_of(variable)
        if mark is not None and gradient is not None:
            try:
                calls = calls_of(gradient, mark)
            except UnknownOrigin as error:
                raise ValueError(
                    "`gradients` must come from backward passes in the "
                    "function that calls `with_rows`. Received: for layer "
                    f"`{mark.name}` a gradient that {error.reason}"
                ) from error
            if not isinstance(gradient, carried.RecordedGradient):
                gradient = carried.recorded(gradient, calls)
        packed.append(gradient)
    return packed
