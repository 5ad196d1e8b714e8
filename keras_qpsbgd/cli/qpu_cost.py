"""`qpu-cost`: estimates the cost of training a network on a QPU."""

import math
import textwrap

from keras_qpsbgd import _tables
from keras_qpsbgd import backends
from keras_qpsbgd.analysis import common
from keras_qpsbgd.backends.dwave import cost
from keras_qpsbgd.backends.dwave import drawing
from keras_qpsbgd.cli import console
from keras_qpsbgd.columns import DAMPINGS
from keras_qpsbgd.optimizers.averaged_rule import Averaged
from keras_qpsbgd.qubo import blocks

HEAD = ("layer", "variables", "columns", "block", "chain", "calls", "ms")
WIDTHS = (11, 9, 7, 7, 9, 12)


def run(arguments):
    """Runs the command."""
    is_columns = arguments.sweeps is not None
    try:
        _check(arguments)
        backend = backends.get(
            {
                "name": "dwave",
                "mock": True,
                "topology": arguments.topology,
                "num_reads": arguments.num_reads,
            }
        )
        console.show_status("embedding the layers ...")
        rows, seconds, note = (_sweep if is_columns else _step)(
            backend, arguments
        )
        console.show_status("")
    except (
        backends.BackendUnavailable,
        ImportError,
        OSError,
        ValueError,
    ) as error:
        return console.fail(str(error))
    print(
        f"{arguments.topology.capitalize()} chip without dead qubits, "
        f"{arguments.num_reads} reads per call\n"
    )
    print("\n".join(_tables.table(HEAD, rows, WIDTHS)))
    unit = "sweep" if is_columns else "step"
    count = arguments.sweeps or arguments.steps
    total = count * seconds
    # Short runs need more digits.
    shown = f"{total:.3g} s" if total < 1 else f"{total:,.1f} s"
    print(f"\n{_count(count, unit)}: {shown} of QPU access time.")
    budget = arguments.budget_seconds
    if budget is not None:
        # Tolerates rounding errors if the budget is a multiple of `seconds`.
        count = math.floor(budget / seconds + 1e-9)
        print(f"A budget of {budget:g} s is enough for {_count(count, unit)}.")
    source = cost.timing_source(backend.open().sampler)
    for text in (note, f"Timing data: {source}."):
        print(textwrap.fill(text, console.WIDTH, break_on_hyphens=False))
    if arguments.output:
        print(f"Plot written to {arguments.output}")
    return 0


def _check(arguments):
    if arguments.sweeps is None and arguments.dampings is not None:
        raise ValueError(
            "`--dampings` requires `--sweeps`. Received: --dampings "
            f"{arguments.dampings}"
        )
    if arguments.sweeps is not None and arguments.output:
        raise ValueError(
            "`--output` draws the calls of training steps and cannot be used "
            f"with `--sweeps`. Received: --output {arguments.output}"
        )


def _step(backend, arguments):
    """Returns the rows of the table, the QPU time of a step, and a note."""
    rows, sizes, names, alone, one_by_one = [], [], [], 0.0, 0.0
    for n, m in arguments.network:
        # `QPSBGD` divides wide layers into blocks, each with its own QUBO.
        count, width = blocks.block_shape(n, Averaged.widest)
        found = cost.layer_cost(backend, width, m)
        rows.append(_row(n, m, count, found, count))
        sizes += [(width, m)] * count
        names += blocks.block_names(f"{n} x {m}", count)
        alone += count * found.seconds
        one_by_one += count * found.one_by_one_seconds
    step = cost.step_calls(backend, sizes)
    rows.append(_total("all, in shared calls", step.num_calls, step.seconds))
    if arguments.output:
        common.require("matplotlib", "plots")
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        graph = backend.open().sampler.to_networkx_graph()
        drawing.draw(graph, names, step.calls, arguments.output)
    note = (
        f"Separate calls would take {alone / step.seconds:.2f} times as long "
        f"per layer, {one_by_one / step.seconds:.1f} times per column."
    )
    return rows, step.seconds, note


def _sweep(backend, arguments):
    """Returns the rows of the table, the QPU time of a sweep, and a note."""
    rows, calls, seconds = [], 0, 0.0
    dampings = arguments.dampings or len(DAMPINGS)
    for n, m in arguments.network:
        # A visit to a column is one call with one QUBO per damping.
        found = cost.layer_cost(backend, n, dampings)
        rows.append(_row(n, m, 1, found, m))
        calls += m * found.calls
        seconds += m * found.seconds
    rows.append(_total("all", calls, seconds))
    note = (
        f"`fit_columns` solves {_count(dampings, 'QUBO')} per column and "
        "sweep. It ends earlier if three sweeps in a row change nothing."
    )
    return rows, seconds, note


def _row(n, m, count, found, times):
    """Returns the row of a layer whose cost `found` occurs `times` times."""
    variables = f"{count} x {found.num_variables}" if count > 1 else n
    calls, ms = times * found.calls, 1000 * times * found.seconds
    sizes = variables, m, found.block_size, found.longest_chain
    return f"{n} x {m}", *sizes, f"{calls:,}", f"{ms:,.1f}"


def _total(name, calls, seconds):
    return name, "", "", "", "", f"{calls:,}", f"{1000 * seconds:,.1f}"


def _count(number, noun):
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
