"""Single layers and the small network on pairs of digits."""

import numpy as np

from keras_qpsbgd.comparison.task import Split
from research.experiments.tasks import mnist_pairs
from research.few_solves.tasks.task import Task
from research.few_solves.tasks.task import plain

PAIRS = ((0, 2), (1, 2), (1, 7))
# Random problems: samples per part, inputs, and noise of the labels.
SAMPLES, INPUTS, NOISE = 300, 12, 0.5
POOLED = 7
SINGLE = {
    "reference": "newton",
    "tested": 2,
}


def enumerated_loss(split):
    """Returns the smallest loss of all layers with one output, no bias."""
    x, y = split.inputs[0][split.rows], split.y[split.rows]
    n = x.shape[1]
    bits = np.arange(2**n)[:, None] >> np.arange(n) & 1
    states = (2.0 * bits - 1.0).astype("float32")
    best = np.inf
    for begin in range(0, len(states), 8192):
        logits = x @ states[begin : begin + 8192].T / np.sqrt(n)
        losses = np.logaddexp(0, logits) - y.reshape(-1, 1) * logits
        best = min(best, float(losses.mean(axis=0).min()))
    return best


def _digits(pooled):
    """Returns a function that loads the digit pairs."""

    def load(data_dir, seeds, quick):
        del quick
        return {seed: _pair(data_dir, seed, pooled) for seed in seeds}

    return load


def _pair(data_dir, seed, pooled):
    source = mnist_pairs.Source(data_dir, PAIRS[seed % len(PAIRS)])
    x = source.x
    if pooled:
        side = 28 // POOLED
        images = source.images.reshape(-1, POOLED, side, POOLED, side)
        x = images.mean(axis=(2, 4)).reshape(len(images), -1)
        x = (x / max(x.max(), 1.0)).astype("float32")
    # Other training samples for each seed.
    rng = np.random.default_rng([seed, 21])
    rows = dict(source.rows)
    known = np.concatenate([rows["train"], rows["validation"]])
    known = rng.permutation(known)
    count = len(rows["train"])
    rows["train"], rows["validation"] = known[:count], known[count:]
    return {name: Split((x,), r, source.y) for name, r in rows.items()}


def random_problems(data_dir, seeds, quick):
    """Returns random logistic regressions with noisy labels."""
    del data_dir, quick
    return {seed: _random_problem(seed) for seed in seeds}


def _random_problem(seed):
    rng = np.random.default_rng([seed, 22])
    mixing = np.eye(INPUTS) + rng.normal(size=(INPUTS, INPUTS)) / INPUTS**0.5
    weights = rng.normal(size=INPUTS)
    splits = {}
    for name in ("train", "validation", "test"):
        x = rng.normal(size=(SAMPLES, INPUTS)) @ mixing
        signal = x @ weights / np.std(x @ weights)
        y = signal + NOISE * rng.normal(size=SAMPLES) > 0
        splits[name] = Split(
            (x.astype("float32"),), np.arange(SAMPLES), y.astype("int32")
        )
    return splits


TASKS = (
    Task(
        "logistic",
        f"Random logistic regression, {INPUTS} inputs",
        random_problems,
        plain(INPUTS, 1),
        counts=(1, 2, 3, 5, 10, 20),
        fresh=100,
        is_enumerated=True,
        **SINGLE,
    ),
    Task(
        "layer-16",
        "One layer on pairs of digits, 16 inputs",
        _digits(pooled=False),
        plain(16, 1),
        fresh=21,
        is_enumerated=True,
        **SINGLE,
    ),
    Task(
        "layer-49",
        "One layer on pairs of digits, 49 inputs",
        _digits(pooled=True),
        plain(49, 1),
        fresh=21,
        **SINGLE,
    ),
    Task(
        "pairs",
        "Pairs of digits, 16-4-4-2",
        _digits(pooled=False),
        plain(16, 4, 4, 2),
        fresh=21,
    ),
)
