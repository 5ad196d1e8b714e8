"""`qpu-cost`: estimates the cost of training a network on a QPU."""

import re
import sys
import textwrap
import time

from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd import recording
from keras_qpsbgd.backends.dwave.cost import layer_cost
from keras_qpsbgd.backends.dwave.cost import step_calls
from keras_qpsbgd.backends.dwave.leap import timing
from keras_qpsbgd.cli import console


def add(commands):
    """Adds the command `qpu-cost`."""
    parser = commands.add_parser(
        "qpu-cost",
        help="estimate the cost of training a network on a D-Wave QPU",
        description=(
            "Embed the layers of a network on a D-Wave chip and estimate the "
            "QPU time of training it. No API token is needed, and no QPU is "
            "called. Times are estimated with Ocean's cost model and timing "
            "data that D-Wave has published. The output names the solver and "
            "the date of these data."
        ),
    )
    parser.add_argument(
        "network",
        help="layer sizes such as 16-4-4-2, or the file of a saved model "
        "(.keras, .h5)",
    )
    parser.add_argument(
        "--steps",
        type=console.positive,
        default=1000,
        metavar="N",
        help="number of training steps (default: %(default)s)",
    )
    parser.add_argument(
        "--num-reads",
        type=console.positive,
        default=100,
        metavar="N",
        help="number of anneals per QPU call (default: %(default)s)",
    )
    parser.add_argument(
        "--annealing-time",
        type=float,
        metavar="T",
        help="annealing time in microseconds (default: the default of the "
        "chip, 20)",
    )
    parser.add_argument(
        "--topology",
        choices=["pegasus", "zephyr"],
        default="pegasus",
        help="topology of the chip (default: %(default)s)",
    )
    parser.add_argument(
        "--block-size",
        type=console.positive,
        metavar="N",
        help="solve wider layers in blocks of N inputs (default: 64 for layers "
        "that do not fit on the chip; other layers are solved whole)",
    )
    parser.add_argument(
        "--replicas",
        choices=["1", "fill"],
        default="1",
        help="`fill` anneals further copies of the columns on the spare qubits "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="write a plot of the calls to FILE, with one color per layer",
    )
    parser.set_defaults(run=_run)


def _run(arguments):
    try:
        layers = _layers(arguments.network)
        backend = backends.get(
            {
                "name": "dwave",
                "mock": True,
                "topology": arguments.topology,
                "num_reads": arguments.num_reads,
                "annealing_time": arguments.annealing_time,
                "block_size": arguments.block_size,
                "replicas": 1 if arguments.replicas == "1" else "fill",
            }
        )
        start = time.perf_counter()
        costs = []
        for name, inputs, outputs in layers:
            console.show_status(f"embedding {name} ...")
            costs.append(layer_cost(backend, inputs, outputs))
        console.show_status("packing all layers ...")
        step = step_calls(backend, [size for _, *size in layers])
        console.show_status("")
    except (ValueError, OSError, backends.BackendUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    embedding = time.perf_counter() - start
    names = [name for name, _, _ in layers]
    print(
        f"{arguments.topology.capitalize()} chip without dead qubits, "
        f"{arguments.num_reads} reads per call\n"
    )
    print(_layer_table(names, costs))
    print("\n" + _call_table(names, step))
    total = arguments.steps * step.seconds
    hours = f" ({total / 3600:,.1f} h)" if total > 3600 else ""
    per_layer = sum(cost.seconds for cost in costs) / step.seconds
    per_column = sum(cost.one_by_one_seconds for cost in costs) / step.seconds
    print(
        f"\n{arguments.steps:,} steps: {total:,.1f} s{hours} of QPU access "
        f"time.\nSeparate calls would take {per_layer:.2f} times as long per "
        f"layer, {per_column:.1f} times per column.\nThe embeddings took "
        f"{embedding:.1f} s and are cached on disk."
    )
    data = timing.source(backend.open().sampler)
    text = f"Timing data: {data}."
    print(textwrap.fill(text, console.WIDTH, break_on_hyphens=False))
    if any(cost.block_size < cost.num_variables for cost in costs):
        print(
            "Layers solved in blocks may need fewer calls, because sweeps can "
            "stop early."
        )
    if arguments.plot:
        _draw_chip(backend, names, step, arguments.plot)
    return 0


def _draw_chip(backend, names, step, path):
    try:
        from keras_qpsbgd.backends.dwave.chip import drawing

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


def _layers(network):
    """Returns the name, inputs and outputs of each binary layer."""
    if re.fullmatch(r"\d+(-\d+)+", network):
        sizes = [int(size) for size in network.split("-")]
        if min(sizes) < 1:
            raise ValueError(
                "`network` must have at least one unit in every layer. "
                f"Received: {network}"
            )
        pairs = zip(sizes, sizes[1:])
        return [(f"{n} x {m}", n, m) for n, m in pairs]
    if not network.endswith((".keras", ".h5")):
        raise ValueError(
            "`network` must be layer sizes such as 16-4-4-2, or the file of a "
            f"saved model (.keras, .h5). Received: {network}"
        )
    model = keras.models.load_model(network, compile=False)
    marks = map(recording.mark_of, model.trainable_variables)
    layers = [
        (mark.name, mark.num_variables, mark.num_columns)
        for mark in filter(None, marks)
    ]
    if not layers:
        raise ValueError(
            "`network` must be a model with binary layers that was built "
            f"before it was saved. Received: {network}"
        )
    return layers
