"""Spektral layers, models and loaders under Keras 3.

Spektral 1.3 was written for Keras 2. Under Keras 3, most of its layers raise
errors, three of its loaders cannot be passed to `fit`, and its models silently
train without dropout and batch normalization. With recent versions of SciPy,
its citation datasets and `ChebConv.preprocess` raise errors under Keras 3 and
legacy Keras. `enable_keras3()` replaces the few functions and attributes of
Spektral that cause these problems:

```python
import spektral.models

fixes = keras_qpsbgd.spektral.enable_keras3()
model = spektral.models.GCN(n_labels=7)  # as in the Spektral documentation
print(fixes)  # what was replaced, and why
fixes.disable()  # restores Spektral
```

To change Spektral for a block of code, use `with enable_keras3():`. Importing
this module does not change anything. SciPy, NumPy and Keras are not modified.
Under legacy Keras, only the uses of names that SciPy and NumPy have removed are
replaced. Create and use layers and models while the fixes are enabled.
Subclasses of Spektral classes can be defined before that.

The following table shows how many tests of Spektral pass without and with the
fixes (without -> with, 2026-11-15, Spektral 1.3.1, TensorFlow 2.21, Keras 3.15,
SciPy 1.17, CPU; in a clone, `git show 6314f9b^:research/bench/spektral.py` has
the commands):

                                           Keras 3       legacy Keras
    the 113 tests of Spektral              49 ->  67      74 ->  92
    same, models called with tensors       50 ->  93      74 ->  92
    same, `.A` replaced by `.toarray()`    67 -> 113      91 -> 112

The losses are the same as under legacy Keras: for GCN without dropout on Cora,
they agree to six decimals after 60 epochs.

Keep the following in mind in your own code:

- Add a `training` argument to the `call` method of custom models
  (`def call(self, inputs, training=None)`). Otherwise Keras 3 does not pass it
  to them.
- Call functional models with tensors, or use `fit`, `evaluate` and `predict`.
  Keras 3 rejects NumPy arrays mixed with sparse tensors.
- With `steps_per_execution` above 1, `predict` on a loader that repeats its
  data returns as many batches as there are in one execution.
- In disjoint mode, Keras 3 weights batches by nodes, not by graphs, in the
  reported loss. This does not affect training.
- XLA is disabled for models with these layers, even with `jit_compile=True`,
  because it cannot multiply sparse matrices.

Under Keras 3, `enable_keras3` also fixes four bugs that Spektral has under
legacy Keras: `GraphMasking` of a list of inputs used features as the mask,
`GlobalAttnSumPool` raised an error in single mode, `SingleLoader` raised an
error after `AdjToSpTensor`, and global pooling of masked nodes reported wrong
losses and accuracies (even above 1). With NumPy 2, Spektral warns that it
shuffles an object that is not a `Sequence`. The warning is harmless.

All convolutional and pooling layers of Spektral run.
`spektral.models.GNNExplainer`, distribution strategies and mixed precision are
not tested and not supported.
"""

from keras_qpsbgd.spektral.enable import enable_keras3

__all__ = ["enable_keras3"]
