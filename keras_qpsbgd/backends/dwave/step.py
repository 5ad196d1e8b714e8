"""Solves the layers of a training step in as few QPU calls as possible.

The columns of all layers that fit on the chip are packed side by side. A call
that fails is a failure of each layer in it. A layer that is wider than the
largest complete graph on the chip is solved in blocks, with its own calls.
"""

import concurrent.futures
import copy
import threading
from typing import NamedTuple

import numpy as np

from keras_qpsbgd.backends.dwave import connection
from keras_qpsbgd.backends.dwave import ranges
from keras_qpsbgd.backends.dwave.packing import Packing
from keras_qpsbgd.backends.errors import NOT_RUN
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.host import block_descent
from keras_qpsbgd.backends.host import calls
from keras_qpsbgd.backends.host import progress
from keras_qpsbgd.qubo import Qubo


class Group(NamedTuple):
    """Layers that share calls.

    Attributes:
        layers: List of integers. Indices of the layers.
        packing: `Packing`. Its layers are positions in `layers`. For a layer
            that is solved in blocks, the calls of its widest block.
        rounds: Integer. Maximum number of times per step that the calls of the
            packing are made.
    """

    layers: list[int]
    packing: Packing
    rounds: int


def split_groups(backend, widths):
    """Returns lists of the indices of layers that share calls.

    Layers that fit on the chip whole share calls. A wider layer is solved in
    blocks, with its own calls.

    Args:
        backend: A `DWaveBackend`.
        widths: List of integers. Number of inputs of each layer.
    """
    whole, wide = [], []
    for index, width in enumerate(widths):
        if backend.block_size_for(width) < width:
            wide.append([index])
        else:
            whole.append(index)
    return [whole] * bool(whole) + wide


