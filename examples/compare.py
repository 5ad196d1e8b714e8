"""Three ways to train the same binary network, on scikit-learn's wines.

Needs scikit-learn and `pip install "keras_qpsbgd[compare]"`; takes a minute.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import scale
from tensorflow import keras

import keras_qpsbgd as kq

x, y = load_wine(return_X_y=True)
x, x_test, y, y_test = train_test_split(
    scale(x), y, test_size=60, stratify=y, random_state=0
)
x, x_validation, y, y_validation = train_test_split(
    x, y, test_size=38, stratify=y, random_state=0
)


def build_model():
    return keras.Sequential(
        [
            keras.layers.InputLayer((13,)),
            kq.layers.BinaryDense(8, activation="hard_tanh"),
            kq.layers.BinaryDense(3),
        ]
    )


# With `out="wine"` the runs are kept, and an interrupted script goes on.
comparison = kq.compare(
    build_model,
    train=(x, y),
    validation=(x_validation, y_validation),
    test=(x_test, y_test),
    methods=["native", "adam", "real"],
    batch_size=16,
    name="wine",
)
print(comparison)
comparison.plot("wine.png")
