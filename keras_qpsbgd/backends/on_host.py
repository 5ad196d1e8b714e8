"""Calls a host backend from inside a TensorFlow graph."""

import tensorflow as tf

from keras_qpsbgd.backends.backend import SolverError
from keras_qpsbgd.qubo import Qubo


class HostCall:
    """Solves problems on the host and remembers what went wrong.

    TensorFlow turns an exception in a host callback into an error of its own,
    so the callback returns a message instead and keeps the exception.

    Args:
        backend: a `Backend`.
        fallback: the `Backend` that solves what `backend` failed to, or `None`.
        on_error: weak reference to a function that is called with each
            exception.
    """

    def __init__(self, backend, fallback, on_error):
        self.backend = backend
        self.fallback = fallback
        self.on_error = on_error

    def __call__(self, problem, seed, name):
        """States (n, m) and a message, empty if all went well.

        On failure the states are zero, so that nothing moves.

        Args:
            problem: an `ops.Problem`.
            seed: int32 tensor of shape (2,).
            name: name of the layer, for messages.
        """
        if problem.couplings is None:
            names = ("normalized_rows", "row_gradients", "fields", "offset")
        else:
            names = ("couplings", "fields", "offset")

        def callback(seed, *arrays):
            given = dict(zip(names, arrays))
            qubo = Qubo(given.pop("couplings", None), **given)
            return self._solve(qubo, _fold(seed), name)

        arrays = [getattr(problem, name) for name in names]
        states, message = tf.numpy_function(
            callback, [seed, *arrays], (tf.float32, tf.string)
        )
        states.set_shape(problem.fields.shape)
        message.set_shape(())
        return states, message

    def _solve(self, qubo, seed, name):
        try:
            return self._attempt(self.backend, qubo, seed), b""
        except Exception as error:  # solvers may raise anything
            self._tell(error)
            message = _message(name, self.backend, error)
        if self.fallback is not None:
            try:
                return self._attempt(self.fallback, qubo, seed), b""
            except Exception as error:
                self._tell(error)
                message += "; " + _message(name, self.fallback, error)
        return (0 * qubo.fields).astype("float32"), message.encode()

    def _tell(self, error):
        on_error = self.on_error()
        if on_error is not None:
            on_error(error)

    @staticmethod
    def _attempt(backend, qubo, seed):
        return backend.solve(qubo, seed).states.astype("float32")


def _message(name, backend, error):
    kind = "" if isinstance(error, SolverError) else f"{type(error).__name__}: "
    return (
        f"SolverError: the backend `{backend.name}` failed on layer "
        f"`{name}`: {kind}{error}"
    )


def _fold(seed):
    """One non-negative int from the two of a TensorFlow seed."""
    first, second = (int(part) for part in seed)
    return (first * 1_000_003 + second) % (2**31 - 1)
