"""Train a small network with a minute of annealer time, or with a mock QPU.

The network has layers of the sizes 16-4-4-2. `kq.fit_columns` and `kq.QPSBGD`
train it with 20 QPU calls each, and Adam trains it without a QPU. By default,
the script uses the mock QPU, which replaces the chip with simulated annealing
and costs nothing. With `--qpu`, it uses your access to D-Wave
(`dwave setup --auth`) with a budget of one minute of QPU time, of which it
needs about a second (estimated). It prints the estimate for your chip before
the first call. The guide `docs/guides/few-solves.md` explains every step.

    python -m pip install "keras_qpsbgd[dwave,demo]"
    python examples/few_solves.py
    python examples/few_solves.py --qpu
"""

import argparse

import keras_qpsbgd as kq  # before TensorFlow, which then logs less

# isort: split
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from tensorflow import keras

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--qpu", action="store_true", help="use paid QPU time")
use_qpu = parser.parse_args().qpu

# Even and odd digits, projected to 16 principal components.
images, labels = load_digits(return_X_y=True)
components = PCA(16).fit_transform(images)
x, x_test, y, y_test = train_test_split(
    (components / components.std()).astype("float32"),
    (labels % 2).astype("int32"),
    random_state=0,
)

print("QPU" if use_qpu else "mock QPU (`--qpu` uses a chip)")
backend = kq.backends.get(
    {
        "name": "dwave",
        "mock": not use_qpu,
        "num_reads": 50,
        "qpu_budget_seconds": 60,
    }
)

# Two sweeps with one call per column, and 20 updates that share calls.
layers = [(16, 4), (4, 4), (4, 2)]
sweeps = 2 * sum(m * backend.estimate(n, 1) for n, m in layers)
updates = 20 * backend.step_cost(layers).seconds
print(f"Estimate: {sweeps:.2f} s of QPU for fit_columns", end=", ")
print(f"{updates:.2f} s for QP-SBGD")


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
    rate = keras.optimizers.schedules.CosineDecay(0.1, updates)
    model = network(keras.optimizers.Adam(rate))
    model.fit(x, y, epochs=updates, batch_size=len(x), verbose=0)
    show(f"Adam, {updates} updates", model)

print()
print(f"fit_columns: {history.calls} calls, {history.qpu_seconds:.2f} s of QPU")
print(optimizer.solver_report())
print(f"Budget: {backend.budget.remaining():.2f} s left")
