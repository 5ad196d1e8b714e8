"""Finds the backward passes of a gradient."""

from typing import Any

import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.recording import match
from keras_qpsbgd.recording import recorded_gradient
from keras_qpsbgd.recording import walk
from keras_qpsbgd.recording.passes import UnknownOrigin
from keras_qpsbgd.recording.passes import mark_of
from keras_qpsbgd.recording.passes import pass_of


def calls_of(gradient, mark):
    """Finds the layer calls that a gradient of the kernel was computed from.

    A gradient that was scaled or added to others is a sum of `c_i` times the
    gradient of pass `i`. The row gradients of each call are multiplied by its
    `c_i`, so that the update matches the gradient. Other changes (clipping each
    entry, a mask, a regularizer) have no effect, because the binary gradient
    depends only on rows and row gradients.

    Args:
        gradient: Tensor or `RecordedGradient` that an optimizer received.
        mark: The `BinaryKernel` of the variable.

    Returns:
        List of `ops.LayerCall`.

    Raises:
        UnknownOrigin: If the passes cannot be found.
    """
    if isinstance(gradient, recorded_gradient.RecordedGradient):
        return gradient.layer_calls()
    if isinstance(gradient, tf.IndexedSlices):
        gradient = tf.convert_to_tensor(gradient)
    recording = pass_of(gradient, mark)
    if recording is not None:
        found = [(recording, 1.0)]
    elif tf.is_symbolic_tensor(gradient):
        found = walk.find_passes(gradient, mark)
    else:
        found = match.find_passes(gradient, mark)
    return [
        ops.scale_call(recording.make_call(), coefficient)
        for recording, coefficient in found
    ]


@tf.autograph.experimental.do_not_convert
def with_rows(gradients: Any, variables: Any) -> list:
    """Attaches the rows of the backward passes to gradients.

    `QPSBGD` needs to know the backward passes that the gradient of a binary
    kernel was computed from. This information is lost when a gradient leaves
    the `tf.function` or the branch of a `tf.cond` in which it was computed.
    Call `with_rows` inside that function or branch to keep it. You do not need
    `with_rows` if the same function computes and applies the gradients, or if
    the training loop runs eagerly.

    Clip gradients before you call `with_rows`. Only the optimizers of this
    package accept the result. A `LossScaleOptimizer` or another Keras optimizer
    does not.

    Args:
        gradients: List of gradients, as returned by `tape.gradient`.
        variables: List of variables, in the same order as the gradients.

    Returns:
        List with a `RecordedGradient` for each binary kernel that has a
        gradient. All other gradients are returned unchanged. Recorded gradients
        can be added to and subtracted from each other, and multiplied or
        divided by a number.

    Raises:
        ValueError: If `gradients` and `variables` differ in length, or if the
            backward pass of a gradient is unknown.

    Example:
        ```python
        @tf.function
        def compute_gradients(x, y):
            with tf.GradientTape() as tape:
                loss = loss_function(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            return keras_qpsbgd.with_rows(gradients, model.trainable_variables)

        @tf.function
        def apply_gradients(gradients):
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        ```
    """
    gradients, variables = list(gradients), list(variables)
    if len(gradients) != len(variables):
        raise ValueError(
            "`gradients` and `variables` must have the same length. Received: "
            f"{len(gradients)} gradients and {len(variables)} variables"
        )
    recorded = []
    for gradient, variable in zip(gradients, variables):
        mark = mark_of(variable)
        if mark is not None and gradient is not None:
            try:
                calls = calls_of(gradient, mark)
            except UnknownOrigin as error:
                raise ValueError(
                    "`gradients` must come from backward passes in the "
                    "function that calls `with_rows`. Received: for layer "
                    f"`{mark.name}`, a gradient that {error.reason}"
                ) from error
            if not isinstance(gradient, recorded_gradient.RecordedGradient):
                gradient = recorded_gradient.from_calls(gradient, calls)
        recorded.append(gradient)
    return recorded
