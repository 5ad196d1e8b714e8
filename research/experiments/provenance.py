"""Which code and which platform determine the runs of an experiment.

Each record has the fingerprint of the code that made it, see
`research.fingerprint`. It differs between methods, since a run of Bop does not
depend on the solvers. If the code has changed since, the pages say so until
`python -m research verify` has found that it still gives the same results.

`meta.json` has a hash of the platform, on which the last digits of results
depend, and the fingerprints of verified code:

    {"platform": "63f4174a2aad52b4",
     "verified": {"Bop": {"code": "324c24d5f3b3806f", "date": "2026-11-18"}}}
"""

import functools
import hashlib
import re

import numpy as np
import tensorflow as tf

from keras_qpsbgd import backends
from keras_qpsbgd import optimizers
from keras_qpsbgd.backends import registry
from research import fingerprint
from research.engine.methods import optimizer_class
from research.engine.plan import Work
from research.engine.task import Task
from research.experiments import options
from research.experiments.catalogue import EXPERIMENTS
from research.experiments.catalogue import methods_of
from research.experiments.options import Options

# Solvers that do not run in the graph.
HOST = ("keras_qpsbgd.backends.host", "keras_qpsbgd.backends.dwave")


@functools.cache
def code(name, label, root=fingerprint.ROOT):
    """Returns the fingerprint of the code that determines a run.

    Args:
        name: String. Name of an experiment.
        label: String. Label of a method, as in records.
        root: Folder of a checkout. Defaults to this one.
    """
    names, without = definitions(name, label)
    return fingerprint.fingerprint(names, root, without)


def definitions(name, label):
    """Returns where the code of a run begins, and what it does not use.

    Args:
        name: String. Name of an experiment.
        label: String. Label of a method, as in records.

    Returns:
        The arguments `names` and `without` of `fingerprint`.
    """
    method = methods_of(name)[label]
    used = [EXPERIMENTS[name].tasks, Options, Task, Work]
    own, solver = optimizer_class(method), method.backend
    solver = solver["name"] if isinstance(solver, dict) else solver
    names, without = with_optimizer(map(_full_name, used), own, solver)
    # Its fields are those of tables and of the plan.
    return names, [*without, _full_name(options.Task)]


def with_optimizer(names, own=None, solver=None):
    """Adds an optimizer to the definitions of a run, and no other.

    Args:
        names: Names of definitions.
        own: Class of the optimizer. `None` means one of Keras.
        solver: String (optional). Name of its backend.

    Returns:
        The arguments `names` and `without` of `fingerprint`.
    """
    names = list(names)
    unused = [getattr(optimizers, other) for other in optimizers.__all__]
    if own is not None:
        names.append(_full_name(own))
        unused.remove(own)
    without = [_full_name(one) for one in unused]
    if solver is not None:
        backend = registry._class_of(solver)
        names.append(_full_name(backend))
        if issubclass(backend, backends.GraphBackend):
            without += HOST
    return names, without


def _full_name(definition):
    return f"{definition.__module__}.{definition.__qualname__}"


@functools.cache
def platform():
    """Returns a hash of the results of a small computation.

    If it is the same, runs are expected to agree in all digits. Otherwise they
    differ slightly from the first steps, and after many steps as much as those
    of other seeds.
    """
    generator = np.random.default_rng(0)
    # Small, so that the number of threads does not matter.
    x = generator.normal(size=(16, 50)).astype("float32")
    w = generator.normal(size=(50, 20)).astype("float32") / 7
    with tf.device("CPU:0"):
        hidden = tf.tanh(tf.constant(x) @ w)
        scores = tf.exp(hidden @ tf.transpose(hidden) / 10)
        losses = tf.math.log1p(tf.reduce_sum(scores, axis=1))
        bytes_ = b"".join(v.numpy().tobytes() for v in (hidden, scores, losses))
    return hashlib.sha256(bytes_).hexdigest()[: fingerprint.DIGITS]


# Records that are older than the code

OLDER = "Older than the code"


def is_older(name, run, meta):
    """Returns whether the code has changed since a run and is not verified.

    Args:
        name: String. Name of the experiment.
        run: A record.
        meta: Dictionary. The content of `meta.json`.
    """
    label = run["method"]
    if label not in methods_of(name):  # it was removed
        return True
    verified = meta.get("verified", {}).get(label, {})
    return code(name, label) not in (run.get("code"), verified.get("code"))


def older_methods(name, runs, meta):
    """Returns the labels of the methods that have older records."""
    labels = {run["method"] for run in runs if is_older(name, run, meta)}
    return sorted(labels, key=str.casefold)


def note(older, *words):
    """Returns the line of a page that has older results.

    Args:
        older: List of strings. What is older.
        *words: The arguments of `python -m research verify`.
    """
    command = " ".join(["python -m research verify", *words])
    return (
        f"*{OLDER}: {', '.join(older)}. `{command}` tells whether the code "
        "still gives these results.*"
    )


def without_notes(text):
    """Returns a text without the lines of `note`."""
    return re.sub(rf"^\*{OLDER}: .*\*\n+", "", text, flags=re.MULTILINE)
