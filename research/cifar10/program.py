"""Exported programs, compiled with JAX."""

import hashlib
import math
import time

import jax
import jax.numpy as jnp
import numpy as np

from research.bench.gpu import programs
from research.cifar10 import records

KERNELS = 2  # keeps the random numbers apart from those of the images


class Program:
    """A compiled training step and prediction, and the state of a training.

    Args:
        folder: `pathlib.Path` of all programs.
        name: String. Path of this program in the folder.
    """

    def __init__(self, folder, name):
        self.name = name.rpartition("/")[2]
        self.record = records.describe(folder, name)
        with np.load(folder / name / "state.npz") as file:
            self._initial = [file[key] for key in file.files]
        content = (folder / name / "train.hlo.xz").read_bytes()
        self._hash = hashlib.sha256(content).hexdigest()[:16]
        start = time.perf_counter()
        self._train, self._updates = programs.compiled(content)
        self._predict, _ = programs.compiled(
            (folder / name / "predict.hlo.xz").read_bytes()
        )
        self.compile_seconds = time.perf_counter() - start
        print(f"{name}: compiled in {self.compile_seconds:.1f} s", flush=True)
        # The positions of the rates, of which Keras optimizers have only one.
        self._rates = [
            (index, self.record[key])
            for index, key in enumerate(("rate", "real_rate"))
            if self.record[key] is not None
        ]
        # The program takes these arrays, and a caller may need its rates again.
        self._overwritten = {position for position, _ in self._updates}
        self.state = []

    @property
    def network(self):
        """A name of the network for files."""
        keys = "network", "activation", "width"
        return "-".join(str(self.record[key]) for key in keys)

    @property
    def has_real_rate(self):
        """Whether binary kernels and other variables have different rates."""
        return self.record["real_rate"] is not None

    def description(self):
        """Returns facts for the results."""
        keys = "optimizer", "arguments", "network", "width", "activation"
        return {
            **{key: self.record[key] for key in (*keys, "batch")},
            "dtype": self.record.get("dtype", "float32"),
            "code": self.record.get("code"),
            "sha256": self._hash,
            "compile_seconds": self.compile_seconds,
            "device": jax.devices()[0].device_kind,
            "jax": jax.__version__,
        }

    def restart(self, seed, settings=None):
        """Resets the state. The seed determines the kernels."""
        values = list(self._initial)
        random = np.random.default_rng([KERNELS, seed])
        for index in self.record["kernels"]:
            values[index] = glorot_uniform(random, values[index])
        for name, value in (settings or {}).items():
            index = self.record["settings"][name]
            values[index] = np.asarray(value, values[index].dtype)
        self.state = [jax.device_put(value) for value in values]

    def store(self, path, history):
        """Stores the state and the lists of a history in one step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new.npz")
        arrays = {f"{i:04}": np.asarray(v) for i, v in enumerate(self.state)}
        np.savez(new, history=np.array(history, float), **arrays)
        new.replace(path)

    def resume(self, path, history):
        """Continues from a stored state, if there is one."""
        if not path.exists():
            return
        with np.load(path) as file:
            for values, stored in zip(history, file["history"]):
                values.extend(stored.tolist())
            names = sorted(set(file.files) - {"history"})
            self.state = [jax.device_put(file[name]) for name in names]

    def reset_metrics(self):
        """Makes the loss the mean over the following steps."""
        for index in self.record["metrics"]:
            self.state[index] = jax.device_put(self._initial[index])

    def step(self, images, labels, rates):
        """Starts a training step and returns the mean loss."""
        for index, position in self._rates:
            self.state[position] = (
                jnp.copy(rates[index])
                if position in self._overwritten
                else rates[index]
            )
        outputs = programs.execute(self._train, [images, labels, *self.state])
        for position, output in self._updates:
            self.state[position] = outputs[output]
        return outputs[0]

    def weights(self):
        """Returns the weights of the model, binary ones as packed bits."""
        found = {}
        for number, index in enumerate(self.record["weights"]):
            value = np.asarray(self.state[index])
            if index in self.record["binary"]:
                value = np.packbits(value >= 0)
            found[f"{number:03}"] = value
        return found

    def evaluate(self, images):
        """Returns the share of correct classes, and the mean cross-entropy."""
        state = [self.state[index] for index in self.record["predict"]]
        outputs = [
            programs.execute(self._predict, [part, *state])[0]
            for part in images.parts(self.record["predicted"])
        ]
        count = len(images.labels)
        logits = np.concatenate([np.asarray(o) for o in outputs])[:count]
        right = logits.argmax(1) == images.labels
        of_label = logits[np.arange(count), images.labels]
        losses = np.logaddexp.reduce(logits, axis=1) - of_label
        return float(right.mean()), float(losses.mean())


def glorot_uniform(random, kernel):
    """Draws a kernel as the initializer of Keras with this name does."""
    *window, inputs, outputs = kernel.shape
    limit = math.sqrt(6 / (math.prod(window) * (inputs + outputs)))
    return random.uniform(-limit, limit, kernel.shape).astype(kernel.dtype)
