"""Train a binary network on a D-Wave quantum annealer.

If access is configured (`dwave setup --auth`), the script uses the QPU with a
budget of ten seconds. Otherwise it uses the mock QPU, which replaces the chip
with simulated annealing.

    python -m pip install "keras_qpsbgd[dwave,demo]"
    python examples/annealer.py
"""

import keras_qpsbgd as kq  # before TensorFlow, which then logs less

# isort: split
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from tensorflow import keras

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
keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.layers.InputLayer((16,)),
        kq.layers.BinaryDense(8, activation="hard_tanh"),
        kq.layers.BinaryDense(2),
    ]
)
model.compile(
    kq.QPSBGD(
        keras.optimizers.schedules.CosineDecay(0.03, decay_steps=90),
        backend={**backend, "qpu_budget_seconds": 10},
        real_optimizer=keras.optimizers.Adam(0.01),
        on_failure="native",
        seed=0,
    ),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(x, y, epochs=10, batch_size=32, verbose=2)
print(model.optimizer.solver_report())
print(f"test accuracy: {model.evaluate(x_test, y_test, verbose=0)[1]:.3f}")
