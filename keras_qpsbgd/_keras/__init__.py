"""Differences between Keras 3 and legacy Keras (`TF_USE_LEGACY_KERAS=1`).

The package always imports Keras with `from tensorflow import keras`. This
folder contains the code that differs between the two versions, and all uses of
Keras and TensorFlow behavior that has no public function. Each of these uses
has a test in `tests/repository/test_private_api.py` that fails if a new version
changes the behavior.

Use all names as `_keras.name`.
"""

from keras_qpsbgd._keras.models import *  # noqa: F403
from keras_qpsbgd._keras.optimizers import *  # noqa: F403
from keras_qpsbgd._keras.versions import *  # noqa: F403
