"""Command line interface: `python -m keras_qpsbgd ...`."""

import argparse
import re
import sys
import textwrap
import time

WIDTH = 80


def main(argv=None):
    """Runs a command.

    Args:
        argv: List of strings (optional). Command line arguments. Defaults to
            the arguments of the process.

    Returns:
        The exit code.
    """
    return run(
        "python -m keras_qpsbgd",
        "Train binary neural networks (weights of +1 and -1) with QUBO solvers "
        "and quantum annealers.",
        (_add_demo, _add_backends, _add_qpu_cost),
        argv,
    )


def run(prog, description, adders, argv=None):
    """Parses the arguments and runs one of several commands.

    Args:
        prog: String. Name of the program in help messages.
        description: String. Description of the program in help messages.
        adders: Functions that each add a command to the object returned by
            `add_subparsers`.
        argv: List of strings (optional). Command line arguments. Defaults to
            the arguments of the process.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description)
    commands = parser.add_subparsers(metavar="command", required=True)
    for add in adders:
        add(commands)
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except argparse.ArgumentTypeError as error:
        print(error, file=sys.stderr)
        return 1


def _add_demo(commands):
    parser = commands.add_parser(
        "demo",
        help="train a binary network on handwritten digits (about a minute)",
        description=(
            "Train a binary network on scikit-learn's handwritten digits with "
            "three methods and compare the test accuracy: QP-SBGD, "
            "BinaryConnect (Adam), and frozen binary weights."
        ),
    )
    parser.add_argument(
        "--epochs",
        type=positive,
        metavar="N",
        help="number of training epochs (default: 20)",
    )
    parser.add_argument(
        "--seeds",
        type=positive,
        metavar="N",
        help="number of training runs per method (default: 3)",
    )
    parser.add_argument(
        "--output",
        default="digits.png",
        metavar="FILE",
        help="write a plot of the learning curves to FILE "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--no-plot",
        action="store_true",
        help="do not plot the learning curves",
    )
    parser.set_defaults(run=_demo)


def _demo(arguments):
    from keras_qpsbgd import demo

    start = time.perf_counter()
    try:
        data = demo.load()
    except demo.MissingPackage as error:
        print(error, file=sys.stderr)
        return 1
    epochs = arguments.epochs or demo.EPOCHS
    seeds = arguments.seeds or demo.SEEDS
    print(
        "Data: handwritten digits, 10 classes\n"
        f"Images: {len(data.train[0])} for training, "
        f"{len(data.validation[0])} for validation, "
        f"{len(data.test[0])} for testing\n"
        f"Network: 64-{demo.HIDDEN}-10, weights of +1 and -1\n"
        f"Training: {epochs} epoch{'s' * (epochs > 1)}, "
        f"{seeds} seed{'s' * (seeds > 1)}"
    )
    runs = []
    for method in demo.METHODS:
        training = demo.Training(method, data, epochs)
        for seed in range(seeds):
            print(f"\n{method}, seed {seed}", flush=True)
            runs.append(training.run(seed))
    print("\n" + demo.table(runs))
    if seeds > 1:
        print("+- is the standard error of the mean over seeds.")
    if not arguments.no_plot:
        _plot(demo, runs, arguments.output)
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")
    return 0


def _plot(demo, runs, path):
    try:
        demo.plot(runs, path)
    except ImportError:
        print(
            "\nThe learning curves were not plotted, because Matplotlib is not "
            "installed.\nInstall it with "
            '`python -m pip install "keras_qpsbgd[demo]"`.'
        )
    else:
        print(f"\nLearning curves written to {path}")


def _add_backends(commands):
    parser = commands.add_parser(
        "backends",
        help="list all solvers and whether they can run on this machine",
        description=(
            "List all solver backends, whether each of them can run on this "
            "machine, and what is missing if it cannot."
        ),
    )
    parser.set_defaults(run=_backends)


def _backends(arguments):
    from keras_qpsbgd import backends

    del arguments
    rows = backends.available()
    names = max(len("backend"), *(len(row.name) for row in rows))
    indent = names + 2 + len("ready") + 2
    print(f"{'backend':<{names}}  ready  description, or what is missing")
    print("-" * WIDTH)
    for row in rows:
        ready = "yes" if row.available else "no"
        text = row.summary if row.available else row.missing
        lines = _wrap(text, WIDTH - indent)
        print(f"{row.name:<{names}}  {ready:<5}  {lines[0]}")
        for line in lines[1:]:
            print(" " * indent + line)
    return 0


def _add_qpu_cost(commands):
    parser = commands.add_parser(
        "qpu-cost",
        help="estimate the cost of training a network on a D-Wave QPU",
        description=(
            "Embed the layers of a network on a D-Wave chip and estimate the "
            "QPU time of training it. No API token is needed, and no QPU is "
            "called. Times are estimated with Ocean's cost model for an "
            "Advantage system from 2022, the newest model that Ocean includes."
        ),
    )
    parser.add_argument(
        "network",
        help="layer sizes such as 16-4-4-2, or the file of a saved model "
        "(.keras, .h5)",
    )
    parser.add_argument(
        "--steps",
        type=positive,
        default=1000,
        metavar="N",
        help="number of training steps (default: %(default)s)",
    )
    parser.add_argument(
        "--num-reads",
        type=positive,
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
        type=positive,
        metavar="N",
        help="solve wider layers in blocks of N inputs (default: 64 for layers "
        "that do not fit on the chip; other layers are solved whole)",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="write a plot of the layers on the chip to FILE",
    )
    parser.set_defaults(run=_qpu_cost)


def _qpu_cost(arguments):
    from keras_qpsbgd import backends
    from keras_qpsbgd.backends.dwave.cost import layer_cost

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
            show_status(f"embedding {name} ...")
            costs.append(layer_cost(backend, inputs, outputs))
        show_status("")
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
        from keras_qpsbgd.backends.dwave import drawing

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
    from tensorflow import keras

    from keras_qpsbgd import recording

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


def _wrap(text, width):
    """Wraps text, but keeps code in backticks on one line for copying."""
    text = re.sub("`[^`]*`", lambda code: code[0].replace(" ", "\xa0"), text)
    lines = textwrap.wrap(
        text, width, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\xa0", " ") for line in lines] or [""]


def show_status(text):
    """Shows a status line in a terminal, which the next output replaces."""
    if sys.stdout.isatty():
        print(f"\r{text[: WIDTH - 1]:<{WIDTH - 1}}\r", end="", flush=True)


def positive(text):
    """Converts an argument to a positive integer."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"must be at least 1. Received: {text}"
        )
    return value
