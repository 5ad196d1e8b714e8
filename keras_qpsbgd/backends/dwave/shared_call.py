"""One QPU call with columns of several layers."""

import copy

import numpy as np

from keras_qpsbgd.backends.dwave import call_parameters
from keras_qpsbgd.backends.dwave.leap.connection import ChipChanged
from keras_qpsbgd.backends.errors import NOT_RUN
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.host import calls
from keras_qpsbgd.qubo import Qubo


class Layer:
    """What the calls found for one layer."""

    def __init__(self, qubo):
        self.qubo = qubo
        self.columns = []
        self.samples = []
        self.breaks = []
        self.info = {"calls": 0, "retries": 0}
        self.error = None

    def missing(self):
        """Returns the columns without an answer."""
        answered = set(self.columns)
        return [k for k in range(self.qubo.num_columns) if k not in answered]

    def fail(self, error):
        if self.error is None:  # a layer keeps its first error
            self.error = error

    def add(self, name, value):
        """Adds a number or a list to an entry of `info`."""
        if name in self.info:
            value = self.info[name] + value
        self.info[name] = value

    def result(self, backend):
        """Returns the `Solution`, or an exception with the `info`."""
        if self.missing():
            self.fail(calls.Stopped())
        if self.error is not None:
            return _with_info(self.error, self.info)
        order = np.argsort(self.columns)
        samples = calls.join_columns(self.samples)[..., order]
        self.info["chain_break_fraction"] = np.concatenate(self.breaks)[order]
        return backend.best_solution(self.qubo, samples, self.info)


class SharedCall:
    """One call for several layers.

    Args:
        backend: A `DWaveBackend`.
        chip: String. Identifies the chip that the call was packed for.
        packed: The `PackedCall`.
        parts: List of tuples of the packed `Layer` and their columns.
        seed: List of integers.
    """

    def __init__(self, backend, chip, packed, parts, seed):
        self.packed = packed
        self.layers = [parts[index][0] for index in packed.layers]
        self.error = None
        places = [_columns(packed, index) for index in packed.layers]
        self._columns = [
            [parts[index][1][place] for place in part]
            for index, part in zip(packed.layers, places)
        ]
        qubos = [
            _part(layer.qubo, columns)
            for layer, columns in zip(self.layers, self._columns)
        ]
        task = _CallTask(chip, _renumbered(packed, places), qubos, seed)
        self._call = calls.Call(backend, task)

    def start(self):
        try:
            self._call.start()
        except Exception as error:  # solvers may raise anything
            self._fail(error)

    def finish(self):
        """Waits for the answer and passes it to the layers.

        Returns:
            A `ChipChanged` error, which is no failure of the layers, or `None`.
        """
        if self.error is not None:
            return None
        try:
            answers, info = self._call.answer()
        except Exception as error:
            self._charge(getattr(error, "info", None) or {})
            if isinstance(error, ChipChanged):
                return error
            self._fail(error)
            return None
        for index, layer in enumerate(self.layers):
            if isinstance(answers[index], Exception):
                layer.fail(answers[index])
                continue
            samples, broken = answers[index]
            layer.columns += self._columns[index]
            layer.samples.append(samples)
            layer.breaks.append(broken.mean(axis=(0, 1)))
        self._charge(info)
        return None

    def cancel(self):
        self._call.cancel()

    def count(self):
        """Adds the number of attempts to the layers, once all calls ended."""
        attempts, retries = self._call.num_attempts, self._call.retries
        for position, layer in enumerate(self.layers):
            layer.add("calls", attempts)
            layer.add("retries", retries)
            if position:  # the first layer of a call counts it in totals
                layer.add("shared_calls", attempts)
                layer.add("shared_retries", retries)

    def _fail(self, error):
        self.error = error
        for layer in self.layers:
            layer.fail(error)

    def _charge(self, info):
        """Divides the QPU time among the layers by their qubits."""
        qubits = dict.fromkeys(self.packed.layers, 0)
        for slot in self.packed.slots:
            qubits[slot.layer] += sum(map(len, slot.chains))
        for layer, count in zip(self.layers, qubits.values()):
            if "qpu_access_time" in info:
                share = count / sum(qubits.values())
                layer.add("qpu_access_time", share * info["qpu_access_time"])
            if "problem_id" in info:
                layer.add("problem_id", [info["problem_id"]])


class _CallTask(calls.Task):
    """The task of one call.

    Args:
        chip: String. Identifies the chip that the call was packed for.
        packed: The `PackedCall`. It numbers layers and columns from 0, so calls
            with the same qubits are equal and share what is built for them.
        qubos: List of `Qubo` with the columns of the call, one per layer.
        seed: List of integers.
    """

    def __init__(self, chip, packed, qubos, seed):
        self.chip = chip
        self.packed = packed
        self.qubos = qubos
        self.seed = seed

    def reserve(self, backend):
        return backend.reserve_call(self.packed.num_qubits)

    def run(self, backend):
        chip = backend.open()
        if chip.cliques.chip != self.chip:
            error = ChipChanged("The call was packed for another chip")
            error.info = NOT_RUN
            # The connection of this worker may not know the new chip yet.
            backend.connection().recover(chip, error)
            chip = backend.open()
            if chip.cliques.chip != self.chip:
                raise error
        embedded = chip.embedded(self.packed)
        gauge = np.random.default_rng(self.seed) if backend.gauge else None
        problem = embedded.embed(self.qubos, backend.chain_strength, gauge)
        backend.warn_if_imprecise(problem.linear)
        given = call_parameters.of_call(backend)
        found = backend.connection().sample(
            chip, problem.bqm, backend.timeout_seconds, **given
        )
        reported = found.info or {}
        info = {}
        if reported.get("problem_id") is not None:
            info["problem_id"] = str(reported["problem_id"])
        timing = reported.get("timing") or {}
        if "qpu_access_time" in timing:
            info["qpu_access_time"] = float(timing["qpu_access_time"])
        try:
            return embedded.unembed(found, problem.gauge), info
        except SolverError as error:
            error.info = info  # an invalid answer is also paid for
            raise

    def settle(self, backend, reserved, info):
        backend.settle_call(reserved, info)


def _columns(packed, layer):
    """Returns the columns of a layer in a call, in the order of its answer."""
    return [slot.column for slot in packed.slots if slot.layer == layer]


def _part(qubo, columns):
    """Returns a `Qubo` with some of the columns."""
    return Qubo(qubo.couplings, qubo.fields[:, columns], qubo.offset[columns])


def _renumbered(packed, columns):
    """Returns the call with layers and columns numbered from 0."""
    layer = {index: k for k, index in enumerate(packed.layers)}
    column = [{index: k for k, index in enumerate(part)} for part in columns]
    slots = [
        slot._replace(
            layer=layer[slot.layer],
            column=column[layer[slot.layer]][slot.column],
        )
        for slot in packed.slots
    ]
    return packed._replace(slots=tuple(slots))


def _with_info(error, info):
    """Returns a copy of an exception with its own `info`.

    Layers of one call have the same error but different times.
    """
    try:
        own = copy.copy(error)
        own.__cause__ = error.__cause__
        own.__traceback__ = error.__traceback__
        own.info = info
    except Exception:  # an exception of another package may not allow it
        return error
    return own
