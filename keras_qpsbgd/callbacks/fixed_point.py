"""Callback that detects whether training has converged."""

import warnings
from typing import Any

from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd.analysis import convergence
from keras_qpsbgd.analysis.full_gradient import FullGradient
from keras_qpsbgd.analysis.full_gradient import find_qpsbgd
from keras_qpsbgd.backends.base import BackendLike
from keras_qpsbgd.backends.errors import check_number


class FixedPoint(keras.callbacks.Callback):
    """Callback that measures how much of a network has converged.

    At the end of an epoch, it computes the gradient on the given data and
    counts the columns of binary layers that are at a fixed point, where a step
    along the negative binary gradient would not change the sign of any weight.
    See `keras_qpsbgd.analysis.fixed_points` for the rule. The callback logs

    - `fixed_point`, the fraction of all columns at a fixed point,
    - `<layer>_fixed_point`, the same for each layer.

    Both appear in `History`, and in the logs of the callbacks that follow this
    one in the list. Epochs without a measurement log `nan`, so that all logs
    have the same length.

    A measurement takes one forward and backward pass over the data and solves
    one QUBO per layer. It changes no variable, and the solves do not appear in
    `optimizer.solver_report()`. If a solve fails, the epoch logs `nan` with a
    warning, unless the optimizer has `on_failure="raise"`.

    Args:
        x: Inputs, or a `tf.data.Dataset` of batches. Use all training data to
            test for convergence.
        y: Targets (optional). Must be `None` for a dataset. Defaults to `None`.
        backend: String, dictionary, `keras_qpsbgd.backends.Backend` or
            `dimod.Sampler` (optional). The solver. `None` uses the backend of
            the optimizer. Defaults to `None`.
        every: Integer. Measures at the end of each `every`-th epoch. Defaults
            to `1`.
        batch_size: Integer (optional). The number of samples per forward and
            backward pass. `None` uses one pass. Defaults to `None`.
        stop: Boolean. Whether to end training when all columns are at a fixed
            point. Defaults to `False`.
        sample_weight: Array of sample weights (optional). Must be `None` for a
            dataset. Defaults to `None`.

    Raises:
        ValueError: If `every` or `batch_size` is not a positive integer, or if
            the optimizer of the model is not a `QPSBGD`.

    Example:
        ```python
        import numpy as np
        from tensorflow import keras

        import keras_qpsbgd as kq

        x = np.random.default_rng(0).normal(size=(64, 4))
        y = x @ [[1.0], [-1.0], [1.0], [1.0]]
        model = keras.Sequential([kq.layers.BinaryDense(1)])
        model.compile(kq.QPSBGD(0.02, real_optimizer="sgd"), "mse")
        stop = kq.callbacks.FixedPoint(x, y, backend="exact", stop=True)
        history = model.fit(x, y, epochs=200, verbose=0, callbacks=[stop])
        print(history.history["fixed_point"])
        ```

    Reference:
        - [Krahn et al., 2024](https://arxiv.org/abs/2310.15128)
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        backend: BackendLike | None = None,
        every: int = 1,
        batch_size: int | None = None,
        stop: bool = False,
        sample_weight: Any = None,
    ) -> None:
        super().__init__()
        positive: dict[str, Any] = {"at_least": 1, "whole": True}
        check_number("every", every, **positive)
        check_number("batch_size", batch_size, optional=True, **positive)
        self.every = every
        self.stop = stop
        self._backend = None if backend is None else backends.get(backend)
        self._data = (x, y, sample_weight, batch_size)
        self._gradient: FullGradient | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        find_qpsbgd(self.model.optimizer)
        self._gradient = None  # the model may have been compiled again

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._gradient is None:
            self._gradient = FullGradient(self.model)
        logs = {} if logs is None else logs
        points = None
        if (epoch + 1) % self.every == 0:
            points = self._measure(self._gradient, epoch)
        missing = float("nan")
        logs["fixed_point"] = missing if points is None else points.share
        for name in self._gradient.marks:
            # A layer without a gradient has no QUBO.
            share = missing if points is None else points.shares.get(name)
            if share is not None:
                logs[f"{name}_fixed_point"] = share
        if self.stop and points is not None and points.converged:
            self.model.stop_training = True

    def _measure(self, gradient, epoch):
        qubos = gradient.qubos(*self._data)
        try:
            return convergence.find(gradient, qubos, self._backend, epoch)
        except Exception as error:  # solvers may raise anything
            if gradient.optimizer.on_failure == "raise":
                raise
            warnings.warn(
                f"`FixedPoint` logs nan for epoch {epoch}, because a solve "
                f"failed: {error}",
                stacklevel=2,
            )
            return None
