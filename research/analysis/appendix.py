"""The questions of the paper's appendix, asked with `keras_qpsbgd.analysis`.

One network is trained on the mock QPU and recorded: how do its QUBOs change,
and how good are the reads? More runs count fixed points. Gaps and directions
come from the experiments `gaps` and `direction`.
"""

import json
import math
import pathlib

import numpy as np
from tensorflow import keras

from keras_qpsbgd import analysis
from keras_qpsbgd import backends
from keras_qpsbgd import disk
from keras_qpsbgd import layers
from keras_qpsbgd.layers import metrics
from research.analysis import collect
from research.analysis import gaps
from research.analysis.fixed_points import FixedPoints
from research.analysis.spectrum import spectral_gap
from research.engine import records
from research.engine.methods import METHODS
from research.engine.task import random
from research.experiments.tasks import direction
from research.experiments.tasks import half_planes
from research.experiments.tasks import mnist_pairs

RESULTS = pathlib.Path(__file__).parents[2] / "results"
RULE = "averaged"
RATE = 0.03
EPOCHS = 6
SEEDS = 5
READS = 100
BEST = 50
# Between two updates whose reads are measured.
EVERY = 10
FIRST = "first"
NUMBERS = "appendix.json"


def study(data_dir=None):
    """Measures everything.

    Args:
        data_dir: folder of the data sets.

    Returns:
        Dictionary of plain values for `appendix_page`.
    """
    found = {
        "rule": RULE,
        "network": "-".join(map(str, mnist_pairs.NETWORK)),
        "digits": list(half_planes.PAIRS[0]),
        "batch": mnist_pairs.BATCH,
        "epochs": EPOCHS,
        "rate": RATE,
        "num_reads": READS,
        "seeds": SEEDS,
    }
    print("1/5 Training on the mock QPU")
    x, y = images(data_dir)
    run = train(x, y)
    found["images"] = len(x)
    print("2/5 QUBOs and reads")
    found["evolution"] = analysis.qubo_evolution(run, FIRST)
    found["reads"] = reads(run)
    print("3/5 Embedding and spectra")
    found["embedding"] = embedding(mnist_pairs.NETWORK[0])
    found["spectra"] = [spectrum(width, data_dir) for width in gaps.WIDTHS]
    print("4/5 Results of `gaps` and `direction`")
    found["gaps"] = least_gaps()
    found["direction"] = directions()
    print("5/5 Fixed points")
    found["fixed_points"] = fixed_points(x, y)
    return plain(found)


def store(found, folder):
    """Writes the numbers of `study` to a folder."""
    disk.write(pathlib.Path(folder, NUMBERS), json.dumps(found) + "\n")


def images(data_dir=None):
    """Bits and classes of the training images of the first pair of digits."""
    source = mnist_pairs.Source(data_dir, half_planes.PAIRS[0])
    rows = source.rows["train"]
    return source.x[rows], source.y[rows]


def network():
    """The network of the pairs of digits, with names for its layers."""
    inputs, *widths, outputs = mnist_pairs.NETWORK
    names = (FIRST, "second")
    return keras.Sequential(
        [
            keras.layers.InputLayer((inputs,)),
            *(
                layers.BinaryDense(
                    width, activation="hard_tanh", use_bias=False, name=name
                )
                for width, name in zip(widths, names)
            ),
            layers.BinaryDense(outputs, use_bias=False, name="last"),
        ]
    )


def train(x, y):
    """Trains the network on the mock QPU and records every update."""
    keras.utils.set_random_seed(0)
    annealer = {"name": "dwave", "mock": True, "num_reads": READS}
    model = collect.compiled(network(), annealer, RATE, RULE)
    return collect.record(model, x, y, mnist_pairs.BATCH, epochs=EPOCHS)


# Reads


