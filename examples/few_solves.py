"""Train a small network with a minute of annealer time, or with a mock QPU.

The network has the sizes 16-4-4-2. `kq.fit_columns` and `kq.QPSBGD` train it
with 20 QPU calls each, and Adam trains it without a QPU. If access is
configured (`dwave setup --auth`), the script uses the QPU with a budget of one
minute, of which it needs about a second (estimated). Otherwise it uses the mock
QPU, which replaces the chip with simulated annealing. The guide
`docs/guides/few-solves.md` explains every step.

    python -m pip install "keras_qpsbgd[dwave,demo]"
    python examples/few_solves.py
"""

import keras_qpsbgd as kq  # before TensorFlow, which then logs less

# isort: split
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from tensorflow import keras

# Even and odd digits, projected to 16 principal components.
images, labels = load_digits(return_X_y=True)
components = PCA(16).fit_transform(images)
x, x_test, y, y_test = train_test_split(
    (components / components.std()).astype("float32"),
    (labels % 2).astype("int32"),
    random_state=0,
)

available = {row.name: row.available for row in kq.backends.available()}
access = available["dwave"]
print("QPU" if access else "mock QPU: no access is configured")
backend = kq.backends.get(
    {
        "name": "dwave",
        "mock": not access,
        "num_reads": 50,
        "qpu_budget_seconds": 60,
    }
)


def network(optimizer=None):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((16,)),
            kq.layers.BinaryDense(4, activation="hard_tanh", name="first"),
            kq.layers.BinaryDense(4, activation="hard_tanh", name="second"),
            kq.layers.BinaryDense(2, name="output"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def show(name, model):
    loss, _ = model.evaluate(x, y, verbose=0)
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"{name:<22} training loss {loss:.4f}  test accuracy {accuracy:.3f}")


# Train column by column, with one QPU call per column and sweep.
model = network()
show("random weights", model)
history = kq.fit_columns(
    model, x, y, sweeps=2, dampings=1.0, backend=backend, verbose=0
)
show("fit_columns, 2 sweeps", model)

# Train with QP-SBGD, with one QPU call per update for all columns.
optimizer = kq.QPSBGD(
    learning_rate=keras.optimizers.schedules.CosineDecay(0.2, 20),
    backend=backend,
    momentum=0.5,  # few updates
    real_optimizer=keras.optimizers.Adam(0.01),
    seed=0,
)
model = network(optimizer)
# One batch with all samples, so every epoch is one update.
model.fit(x, y, epochs=20, batch_size=len(x), verbose=0)
show("QP-SBGD, 20 updates", model)

for updates in (20, 200):
    model = network(keras.optimizers.Adam(0.1))
    model.fit(x, y, epochs=updates, batch_size=len(x), verbose=0)
    show(f"Adam, {updates} updates", model)

print()
print(f"fit_columns: {history.calls} calls, {history.qpu_seconds:.2f} s of QPU")
print(optimizer.solver_report())
print(f"Budget: {backend.budget.remaining():.2f} s left")
