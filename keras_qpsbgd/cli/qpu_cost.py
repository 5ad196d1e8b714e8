"""`qpu-cost`: estimates the cost of training a network on a QPU."""

import functools
import math
import sys
import textwrap
import time

from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd.backends.dwave.cost import layer_cost
from keras_qpsbgd.backends.dwave.cost import step_calls
from keras_qpsbgd.backends.dwave.cost import timing_source
from keras_qpsbgd.cli import console
from keras_qpsbgd.columns import DAMPINGS
from keras_qpsbgd.columns import dense_layers
from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers.averaged_rule import Averaged


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
        print(error, file=sys.stderr)
        return 1
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
    text = f"Timing data: {data}."
    print(textwrap.fill(text, console.WIDTH, break_on_hyphens=False))
    if any(cost.block_size < cost.num_variables for cost in costs):
        print(
            "Layers solved in blocks may need fewer calls, because sweeps over "
            "the blocks can\nstop early."
        )
    if arguments.output:
        _draw_chip(
            backend, [layer[0] for layer in layers], step, arguments.output
        )
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


def _print_steps(arguments, layers, costs, step):
    names = [name for name, _, _ in layers]
    print(_layer_table(names, costs))
    print("\n" + _call_table(names, step))
    print("\n" + _total(arguments.steps, "step", "", step.seconds))
    per_layer = sum(cost.seconds for cost in costs) / step.seconds
    per_column = sum(cost.one_by_one_seconds for cost in costs) / step.seconds
    _print_affordable(arguments, "step", step.seconds)
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
    head = (
        f"{'layer':<24} {'inputs':>7} {'outputs':>7} {'block':>6} "
        f"{'chain':>6} {'calls':>6} {'ms/call':>8} {'ms/sweep':>9}"
    )
    print(f"{head}\n{'-' * len(head)}")
    calls, seconds = 0, 0.0
    for (name, inputs, outputs), cost in zip(layers, costs):
        print(
            f"{name[:24]:<24} {inputs:>7} {outputs:>7} {cost.block_size:>6} "
            f"{cost.longest_chain:>6} {outputs * cost.calls:>6,} "
            f"{1000 * cost.seconds / cost.calls:>8.1f} "
            f"{1000 * outputs * cost.seconds:>9,.1f}"
        )
        calls += outputs * cost.calls
        seconds += outputs * cost.seconds
    print(f"{'all':<53} {calls:>6,} {'':>8} {1000 * seconds:>9,.1f}\n")
    sweeps = arguments.sweeps
    print(_total(sweeps, "sweep", f"{sweeps * calls:,} calls, ", seconds))
    _print_affordable(arguments, "sweep", seconds)
    print("`fit_columns` ends earlier if three sweeps in a row change nothing.")


def _total(count, unit, calls, seconds):
    total = count * seconds
    # Short runs need more digits.
    shown = f"{total:.3g} s" if total < 1 else f"{total:,.1f} s"
    if total > 3600:
        shown += f" ({total / 3600:,.1f} h)"
    plural = "s" if count > 1 else ""
    return f"{count:,} {unit}{plural}: {calls}{shown} of QPU access time."


def _print_affordable(arguments, unit, seconds):
    budget = arguments.budget_seconds
    if budget is not None:
        # Tolerates rounding errors of a budget for exactly these steps.
        count = math.floor(budget / seconds + 1e-9)
        plural = "" if count == 1 else "s"
        print(
            f"A budget of {budget:g} s is enough for {count:,} {unit}{plural}."
        )


def _draw_chip(backend, names, step, path):
    try:
        from keras_qpsbgd.backends.dwave import drawing

        path.parent.mkdir(parents=True, exist_ok=True)
        graph = backend.open().sampler.to_networkx_graph()
        drawing.draw(graph, names, step.calls, path)
    except ImportError:
        print(
            "The chip was not plotted, because Matplotlib is not installed.\n"
            'Install it with `python -m pip install "keras_qpsbgd[plots]"`.'
        )
    else:
        print(f"Plot written to {path}")


def _layer_table(names, costs):
    head = (
        f"{'layer':<24} {'inputs':>7} {'outputs':>7} {'block':>6} "
        f"{'chain':>6} {'calls alone':>12} {'ms alone':>12}"
    )
    lines = [head, "-" * len(head)]
    for name, cost in zip(names, costs):
        lines.append(
            f"{name[:24]:<24} {cost.num_variables:>7} {cost.num_columns:>7} "
            f"{cost.block_size:>6} {cost.longest_chain:>6} {cost.calls:>12,} "
            f"{1000 * cost.seconds:>12,.1f}"
        )
    return "\n".join(lines)


def _call_table(names, step):
    head = (
        f"{'calls/step':>10}  {'layers':<32} {'columns':>7} {'qubits':>6} "
        f"{'ms/call':>8} {'ms/step':>11}"
    )
    lines = [head, "-" * len(head)]
    for call in step.calls:
        layers = ", ".join(names[k] for k in call.layers)
        if len(layers) > 32:
            layers = f"{len(call.layers)} layers from {names[call.layers[0]]}"
        lines.append(
            f"{call.repeats:>10,}  {layers[:32]:<32} "
            f"{len(call.example.slots):>7} {call.example.num_qubits:>6} "
            f"{1000 * call.seconds:>8.1f} "
            f"{1000 * call.repeats * call.seconds:>11,.1f}"
        )
    total = f"{step.num_calls:>10,}  {'all':<32}"
    lines.append(f"{total:<69}{1000 * step.seconds:>11,.1f}")
    return "\n".join(lines)


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
