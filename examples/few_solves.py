"""Train with a few solver calls, on a quantum annealer or its mock.

The binary Newton rule solves for the weights themselves, so a handful of
updates with all samples is enough. If access is configured (`dwave setup
--auth`), the script uses the QPU with a budget of ten seconds. Otherwise it
uses the mock QPU, in which simulated annealing replaces the chip.

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

UPDATES = 10

# Digits 1 and 7, projected to 16 principal components.
images, labels = load_digits(return_X_y=True)
selected = (labels == 1) | (labels == 7)
components = PCA(16).fit_transform(images[selected])
x, x_test, y, y_test = train_test_split(
    components / components.std(),
    (labels[selected] == 7).astype("int32"),
    random_state=0,
)

available = {row.name: row.available for row in kq.backends.available()}
access = available["dwave"]
print("QPU" if access else "mock QPU: no access is configured")
backend = {"name": "dwave", "num_reads": 50, "mock": not access}
newton = kq.QPSBGD(
    0.2,
    backend={**backend, "qpu_budget_seconds": 10},
    update="newton",
    curvature={"output": "categorical_crossentropy"},
    mean_curvature=True,
    real_optimizer=keras.optimizers.Adam(0.05),
    seed=0,
)
for name, optimizer in (
    ("binary Newton", newton),
    ("Adam", keras.optimizers.Adam(0.05)),
):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.InputLayer((16,)),
            kq.layers.BinaryDense(4, activation="hard_tanh"),
            kq.layers.BinaryDense(2, name="output"),
        ]
    )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    # One batch with all samples, so every epoch is one update.
    model.fit(x, y, epochs=UPDATES, batch_size=len(x), verbose=0)
    loss, _ = model.evaluate(x, y, verbose=0)
    _, test = model.evaluate(x_test, y_test, verbose=0)
    print(
        f"{name}, {UPDATES} updates: training loss {loss:.3f}, "
        f"test accuracy {test:.3f}"
    )
print(newton.solver_report())
