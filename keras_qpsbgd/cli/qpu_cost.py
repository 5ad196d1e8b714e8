"""`qpu-cost`: estimates the cost of training a network on a QPU."""

import functools
import math
import textwrap
import time

from tensorflow import keras

from keras_qpsbgd import _tables
from keras_qpsbgd import backends
from keras_qpsbgd.backends.dwave.cost import layer_cost
from keras_qpsbgd.backends.dwave.cost import step_calls
from keras_qpsbgd.backends.dwave.cost import timing_source
from keras_qpsbgd.cli import console
from keras_qpsbgd.columns import DAMPINGS
from keras_qpsbgd.columns import dense_layers
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers.averaged_rule import Averaged

SIZES = ("layer", "inputs", "outputs", "block", "chain")
WIDTHS = (8, 8, 7, 7)


def run(arguments):
    """Runs the command."""
    is_columns = arguments.sweeps is not None
    try:
        _check(arguments)
        layers = _layers(arguments.network, is_columns)
        backend = backends.get(
            {
                "name": "dwave",
                "mock": True,
                "topology": arguments.topology,
                "num_reads": arguments.num_reads,
                "annealing_time": arguments.annealing_time,
                "block_size": arguments.block_size,
            }
        )
        start = time.perf_counter()
        cost_of = functools.cache(functools.partial(layer_cost, backend))
        costs = []
        for name, inputs, outputs in layers:
            console.show_status(f"embedding {name} ...")
            # A visit of a column is a call with a QUBO for each damping.
            together = _num_dampings(arguments) if is_columns else outputs
            costs.append(cost_of(inputs, together))
        step = None
        if not is_columns:
            console.show_status("packing all layers ...")
            step = step_calls(backend, [size for _, *size in layers])
        console.show_status("")
    except (ValueError, OSError, backends.BackendUnavailable) as error:
        return console.fail(str(error))
    embedding = time.perf_counter() - start
    print(
        f"{arguments.topology.capitalize()} chip without dead qubits, "
        f"{arguments.num_reads} reads per call\n"
    )
    if step is None:
        _print_sweeps(arguments, layers, costs)
    else:
        _print_steps(arguments, layers, costs, step)
    print(f"The embeddings took {embedding:.1f} s.")
    data = timing_source(backend.open().sampler)
    _print(f"Timing data: {data}.")
    if any(cost.block_size < cost.num_variables for cost in costs):
        _print(
            "Layers solved in blocks may need fewer calls, because sweeps over "
            "the blocks can stop early."
        )
    if arguments.output:
        _draw_chip(backend, layers, step, arguments.output)
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


def _num_dampings(arguments):
    return arguments.dampings or len(DAMPINGS)


def _print(text):
    print(textwrap.fill(text, console.WIDTH, break_on_hyphens=False))


def _print_steps(arguments, layers, costs, step):
    rows = [
        (*_sizes(layer, cost), f"{cost.calls:,}", _ms(cost.seconds))
        for layer, cost in zip(layers, costs)
    ]
    head = (*SIZES, "calls alone", "ms alone")
    print("\n".join(_tables.table(head, rows, (*WIDTHS, 13, 13))))
    rows = []
    for call in step.calls:
        names = ", ".join(layers[k][0] for k in call.layers)
        if len(names) > 32:
            first = layers[call.layers[0]][0]
            names = f"{len(call.layers)} layers from {first}"
        name = f"{call.repeats:>10,}  {names}"
        used = len(call.example.slots), call.example.num_qubits
        times = _ms(call.seconds), _ms(call.repeats * call.seconds)
        rows.append((name, *used, *times))
    total = f"{step.num_calls:>10,}  all", "", "", "", _ms(step.seconds)
    head = ("calls/step  layers", "columns", "qubits", "ms/call", "ms/step")
    print("\n" + "\n".join(_tables.table(head, [*rows, total], (8, 7, 9, 12))))
    _print_total(arguments, arguments.steps, "step", "", step.seconds)
    per_layer = sum(cost.seconds for cost in costs) / step.seconds
    per_column = sum(cost.one_by_one_seconds for cost in costs) / step.seconds
    print(
        f"Separate calls would take {per_layer:.2f} times as long per layer, "
        f"{per_column:.1f} times per column."
    )


