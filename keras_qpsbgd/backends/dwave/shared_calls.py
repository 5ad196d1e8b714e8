"""Solves the layers of a training step in as few QPU calls as possible.

See `DWaveBackend`.

`ParallelEmbeddingComposite.sample_multiple` of dwave-system also anneals
several problems in one call, but it embeds each of them in Python. For layers
from 8 x 64 to 32 x 32 that takes 30 to 230 times the CPU time. It scales to
`j_range` instead of the extended range, which makes values on the chip up to
two times smaller, and its answers do not say which chains are broken.
"""

import copy

import numpy as np

from keras_qpsbgd.backends import block_descent
from keras_qpsbgd.backends import calls
from keras_qpsbgd.backends import remote
from keras_qpsbgd.backends.dwave import ranges
from keras_qpsbgd.backends.errors import NOT_RUN
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.errors import info_of
from keras_qpsbgd.backends.solution import merge_column_info


def plan(backend, sizes):
    """Returns the calls of one training step of a network.

    Args:
        backend: A `DWaveBackend`.
        sizes: List of tuples `(num_inputs, num_outputs)`, one per layer.

    Returns:
        A list of tuples `(call, repeats)`: a `PackedCall`, and the maximum
        number of times that it is made per step. For a layer that is solved in
        blocks, these are the calls of its widest block.
    """
    fits = _fits(backend, [n for n, _ in sizes])
    packed = backend.pack([(n, m * fit) for (n, m), fit in zip(sizes, fits)])
    found = [(call, 1) for call in packed]
    for index, (n, m) in enumerate(sizes):
        if not fits[index]:
            limit = backend.block_size_for(n)
            width = max(block_descent.block_sizes(n, limit))
            repeats = -(-n // width) * backend.block_sweeps
            alone = [(width, m * (k == index)) for k in range(len(sizes))]
            found += [(call, repeats) for call in backend.pack(alone)]
    return found


def _fits(backend, widths):
    """Returns which layers are annealed as a whole instead of in blocks."""
    return [backend.block_size_for(width) == width for width in widths]


def solve_layers(backend, qubos, seeds, stop_at_failure):
    """Solves the layers of one training step.

    Args:
        backend: A `DWaveBackend`.
        qubos: List of `Qubo`, one per layer.
        seeds: List of integers, one per layer.
        stop_at_failure: Boolean. Whether to make no further calls after one has
            failed.

    Returns:
        A list with a `Solution` or an exception for each layer.
    """
    fits = _fits(backend, [qubo.num_variables for qubo in qubos])
    layers = [_Layer(qubo) for qubo in qubos]
    shared = [layer for layer, fit in zip(layers, fits) if fit]
    if shared:
        numbers = [int(seed) for seed, fit in zip(seeds, fits) if fit]
        _make_calls(backend, shared, numbers, stop_at_failure)
    found = [
        layer.result(backend) if fit else None
        for layer, fit in zip(layers, fits)
    ]
    for index, qubo in enumerate(qubos):
        if fits[index]:
            continue
        if stop_at_failure and any(isinstance(f, Exception) for f in found):
            found[index] = calls.Stopped()
            continue
        try:
            found[index] = backend.solve(qubo, seeds[index])  # in blocks
        except Exception as error:
            found[index] = error
    return found


def _make_calls(backend, layers, seeds, stop_at_failure):
    """Makes the calls of layers that fit on the chip."""
    sizes = [(la.qubo.num_variables, la.qubo.num_columns) for la in layers]
    try:
        packed = backend.pack(sizes)
    except Exception as error:  # the layers cannot be packed
        packed = ()
        for layer in layers:
            layer.fail(error)
    for number, call in enumerate(packed):
        failed = [layer.error is not None for layer in layers]
        # The answer is not needed if all layers of a call have failed.
        if not (
            (stop_at_failure and any(failed))
            or all(failed[index] for index in call.layers)
        ):
            # The zero keeps the same gauges as in stored runs.
            _make_call(backend, call, layers, [*seeds, 0, number])


class _Layer:
    """The results of the calls for one layer."""

    def __init__(self, qubo):
        self.qubo = qubo
        self.columns = []
        self.samples = []
        self.breaks = []
        self.infos = [{"calls": 0, "retries": 0}]
        self.error = None

    def fail(self, error):
        if self.error is None:  # a layer keeps its first error
            self.error = error

    def result(self, backend):
        """Returns the `Solution`, or an exception with the `info`."""
        info = merge_column_info(self.infos)
        if len(self.columns) < self.qubo.num_columns:
            self.fail(calls.Stopped())
        if self.error is not None:
            return _with_info(self.error, info)
        order = np.argsort(self.columns)
        samples = calls.join_columns(self.samples)[..., order]
        info["chain_break_fraction"] = np.concatenate(self.breaks)[order]
        return backend.best_solution(self.qubo, samples, info)


def _make_call(backend, packed, layers, seed):
    """Makes one call, with retries, and passes the answers to its layers.

    Args:
        backend: A `DWaveBackend`.
        packed: The `PackedCall`.
        layers: List of `_Layer`. All layers that were packed.
        seed: List of integers.
    """
    qubos = [layer.qubo for layer in layers]
    call = calls.Call(backend, _anneal, packed, qubos, seed)
    try:
        answers, reported = call.answer()
    except Exception as error:  # solvers may raise anything
        answers = dict.fromkeys(packed.layers, error)
        reported = info_of(error)
    names = ("problem_id", "qpu_access_time")
    known = {name: reported[name] for name in names if name in reported}
    made = {"calls": call.num_attempts, "retries": call.retries}
    for index in packed.layers:
        slots = [slot for slot in packed.slots if slot.layer == index]
        layer, answer = layers[index], answers[index]
        info = {**known, **made}
        if index != packed.layers[0]:  # totals count it for the first layer
            info.update({f"shared_{name}": made[name] for name in made})
        if "qpu_access_time" in info:
            qubits = sum(len(chain) for slot in slots for chain in slot.chains)
            share = qubits / packed.num_qubits
            info["qpu_access_time"] = share * info["qpu_access_time"]
        layer.infos.append(info)
        if isinstance(answer, Exception):
            layer.fail(answer)
            continue
        samples, broken = answer
        layer.columns += [slot.column for slot in slots]
        layer.samples.append(samples)
        layer.breaks.append(broken.mean(axis=(0, 1)))


def _anneal(backend, packed, qubos, seed):
    """Makes one call within the budget.

    Returns:
        A tuple of the answers (see `EmbeddedCall.unembed`) and the `info`.
    """
    chip = backend.open()
    embedded = chip.embedded(packed)
    gauge = np.random.default_rng(seed) if backend.gauge else None
    model = embedded.embed(qubos, backend.chain_strength, gauge)
    backend.warn_if_imprecise(model.linear)
    reserved = backend.budget.reserve(_estimate(backend, packed.num_qubits))
    info = None
    try:
        found = _sample(backend, chip.sampler, model.bqm)
        info = _reported(found)
        return embedded.unembed(found, model.gauge), info
    except BaseException as error:
        if info is None:
            info = info_of(error)
        else:
            error.info = info  # an invalid answer is billed, too
        raise
    finally:
        charged = (info or {}).get("qpu_access_time")
        charged = reserved if charged is None else 1e-6 * charged
        backend.budget.settle(reserved, charged)


def _estimate(backend, num_qubits):
    """Returns the QPU seconds of a call, 0 if they are not known.

    Raises:
        BackendUnavailable: If there is a budget, but no cost model.
    """
    try:
        return backend.call_seconds(num_qubits)
    except BackendUnavailable:
        if backend.qpu_budget_seconds is not None:
            raise
        return 0.0


def _sample(backend, sampler, bqm):
    given = ranges.call_parameters(backend)
    try:
        return remote.sample(sampler, bqm, backend.timeout_seconds, **given)
    except SolverError as error:
        if not remote.is_structural(error.__cause__):
            raise
        changed = SolverError(
            "The working graph of the chip is not the one that the layers were "
            f"embedded on ({error}). Call `close` of the backend, and the next "
            "solve connects and embeds them again"
        )
        changed.info = NOT_RUN
        raise changed from error


def _reported(found):
    """Returns the problem identifier and QPU time that an answer reports."""
    reported = found.info or {}
    info = {}
    if reported.get("problem_id") is not None:
        info["problem_id"] = str(reported["problem_id"])
    timing = reported.get("timing") or {}
    if "qpu_access_time" in timing:
        info["qpu_access_time"] = float(timing["qpu_access_time"])
    return info


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
