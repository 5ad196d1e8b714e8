"""Spektral's own layers, models and loaders under Keras 3.

Spektral 1.3 was written for Keras 2. With Keras 3 most of its layers raise,
three of its loaders cannot be given to `fit`, and its models train without
their Dropout and batch normalization, silently; with recent SciPy its citation
data sets and `ChebConv.preprocess` raise under either Keras. `enable_keras3()`
replaces the few functions and attributes of Spektral that this comes from:

>>> import spektral.models
>>> patches = keras_qpsbgd.spektral.enable_keras3()
>>> model = spektral.models.GCN(n_labels=7)  # as in Spektral's documentation
>>> print(patches)  # what was replaced, and why
>>> patches.disable()  # Spektral is as it was

or, for some lines only, `with enable_keras3():`. Nothing is patched by an
import, neither SciPy, NumPy nor Keras are touched, and what already works is
left alone: under legacy Keras only what SciPy and NumPy have removed is mended.
Layers and models are to be made, and used, while it is enabled; your own
subclasses of Spektral's may be defined before.

How much works (`python -m research.bench.spektral.support`; 2026-11-15,
Spektral 1.3.1, TensorFlow 2.21, Keras 3.15, SciPy 1.17, on a CPU),
bare -> patched:

                                        Keras 3       legacy Keras
    29 trainings                         3 ->  29      27 ->  27
    Spektral's own 113 tests            49 ->  67      74 ->  92
    their models called with tensors    50 ->  93      74 ->  92
    and `.toarray()` in place of `.A`   67 -> 113      91 -> 112

The losses are those of legacy Keras: on Cora, GCN without dropout, equal to six
decimals after 60 epochs.

What stays to do in your own code:

- Name `training` in the `call` of your own models
  (`def call(self, inputs, training=None)`), else Keras 3 does not tell them
  that they are being trained.
- Call a functional model with tensors, or through `fit`, `evaluate` and
  `predict`: Keras 3 refuses NumPy arrays mixed with sparse tensors.
- With `steps_per_execution` above 1, `predict` on a loader that repeats its
  data returns as many batches as one execution has.
- In disjoint mode Keras 3 weighs batches by nodes, not by graphs, in the loss
  that it reports. What is trained is the same.
- XLA is off for models with these layers, whatever `jit_compile` says, as it
  cannot multiply sparse matrices.

Under Keras 3 four faults of Spektral are mended that it has under legacy Keras,
too: `GraphMasking` of a list of inputs took features for the mask,
`GlobalAttnSumPool` raised in single mode, `SingleLoader` after `AdjToSpTensor`,
and global pooling of masked nodes reported wrong losses and accuracies, above 1
even. (Spektral's warning that it shuffles something that is no `Sequence` comes
from NumPy 2 and is harmless.)

Not supported: `spektral.models.GNNExplainer`, distribution strategies and mixed
precision have not been tried. All of Spektral's layers for convolution and
pooling run.
"""

from keras_qpsbgd.spektral.enable import enable_keras3

__all__ = ["enable_keras3"]
