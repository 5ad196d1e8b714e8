"""Compare three methods for training the same binary network.

    python -m pip install "keras_qpsbgd[compare,demo]"
    python examples/compare.py

The data is scikit-learn's wine dataset. The script takes half a minute on an
idle core. Pass `out="wine"` to save all runs and to resume after an
interruption, and `processes=None` to use all cores.
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


def build_model():
    return keras.Sequential(
        [
            keras.layers.InputLayer((13,)),
            kq.layers.BinaryDense(8, activation="hard_tanh"),
            kq.layers.BinaryDense(3),
        ]
    )


comparison = kq.compare(
    build_model,
    train=(x_train, y_train),
    validation=(x_validation, y_validation),
    test=(x_test, y_test),
    methods=["native", "adam", "real"],
    batch_size=16,
    name="wine",
)
print(comparison)
comparison.plot("wine.png")
