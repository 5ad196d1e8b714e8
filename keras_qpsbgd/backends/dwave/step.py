"""Solves the layers of a training step in as few QPU calls as possible.

The columns of all layers that fit on the chip are packed side by side. A call
that fails is a failure of each layer in it. A layer that is wider than the
largest complete graph on the chip is solved in blocks, with its own calls.
"""

import concurrent.futures
import threading

from keras_qpsbgd.backends.dwave import groups
from keras_qpsbgd.backends.dwave.leap.connection import ChipChanged
from keras_qpsbgd.backends.dwave.shared_call import Layer
from keras_qpsbgd.backends.dwave.shared_call import SharedCall
from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.host import block_descent
from keras_qpsbgd.backends.host import calls
from keras_qpsbgd.backends.host import progress

# Chips to pack the layers for, if the chip changes during a step.
MAX_CHIPS = 4


def solve_layers(backend, qubos, seeds, stop_at_failure):
    """Solves the layers of one training step, see `Backend.solve_layers`.

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

    parts = groups.split(backend, [qubo.num_variables for qubo in qubos])
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
    size = backend.block_size_for(qubos[0].num_variables)
    # The chip may have changed since the layers were divided into groups.
    if len(qubos) > 1 or size == qubos[0].num_variables:
        return _solve_packed(backend, qubos, seeds, stop_at_failure)

    def solve_block(qubo, seed):
        (found,) = _solve_packed(backend, [qubo], [seed], True)
        if isinstance(found, Exception):
            raise found
        return found

    ((qubo,), (seed,)) = qubos, seeds
    try:
        states, info = block_descent.solve(
            qubo, seed, size, solve_block, backend.block_sweeps
        )
    except Exception as error:
        return [error]
    return [backend.best_solution(qubo, states[None], info)]


def _solve_packed(backend, qubos, seeds, stop_at_failure):
    """Solves layers that fit on the chip, with shared calls."""
    layers = [Layer(qubo) for qubo in qubos]
    for attempt in range(MAX_CHIPS):
        try:
            error = _run_calls(
                backend, layers, [*seeds, attempt], stop_at_failure
            )
        except Exception as raised:  # the layers cannot be packed
            error = raised
        if not isinstance(error, ChipChanged):
            break
    for layer in layers:
        if error is not None and layer.missing():
            layer.fail(error)
    return [layer.result(backend) for layer in layers]


def _run_calls(backend, layers, seed, stop_at_failure):
    """Makes the calls for all columns that have no answer yet.

    Returns:
        A `ChipChanged` error if the other columns have to be packed again, for
        another chip. Otherwise `None`. Layers keep the errors of their calls.
    """
    chip = backend.open()
    for layer in layers:
        _check_width(layer, chip.cliques.largest())
    if stop_at_failure and any(layer.error is not None for layer in layers):
        return None
    parts = [(k, k.missing()) for k in layers if k.error is None]
    parts = [(layer, columns) for layer, columns in parts if columns]
    if not parts:
        return None
    packing = backend.pack(
        tuple((layer.qubo.num_variables, len(c)) for layer, c in parts)
    )
    calls = [
        SharedCall(backend, chip.cliques.chip, packed, parts, [*seed, number])
        for number, packed in enumerate(packing.calls)
    ]
    total = sum(layer.qubo.num_columns for layer in layers)
    changed = None
    try:
        for call in calls:
            call.start()
            if stop_at_failure and call.error is not None:
                break
        for call in calls:
            progress.set_columns(sum(len(k.columns) for k in layers), total)
            failed = [layer.error is not None for layer in layers]
            # Nobody needs the answer if all layers of a call have failed.
            if (
                changed is not None
                or stop_at_failure
                and any(failed)
                or all(layer.error is not None for layer in call.layers)
            ):
                call.cancel()
            else:
                changed = call.finish()
    except BaseException:  # an interrupt
        for call in calls:
            call.cancel()
        raise
    for call in calls:
        call.count()
    if changed is not None:
        # A worker has its own connection. This one may not know yet.
        backend.connection().recover(chip, changed)
    return changed


def _check_width(layer, largest):
    """Fails a layer that was to be solved whole but does not fit any more.

    This happens if the step began on a larger chip. The next step divides the
    layers again, and solves this one in blocks.
    """
    width = layer.qubo.num_variables
    if layer.missing() and width > largest:
        layer.fail(
            BackendUnavailable(
                f"The chip cannot hold a layer of {width} inputs. The solver "
                "has changed during this step, or `block_size` is too large. "
                f"Received: a chip that holds at most {largest} inputs"
            )
        )
