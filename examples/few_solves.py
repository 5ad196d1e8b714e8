"""Train a binary layer with two solves, on a quantum annealer or its mock.

`kq.fit_columns` solves for the weights themselves. It is compared with Adam,
which makes 2, 20 and 200 updates with all samples. If access is configured
(`dwave setup --auth`), the script uses the QPU with a budget of ten seconds.
Otherwise it uses the mock QPU, in which simulated annealing replaces the chip.

    python -m pip install ".[dwave,demo]"
    python examples/few_solves.py
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from tensorflow import keras

import keras_qpsbgd as kq

# Even and odd digits, projected to 16 principal components.
images, labels = load_digits(return_X_y=True)
components = PCA(16).fit_transform(images)
x, x_test, y, y_test = train_test_split(
    (components / components.std()).astype("float32"),
    (labels % 2).astype("float32"),
    random_state=0,
)

available = {row.name: row.available for row in kq.backends.available()}
access = available["dwave"]
print("QPU" if access else "mock QPU: no access is configured")
backend = kq.backends.get(
    {
        "name": "dwave",
        "num_reads": 50,
        "mock": not access,
        "qpu_budget_seconds": 10,
    }
)


def layer():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.InputLayer((16,)),
            kq.layers.BinaryDense(1, use_bias=False),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.1),
        keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
    )
    return model


def show(name, model):
    loss, _ = model.evaluate(x, y, verbose=0)
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"{name:<22} training loss {loss:.4f}  test accuracy {accuracy:.3f}")


model = layer()
show("random weights", model)
history = kq.fit_columns(
    model, x, y, sweeps=2, dampings=1.0, backend=backend, verbose=0
)
show(f"fit_columns, {history.solves} solves", model)
for updates in (2, 20, 200):
    model = layer()
    # One batch with all samples, so every epoch is one update.
    model.fit(x, y, epochs=updates, batch_size=len(x), verbose=0)
    show(f"Adam, {updates} updates", model)
print(f"QPU time: {1e3 * backend.budget.charged:.0f} ms")
