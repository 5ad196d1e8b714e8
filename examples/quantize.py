"""Quantize a trained network to 4, 2 and 1 bits per weight.

The picture shows the errors of the layers with 1 bit.

    python -m pip install "keras_qpsbgd[demo]"
    python examples/quantize.py
"""

import keras_qpsbgd as kq  # before TensorFlow, which then logs less

# isort: split
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tensorflow import keras

x, y = load_digits(return_X_y=True)
x = (x / 8 - 1).astype("float32")  # pixels in [-1, 1]
x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.layers.InputLayer((64,)),
        keras.layers.Dense(64, activation="relu", name="hidden"),
        keras.layers.Dense(32, activation="relu", name="second"),
        keras.layers.Dense(10, name="logits"),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
model.fit(x_train, y_train, epochs=20, verbose=0)


def accuracy(network):
    network.compile("adam", loss, metrics=["accuracy"])
    return network.evaluate(x_test, y_test, verbose=0)[1]


print(f"float network: accuracy {accuracy(model):.3f}")
for bits in (4, 2, 1):
    for method in ("nearest", "qubo"):
        # The inputs of 512 training samples, without their labels.
        quantized, report = kq.quantize(
            model, x_train[:512], bits, method=method, seed=0, verbose=0
        )
        print(f"bits={bits}, {method}: accuracy {accuracy(quantized):.3f}")
print(report)
report.plot().figure.savefig("errors.png", dpi=120)
print("saved errors.png")
