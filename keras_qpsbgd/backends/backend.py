"""The contract between QUBOs and whatever solves them."""

import dataclasses
import json
import weakref
from typing import Optional

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops

# Compiled searches by class, then by configuration and shape.
_compiled = weakref.WeakKeyDictionary()


class BackendUnavailable(RuntimeError):
    """A backend cannot run here, or not on this layer: before training."""


class SolverError(RuntimeError):
    """A solver failed, or answered with something that is no solution."""


@dataclasses.dataclass
class Solution:
    """What a backend found for the columns of one `Qubo`.

    Attributes:
        states: (n, m), int8, +1 or -1.
        energies: (m,), `Qubo.energy(states)`.
        info: timings, reads, chain breaks, as the backend has them.
        samples: (reads, n, m), all reads, where the backend returns several.
        sample_energies: (reads, m), their energies.
    """

    states: np.ndarray
    energies: np.ndarray
    info: dict = dataclasses.field(default_factory=dict)
    samples: Optional[np.ndarray] = None
    sample_energies: Optional[np.ndarray] = None


class Backend:
    """Solves the QUBOs of a layer on the host.

    A subclass defines `sample` and, if it has arguments, `get_config`.

    Example:

    ```python
    class AlwaysUp(kq.backends.Backend):
        def sample(self, qubo, seed):
            return np.ones((1, qubo.num_variables, qubo.num_columns)), {}

    kq.backends.register("always_up", AlwaysUp)
    optimizer = kq.QPSBGD(backend="always_up")
    ```
    """

    name = None
    max_variables = None

    def sample(self, qubo, seed):
        """Candidate states for all columns.

        Args:
            qubo: a `Qubo`.
            seed: int, the only source of randomness.

        Returns:
            `(samples, info)`: samples of shape (reads, n, m), and a dictionary.
        """
        raise NotImplementedError

    def check(self, num_variables, num_columns):
        """Raises `BackendUnavailable` if such a layer cannot be solved."""
        if self.max_variables and num_variables > self.max_variables:
            raise BackendUnavailable(
                f"The backend `{self.name}` solves layers of at most "
                f"{self.max_variables} inputs. Use `native`, or a narrower "
                f"layer. Received: a layer of {num_variables} inputs and "
                f"{num_columns} outputs"
            )

    def solve(self, qubo, seed=0):
        """Solves all columns of `qubo`.

        The best read of each column is taken, and turned round if it ascends
        (s'g > 0): the energy of -g is then lower.

        Returns:
            A `Solution`.
        """
        n, m = qubo.num_variables, qubo.num_columns
        samples, info = self.sample(qubo, int(seed))
        samples = np.asarray(samples)
        if samples.ndim != 3 or samples.shape[1:] != (n, m) or not len(samples):
            raise SolverError(
                f"The backend `{self.name}` must return samples of shape "
                f"(reads, {n}, {m}). Received: shape {samples.shape}"
            )
        if not np.isin(samples, (-1, 1)).all():
            wrong = np.unique(samples[~np.isin(samples, (-1, 1))])[:5]
            raise SolverError(
                f"The backend `{self.name}` must return states of +1 and -1. "
                f"Received: {wrong.tolist()}"
            )
        samples = samples.astype(np.int8)
        ascent = np.einsum("nm,rnm->rm", qubo.fields, samples) > 0
        samples = np.where(ascent[:, None, :], -samples, samples)
        energies = np.stack([qubo.energy(states) for states in samples])
        best = energies.argmin(axis=0)
        columns = np.arange(m)
        several = len(samples) > 1
        return Solution(
            states=samples[best, :, columns].T.copy(),
            energies=energies[best, columns],
            info=info,
            samples=samples if several else None,
            sample_energies=energies if several else None,
        )

    def get_config(self):
        return {}

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def __repr__(self):
        arguments = ", ".join(
            f"{k}={v!r}" for k, v in self.get_config().items()
        )
        return f"{type(self).__name__}({arguments})"


class GraphBackend(Backend):
    """Solves in TensorFlow, as part of the training graph.

    A subclass defines `search`, which must compile with XLA and draw its random
    numbers from `seed` with the stateless functions and `alg="philox"`: other
    generators differ between compiled and plain graphs. Backends of equal class
    and `get_config` share what was compiled.
    """

    def search(self, problem, seed):
        """States (n, m) of +1.0 and -1.0 for an `ops.Problem`.

        Args:
            problem: an `ops.Problem` in either form.
            seed: int32 tensor of shape (2,).
        """
        raise NotImplementedError

    def solve_in_graph(self, problem, seed):
        """`search`, compiled, with the check against ascent.

        Keras does not compile with XLA on a CPU, and the searches are several
        times slower without, so they compile themselves.
        """
        # Compiling takes longer than solving, so equal backends share their
        # functions; one per shape, since a shared one would count every
        # layer's shape as a retracing, and warn.
        config = json.dumps(self.get_config(), sort_keys=True, default=repr)
        shape = (tuple(problem.fields.shape), problem.couplings is None)
        functions = _compiled.setdefault(type(self), {})
        if (config, shape) not in functions:

            @tf.function(
                jit_compile=True, reduce_retracing=True, autograph=False
            )
            def compiled(problem, seed):
                states = self.search(problem, seed)
                return ops.never_ascend(states, problem.fields)

            functions[config, shape] = compiled
        return functions[config, shape](problem, seed)

    def sample(self, qubo, seed):
        problem = ops.Problem(
            couplings=_float32(qubo.couplings),
            fields=_float32(qubo.fields),
            offset=_float32(qubo.offset),
        )
        seed = tf.constant([seed, 0], tf.int32)
        return self.solve_in_graph(problem, seed).numpy()[None], {}


def _float32(array):
    return tf.constant(np.asarray(array, dtype=np.float32))