def reads(run):
    """Measures the reads of the first layer.

    Returns:
        Dictionary: `updates`, the first and the last update in detail, with the
        column whose share of optimal reads is the median; `columns`, how many
        columns were measured in all; `hits` and `similarity`, their means over
        these columns.
    """
    updates = run.of_layer(FIRST)
    chosen = sorted({*range(0, len(updates), EVERY), len(updates) - 1})
    measured = [_all_reads(updates[index]) for index in chosen]
    details = []
    for index in (0, -1):
        found = sorted(measured[index], key=lambda pair: pair[0].hits)
        histogram, similarity = found[(len(found) - 1) // 2]
        details.append(
            {
                "step": updates[chosen[index]].step,
                "histogram": histogram,
                "similarity": similarity,
            }
        )
    pairs = [pair for found in measured for pair in found]
    return {
        "updates": details,
        "columns": len(pairs),
        "hits": np.mean([histogram.hits for histogram, _ in pairs]),
        "similarity": np.mean([similar.mean for _, similar in pairs]),
    }


def _all_reads(update):
    """Measures the columns that moved."""
    moved = np.flatnonzero(update.states.any(axis=0))
    return [_reads(update, int(column)) for column in moved]


def _reads(update, column):
    one = update.qubo.columns(column, column + 1)
    optimum = backends.get("exact").solve(one).energies[0]
    # Energies of the reads are float32.
    best = float(min(optimum, update.sample_energies[:, column].min()))
    return (
        analysis.energy_histogram(update, column, best=best),
        analysis.sample_similarity(update, BEST, column),
    )


# Chip and spectrum


def embedding(variables):
    found = analysis.embedding(variables)
    return {
        "variables": variables,
        "qubits": found.num_qubits,
        "couplers": found.num_couplers,
        "longest": int(found.chain_lengths.max()),
    }


def spectrum(width, data_dir=None):
    """The smallest gap of the raw QUBOs of a network on UCI Adult."""
    (group,) = gaps.problems(width, range(1), data_dir)
    spectra = [spectral_gap(p.qubo, scale=False) for p in group]
    least = min(spectra, key=lambda one: one.gap)
    return {"width": width, "spectrum": least}


def least_gaps():
    """The smallest gaps of raw QUBOs in the experiment `gaps`, by width."""
    study = json.loads((RESULTS / "gaps" / gaps.NUMBERS).read_text())
    return [
        {"width": row["width"], "least": row["least"]}
        for row in study["rows"]
        if row["change"] == row["base"]
    ]


# Convergence


def directions():
    """The runs of the experiment `direction`, one row per method."""
    runs = records.read(RESULTS / direction.NAME)
    rows = []
    for key in ("native", "paper", "signsgd"):
        method = METHODS[key].label
        found = [run["result"] for run in runs if run["method"] == method]
        values = {
            name: [result[name] for result in found]
            for name in ("agreement", "z", "comparisons")
        }
        rows.append({"method": method, **values})
    return rows


def fixed_points(x, y):
    """Trains with batches and with all images, and counts fixed points.

    Returns:
        List of dictionaries, one per size of the batch: `steps` after which
        was measured, `shares` (seeds, measurements) of columns at a fixed
        point, and `flips` (seeds, measurements), the share of weights that
        changed their sign per step since the last measurement.
    """
    per_epoch = math.ceil(len(x) / mnist_pairs.BATCH)
    found = []
    for batch, every in ((mnist_pairs.BATCH, 1), (len(x), per_epoch)):
        model = network()
        ratios = [metrics.FlipRatio(layer) for layer in model.layers]
        collect.compiled(model, "exact", RATE, RULE, ratios)
        found.append(
            {
                "batch": batch,
                "steps": [per_epoch * (k + 1) for k in range(EPOCHS)],
                "shares": [],
                "flips": [],
            }
        )
        for seed in range(SEEDS):
            rng = random(seed, 7)
            model.set_weights(
                [rng.uniform(-0.5, 0.5, w.shape) for w in model.get_weights()]
            )
            rows = rng.permutation(len(x))
            history = model.fit(
                x[rows],
                y[rows],
                batch_size=batch,
                shuffle=False,
                epochs=EPOCHS * every,
                verbose=0,
                callbacks=[FixedPoints(network(), x, y, every=every)],
            ).history
            shares = np.array(history["fixed_point"])
            sizes = [layer.count_params() for layer in model.layers]
            logs = [history[ratio.name] for ratio in ratios]
            flips = np.average(logs, axis=0, weights=sizes)
            found[-1]["shares"].append(shares[every - 1 :: every])
            found[-1]["flips"].append(flips.reshape(EPOCHS, every).mean(axis=1))
    return found


# Values that JSON can store


def plain(value):
    """Converts a result; five digits, since more depend on the machine."""
    return records.plain(value, digits=5)


def restored(kind, values):
    """Creates a result of `analysis` from what `plain` made of it.

    Args:
        kind: class of the result, such as `analysis.QuboEvolution`.
        values: dictionary.
    """
    return kind(
        **{
            # None becomes NaN.
            name: np.array(value, float) if isinstance(value, list) else value
            for name, value in values.items()
        }
    )
