r"""Combines several reads of a solver into one answer.

An annealer returns many samples \(g_r\) with energies \(E_r\) for each column.
Their mean has entries between -1 and 1, which are small where the samples
disagree. The samples are weighted equally, or by a Boltzmann factor

$$p_r \propto \exp\left(-\frac{E_r - E_\mathrm{min}}{T \bar e}\right) , \qquad
  \bar e = \mathrm{mean}_r (E_r - E_\mathrm{min}) .$$

The temperature \(T\) is relative to the spread \(\bar e\) of the energies, so
it does not depend on the scale of the problem.
"""

import numpy as np
import tensorflow as tf


def mean(samples, energies, temperature=None):
    """Returns the mean of samples, in NumPy.

    Args:
        samples: Array of shape `(reads, n, m)`.
        energies: Array of shape `(reads, m)`.
        temperature: Float (optional). `None` weights all samples equally.

    Returns:
        Float32 array of shape `(n, m)`.
    """
    if temperature is None:
        return np.mean(samples, axis=0, dtype=np.float32)
    excess = energies - energies.min(axis=0)
    spread = np.maximum(excess.mean(axis=0), np.finfo(np.float32).tiny)
    weights = np.exp(-excess / (temperature * spread))
    weights /= weights.sum(axis=0)
    return np.einsum("rnm,rm->nm", samples, weights).astype(np.float32)


def mean_in_graph(samples, energies, temperature=None):
    """Returns the mean of samples, in TensorFlow. See `mean`."""
    if temperature is None:
        return tf.reduce_mean(samples, axis=0)
    excess = energies - tf.reduce_min(energies, axis=0)
    spread = tf.reduce_mean(excess, axis=0)
    excess = tf.math.divide_no_nan(excess, spread * temperature)
    weights = tf.nn.softmax(-excess, axis=0)
    return tf.reduce_sum(samples * weights[:, None, :], axis=0)
