"""A network and its data, for a comparison of methods.

In a clone of the repository, with the extra `research`:

    python -m research compare examples/compare.py --methods native adam real

This takes half a minute on an idle core. The data is scikit-learn's wine
dataset.
"""

import keras_qpsbgd as kq  # before TensorFlow, which then logs less

# isort: split
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale
from tensorflow import keras

x, y = load_wine(return_X_y=True)
x, x_test, y, y_test = train_test_split(
    scale(x), y, test_size=60, stratify=y, random_state=0
)
x_train, x_validation, y_train, y_validation = train_test_split(
    x, y, test_size=38, stratify=y, random_state=0
)


train = x_train, y_train
validation = x_validation, y_validation
test = x_test, y_test
batch_size = 16


def build_model():
    return keras.Sequential(
        [
            keras.layers.InputLayer((13,)),
            kq.layers.BinaryDense(8, activation="hard_tanh"),
            kq.layers.BinaryDense(3),
        ]
    )