def _print_sweeps(arguments, layers, costs):
    count = _num_dampings(arguments)
    print(
        "Column by column (`fit_columns`), "
        f"{count} QUBO{'s' if count > 1 else ''} per column and sweep\n"
    )
    rows, calls, seconds = [], 0, 0.0
    for layer, cost in zip(layers, costs):
        outputs = layer[2]
        times = _ms(cost.seconds / cost.calls), _ms(outputs * cost.seconds)
        rows.append((*_sizes(layer, cost), f"{outputs * cost.calls:,}", *times))
        calls += outputs * cost.calls
        seconds += outputs * cost.seconds
    rows.append(("all", "", "", "", "", f"{calls:,}", "", _ms(seconds)))
    head = (*SIZES, "calls", "ms/call", "ms/sweep")
    print("\n".join(_tables.table(head, rows, (*WIDTHS, 7, 9, 10))))
    sweeps = arguments.sweeps
    text = f"{sweeps * calls:,} calls, "
    _print_total(arguments, sweeps, "sweep", text, seconds)
    print("`fit_columns` ends earlier if three sweeps in a row change nothing.")


def _sizes(layer, cost):
    return (*layer, cost.block_size, cost.longest_chain)


def _ms(seconds):
    return f"{1000 * seconds:,.1f}"


def _print_total(arguments, count, unit, calls, seconds):
    total = count * seconds
    # Short runs need more digits.
    shown = f"{total:.3g} s" if total < 1 else f"{total:,.1f} s"
    if total > 3600:
        shown += f" ({total / 3600:,.1f} h)"
    plural = "s" if count > 1 else ""
    print(f"\n{count:,} {unit}{plural}: {calls}{shown} of QPU access time.")
    budget = arguments.budget_seconds
    if budget is not None:
        # Tolerates rounding errors of a budget for exactly these steps.
        count = math.floor(budget / seconds + 1e-9)
        plural = "" if count == 1 else "s"
        print(
            f"A budget of {budget:g} s is enough for {count:,} {unit}{plural}."
        )


def _draw_chip(backend, layers, step, path):
    try:
        from keras_qpsbgd.backends.dwave import drawing

        path.parent.mkdir(parents=True, exist_ok=True)
        graph = backend.open().sampler.to_networkx_graph()
        drawing.draw(graph, [name for name, *_ in layers], step.calls, path)
        print(f"Plot written to {path}")
    except ImportError:
        print(
            "The chip was not plotted, because Matplotlib is not installed.\n"
            'Install it with `python -m pip install "keras_qpsbgd[plots]"`.'
        )


def _layers(network, is_columns):
    """Returns the name, inputs and outputs of each QUBO.

    `QPSBGD` divides wide layers into blocks, each with a QUBO of its own.
    `fit_columns` does not.
    """
    if not isinstance(network, list):
        layers = _layers_of_model(network, is_columns)
    else:
        pairs = zip(network, network[1:])
        layers = [(f"{n} x {m}", n, m) for n, m in pairs]
    if is_columns:
        return layers
    blocks = []
    for name, inputs, outputs in layers:
        sizes = blocks.block_sizes(inputs, outputs, Averaged.widest)
        names = blocks.block_names(name, len(sizes))
        blocks += [(each, *size) for each, size in zip(names, sizes)]
    return blocks


def _layers_of_model(path, is_columns):
    """Returns the name, inputs and outputs of each binary layer of a file."""
    model = keras.models.load_model(path, compile=False)
    if is_columns:
        return [
            (layer.name, *layer.kernel.shape) for layer in dense_layers(model)
        ]
    marks = map(statistics.mark_of, model.trainable_variables)
    layers = [
        (mark.name, mark.num_variables, mark.num_columns)
        for mark in filter(None, marks)
    ]
    if not layers:
        raise ValueError(
            "`network` must be a model with binary layers that was built "
            f"before it was saved. Received: {path}"
        )
    return layers
