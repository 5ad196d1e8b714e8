"""Spektral's own layers, models and loaders under Keras 3.

Spektral 1.3 was written for Keras 2. With Keras 3 most of its layers raise,
three of its loaders cannot be given to `fit`, and its models train without
their Dropout and batch normalization, silently; with recent SciPy its citation
data sets and `ChebConv.preprocess` raise under either Keras. `enable_keras3()`
replaces the few functions and attributes of Spektral that this comes from:

>>> patches = keras_qpsbgd.spektral.enable_keras3()
>>> model = spektral.models.GCN(n_labels=7)  # as in Spektral's documentation
>>> print(patches)  # what was replaced, and why
>>> patches.disable()  # Spektral is as it was

or, for some lines only, `with enable_keras3():`. Nothing is patched by an
import, neither SciPy, NumPy nor Keras are touched, and what already works is
left alone: each patch first looks whether it is needed. Enable before layers
and models are made; those made before behave as before.

What stays to do in your own code:

- Name `training` in the `call` of your own models
  (`def call(self, inputs, training=None)`), else Keras 3 does not tell them
  that they are being trained.
- Call a functional model with tensors, or through `fit`, `evaluate` and
  `predict`: Keras 3 refuses NumPy arrays mixed with sparse tensors.
- With `steps_per_execution` above 1, `predict` on a loader that repeats its
  data returns as many batches as one execution has.

Not supported: `spektral.models.GNNExplainer`, which has not been tried.
"""

from keras_qpsbgd.spektral.enable import enable_keras3

__all__ = ["enable_keras3"]
