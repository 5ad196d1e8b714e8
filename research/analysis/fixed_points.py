"""Counts the columns that training no longer changes (the paper's theorem)."""

import numpy as np
from tensorflow import keras

from keras_qpsbgd.optimizers import QPSBGD


class FixedPoints(keras.callbacks.Callback):
    r"""Logs the share of columns at a fixed point as `fixed_point`.

    A column is at a fixed point if a step on all data would not change the sign
    of any of its weights: if the binary gradient \(g_j\) of all data is
    \(-\mathrm{sign}(\Omega_j)\). Weights that the step holds do not count. If
    all columns are at a fixed point, training on all data has converged.

    The step is done with a copy of the network, without averages over earlier
    steps.

    Args:
        copy: A new network with the same layers. All its variables must be
            binary kernels.
        x: Array of the inputs of all training data.
        y: Array of the classes.
        every: Integer. Measures at the end of each `every`-th epoch. The other
            epochs log `nan`.
        kappa: Float (optional). The `kappa` of the optimizer.
        loss: Keras loss (optional). Defaults to the cross-entropy of classes.
    """

    def __init__(
        self,
        copy,
        x,
        y,
        every=1,
        kappa=None,
        loss=None,
    ):
        super().__init__()
        options = {} if kappa is None else {"kappa": kappa}
        # Without these averages, a step depends on its batch alone.
        optimizer = QPSBGD(
            1.0,
            "exact",
            momentum=0.0,
            covariance_decay=0.0,
            **options,
        )
        if loss is None:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        copy.compile(optimizer, loss)
        optimizer.build(copy.trainable_variables)
        self.copy, self.x, self.y, self.every = copy, x, y, every

    def on_epoch_end(self, epoch, logs=None):
        at = np.nan
        if (epoch + 1) % self.every == 0:
            at = np.mean(np.concatenate(self.columns()))
        logs["fixed_point"] = at

    def columns(self):
        """Returns a Boolean array for each layer, with one entry per column."""
        before = self.model.get_weights()
        self.copy.set_weights(before)
        # One batch of all data, whatever the order.
        self.copy.train_on_batch(self.x, self.y)
        found = []
        for old, new in zip(before, self.copy.get_weights()):
            moves = np.sign(new - old)
            signs = np.where(old < 0, -1, 1)
            found.append(((moves == 0) | (moves == signs)).all(axis=0))
        return found
