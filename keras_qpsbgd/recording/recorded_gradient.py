"""Gradients that carry their rows from one `tf.function` to another."""

import tensorflow as tf

from keras_qpsbgd import ops


class RecordedCall(tf.experimental.ExtensionType):
    """An `ops.LayerCall` that can be passed to and from a `tf.function`."""

    rows: tf.Tensor
    row_gradients: tf.Tensor
    kept: tf.Tensor
    batch: tf.Tensor
    output_factor: tf.Tensor


class RecordedGradient(tf.experimental.ExtensionType):
    """The gradient of a binary kernel together with its rows.

    `keras_qpsbgd.with_rows` returns it, and the optimizers of this package
    accept it in place of the gradient. Recorded gradients can be added to and
    subtracted from each other, and multiplied or divided by a number.
    """

    gradient: tf.Tensor
    calls: tuple[RecordedCall, ...]

    def layer_calls(self):
        """Returns the calls as a list of `ops.LayerCall`."""
        return [
            ops.LayerCall(
                call.rows,
                call.row_gradients,
                call.kept,
                call.batch,
                call.output_factor,
            )
            for call in self.calls
        ]

    def __add__(self, other):
        if isinstance(other, (int, float)) and other == 0:
            return self  # the initial value of `sum`
        if not isinstance(other, RecordedGradient):
            return NotImplemented
        return RecordedGradient(
            self.gradient + other.gradient, self.calls + other.calls
        )

    __radd__ = __add__

    def __neg__(self):
        return self * -1.0

    def __sub__(self, other):
        return self + -other

    def __mul__(self, factor):
        factor = tf.convert_to_tensor(factor, tf.float32)
        if factor.shape.num_elements() != 1:
            raise ValueError(
                "A `RecordedGradient` can only be multiplied by a number. "
                f"Received: a factor of shape {factor.shape}"
            )
        factor = tf.reshape(factor, ())
        return from_calls(
            self.gradient * factor,
            [ops.scale_call(call, factor) for call in self.layer_calls()],
        )

    __rmul__ = __mul__

    def __truediv__(self, divisor):
        return self * (1.0 / divisor)

    def __repr__(self):
        return (
            f"RecordedGradient(shape={self.gradient.shape}, "
            f"calls={len(self.calls)})"
        )


def from_calls(gradient, calls):
    """Creates a `RecordedGradient` from a list of `ops.LayerCall`."""
    recorded_calls = []
    for call in calls:
        gradients = tf.cast(call.row_gradients, tf.float32)
        recorded_calls.append(
            RecordedCall(
                tf.cast(call.rows, tf.float32),
                gradients,
                ops.kept_rows(gradients, call.kept),
                tf.cast(call.batch, tf.float32),
                tf.convert_to_tensor(call.output_factor, tf.float32),
            )
        )
    return RecordedGradient(gradient, tuple(recorded_calls))