def pack_groups(backend, sizes):
    """Returns the `Group`s of a network.

    Args:
        backend: A `DWaveBackend`.
        sizes: List of tuples `(num_inputs, num_outputs)`, one per layer.
    """
    found = []
    for layers in split_groups(backend, [n for n, _ in sizes]):
        parts, rounds = [tuple(sizes[k]) for k in layers], 1
        n, m = parts[0]
        size = backend.block_size_for(n)
        if size < n:
            width = max(block_descent.block_sizes(n, size))
            parts = [(width, m)]
            rounds = -(-n // width) * backend.block_sweeps
        found.append(Group(layers, backend.pack(parts), rounds))
    return found


def solve_layers(backend, qubos, seeds, stop_at_failure):
    """Solves the layers of one training step.

    Args:
        backend: A `DWaveBackend`.
        qubos: List of `Qubo`, one per layer.
        seeds: List of integers, one per layer.
        stop_at_failure: Boolean. Whether to make no further call after one has
            failed.

    Returns:
        A list with a `Solution` or an exception for each layer.
    """
    stop = threading.Event()

    def solve(group):
        if stop.is_set():
            return [calls.Stopped() for _ in group]
        with calls.stop_on(stop):
            found = _solve_group(
                backend,
                [qubos[index] for index in group],
                [int(seeds[index]) for index in group],
                stop_at_failure,
            )
        if stop_at_failure and any(isinstance(f, Exception) for f in found):
            stop.set()
        return found

    parts = split_groups(backend, [qubo.num_variables for qubo in qubos])
    if backend.executor is None or len(parts) == 1:
        answers = [solve(group) for group in parts]
    else:
        # These threads only wait for the workers of the executor.
        with concurrent.futures.ThreadPoolExecutor(len(parts)) as threads:
            answers = list(threads.map(solve, parts))
    found = {}
    for group, results in zip(parts, answers):
        found.update(zip(group, results))
    return [found[index] for index in range(len(qubos))]


def _solve_group(backend, qubos, seeds, stop_at_failure):
    if len(qubos) == 1:
        size = backend.block_size_for(qubos[0].num_variables)
        if size < qubos[0].num_variables:
            return [_solve_in_blocks(backend, qubos[0], seeds[0], size)]
    return _solve_packed(backend, qubos, seeds, stop_at_failure)


def _solve_in_blocks(backend, qubo, seed, size):
    def solve_block(qubo, seed):
        (found,) = _solve_packed(backend, [qubo], [seed], True)
        if isinstance(found, Exception):
            raise found
        return found

    try:
        states, info = block_descent.solve(
            qubo, seed, size, solve_block, backend.block_sweeps
        )
    except Exception as error:
        return error
    return backend.best_solution(qubo, states[None], info)


def _solve_packed(backend, qubos, seeds, stop_at_failure):
    """Solves layers that fit on the chip, with shared calls."""
    layers = [_Layer(qubo) for qubo in qubos]
    try:
        chip = backend.open().cliques.chip
        packing = backend.pack(
            [(q.num_variables, q.num_columns) for q in qubos]
        )
        shared = [
            # The zero keeps the gauges of stored runs.
            _SharedCall(backend, chip, packed, layers, [*seeds, 0, number])
            for number, packed in enumerate(packing.calls)
        ]
    except Exception as error:  # the layers cannot be packed
        for layer in layers:
            layer.fail(error)
    else:
        _run_calls(shared, layers, stop_at_failure)
    return [layer.result(backend) for layer in layers]


def _run_calls(shared, layers, stop_at_failure):
    """Makes the calls. Layers keep the answers and errors of their calls."""
    total = sum(layer.qubo.num_columns for layer in layers)
    try:
        for call in shared:
            call.start()
            if stop_at_failure and call.error is not None:
                break
        for call in shared:
            progress.set_columns(sum(len(k.columns) for k in layers), total)
            failed = [layer.error is not None for layer in layers]
            # Nobody needs the answer if all layers of a call have failed.
            if (stop_at_failure and any(failed)) or all(
                layer.error is not None for layer in call.layers
            ):
                call.cancel()
            else:
                call.finish()
    except BaseException:  # an interrupt
        for call in shared:
            call.cancel()
        raise
    for call in shared:
        call.count()


class _Layer:
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


class _SharedCall:
    """One call for several layers.

    Args:
        backend: A `DWaveBackend`.
        chip: String. Identifies the chip that the call was packed for.
        packed: The `PackedCall`.
        layers: List of `_Layer`, all that were packed.
        seed: List of integers.
    """

    def __init__(self, backend, chip, packed, layers, seed):
        self.packed = packed
        self.layers = [layers[index] for index in packed.layers]
        self.error = None
        self._columns = [
            [slot.column for slot in packed.slots if slot.layer == index]
            for index in packed.layers
        ]
        qubos = [
            _part(layer.qubo, columns)
            for layer, columns in zip(self.layers, self._columns)
        ]
        task = _CallTask(chip, _renumbered(packed, self._columns), qubos, seed)
        self._call = calls.Call(backend, task)

    def start(self):
        try:
            self._call.start()
        except Exception as error:  # solvers may raise anything
            self._fail(error)

    def finish(self):
        """Waits for the answer and passes it to the layers."""
        if self.error is not None:
            return
        try:
            answers, info = self._call.answer()
        except Exception as error:
            self._charge(getattr(error, "info", None) or {})
            self._fail(error)
            return
        for index, layer in enumerate(self.layers):
            if isinstance(answers[index], Exception):
                layer.fail(answers[index])
                continue
            samples, broken = answers[index]
            layer.columns += self._columns[index]
            layer.samples.append(samples)
            layer.breaks.append(broken.mean(axis=(0, 1)))
        self._charge(info)

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
        if chip.cliques.chip != self.chip:  # a worker that connected before
            backend.close()
            chip = backend.open()
            if chip.cliques.chip != self.chip:
                raise _chip_changed("a worker is connected to another chip")
        embedded = chip.embedded(self.packed)
        gauge = np.random.default_rng(self.seed) if backend.gauge else None
        model = embedded.embed(self.qubos, backend.chain_strength, gauge)
        backend.warn_if_imprecise(model.linear)
        given = ranges.call_parameters(backend)
        try:
            found = connection.sample(
                chip.sampler, model.bqm, backend.timeout_seconds, **given
            )
        except SolverError as error:
            if connection.is_structural(error.__cause__):
                raise _chip_changed(error) from error
            raise
        reported = found.info or {}
        info = {}
        if reported.get("problem_id") is not None:
            info["problem_id"] = str(reported["problem_id"])
        timing = reported.get("timing") or {}
        if "qpu_access_time" in timing:
            info["qpu_access_time"] = float(timing["qpu_access_time"])
        try:
            return embedded.unembed(found, model.gauge), info
        except SolverError as error:
            error.info = info  # an invalid answer is also paid for
            raise

    def settle(self, backend, reserved, info):
        backend.settle_call(reserved, info)


def _chip_changed(reason):
    error = SolverError(
        "The working graph of the chip is not the one that the layers were "
        f"embedded on ({reason}). Call `close` of the backend, and the next "
        "solve connects and embeds them again"
    )
    error.info = NOT_RUN
    return error


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
