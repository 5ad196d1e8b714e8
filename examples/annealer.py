"""Train a binary network on a D-Wave quantum annealer.

By default, the script uses the mock QPU, which replaces the chip with simulated
annealing and costs nothing. With `--qpu`, it uses your access to D-Wave
(`dwave setup --auth`) with a budget of ten seconds of QPU time. It prints the
estimated QPU time before the first call.

    python -m pip install "keras_qpsbgd[dwave,demo]"
    python examples/annealer.py
    python examples/annealer.py --qpu
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

# Digits 1 and 7, projected to 16 principal components. Equal variances keep
# most fields above the precision of the chip.
images, labels = load_digits(return_X_y=True)
selected = (labels == 1) | (labels == 7)
components = PCA(16, whiten=True).fit_transform(images[selected])
x, x_test, y, y_test = train_test_split(
    components,
    (labels[selected] == 7).astype("int32"),
    random_state=0,
)

print("QPU" if use_qpu else "mock QPU (`--qpu` uses a chip)")
backend = {"name": "dwave", "num_reads": 50, "mock": not use_qpu}
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
print(model.optimizer.estimate(model, steps=90))  # 10 epochs of 9 batches
model.fit(x, y, epochs=10, batch_size=32, verbose=2)
print(model.optimizer.solver_report())
print(f"test accuracy: {model.evaluate(x_test, y_test, verbose=0)[1]:.3f}")
