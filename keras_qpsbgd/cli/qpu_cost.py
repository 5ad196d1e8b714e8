"""`qpu-cost`: estimates the cost of training a network on a QPU."""

import re
import sys
import textwrap
import time

from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd import recording
from keras_qpsbgd.backends.dwave.cost import layer_cost
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
        "--plot",
        metavar="FILE",
        help="write a plot of the layers on the chip to FILE",
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
            }
        )
        start = time.perf_counter()
        costs = []
        for name, inputs, outputs in layers:
            console.show_status(f"embedding {name} ...")
            costs.append(layer_cost(backend, inputs, outputs))
        console.show_status("")
    except (ValueError, OSError, backends.BackendUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    embedding = time.perf_counter() - start
    seconds = sum(cost.seconds for cost in costs)
    ratio = sum(cost.one_by_one_seconds for cost in costs) / seconds
    print(
        f"{arguments.topology.capitalize()} chip without dead qubits, "
        f"{arguments.num_reads} reads per call\n"
    )
    print(_cost_table(layers, costs, arguments.steps))
    total = arguments.steps * seconds
    hours = f" ({total / 3600:,.1f} h)" if total > 3600 else ""
    print(
        f"\n{arguments.steps:,} steps: {total:,.1f} s{hours} of QPU access "
        f"time.\nOne call per column would take {ratio:.1f} times as "
        f"long.\nThe embeddings took {embedding:.1f} s and are cached on disk."
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
        _draw_chip(backend, layers, arguments.plot)
    return 0


def _draw_chip(backend, layers, path):
    try:
        from keras_qpsbgd.backends.dwave.chip import drawing

        drawing.draw(backend, layers, path)
    except ImportError:
        print(
            "The chip was not plotted, because Matplotlib is not installed.\n"
            'Install it with `python -m pip install "keras_qpsbgd[plots]"`.'
        )
    else:
        print(f"Plot written to {path}")


def _cost_table(layers, costs, steps):
    head = (
        f"{'layer':<16} {'inputs':>6} {'outputs':>7} {'chain':>5} "
        f"{'copies':>6} {'calls/step':>10} {'ms/step':>10} {'QPU s':>11}"
    )
    lines = [head, "-" * len(head)]
    for (name, _, _), cost in zip(layers, costs):
        lines.append(
            f"{name[:16]:<16} {cost.num_variables:>6} {cost.num_columns:>7} "
            f"{cost.longest_chain:>5} {cost.copies:>6} {cost.calls:>10} "
            f"{1000 * cost.seconds:>10,.1f} {steps * cost.seconds:>11,.1f}"
        )
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
