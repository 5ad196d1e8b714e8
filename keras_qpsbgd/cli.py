"""The command line: `python -m keras_qpsbgd ...`."""

import argparse
import re
import sys
import textwrap
import time

WIDTH = 80


def main(argv=None):
    """Runs a command.

    Args:
        argv: list of arguments; `None` takes those of the process.

    Returns:
        The exit code.
    """
    return run(
        "python -m keras_qpsbgd",
        "Train networks of +1 and -1 weights by quantum annealing.",
        (_add_demo, _add_backends, _add_qpu_cost),
        argv,
    )


def run(prog, description, adders, argv=None):
    """Runs one of several commands.

    Args:
        prog: how the program is called.
        description: what it does.
        adders: functions that add a command to what `add_subparsers` returns.
        argv: list of arguments; `None` takes those of the process.

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
        help="train a binary network on handwritten digits (a minute)",
        description=(
            "Trains one binary network on scikit-learn's handwritten digits "
            "with QP-SBGD, with BinaryConnect (Adam) and with its binary "
            "weights frozen, and compares their test accuracy."
        ),
    )
    parser.add_argument(
        "--epochs",
        type=positive,
        help="passes over the training images (default: 20)",
    )
    parser.add_argument(
        "--seeds",
        type=positive,
        help="trainings per method (default: 3)",
    )
    parser.add_argument(
        "--output",
        default="digits.png",
        help="where to put the learning curves (default: %(default)s)",
    )
    parser.add_argument(
        "--no-plot", action="store_true", help="draw no learning curves"
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
        f"Handwritten digits, 10 classes: {len(data.train[0])} images to train "
        f"on,\n{len(data.validation[0])} to validate, {len(data.test[0])} to "
        "test.\n"
        f"A 64-{demo.HIDDEN}-10 network with weights of +1 and -1, "
        f"{epochs} epochs, {seeds} seed{'s' * (seeds > 1)}."
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
            "\nNo picture: matplotlib is not installed "
            '(`python -m pip install "keras_qpsbgd[demo]"`).'
        )
    else:
        print(f"\nLearning curves written to {path}")


def _add_backends(commands):
    parser = commands.add_parser(
        "backends",
        help="list the solvers and whether they can run here",
        description="Lists the solvers and whether they can run here.",
    )
    parser.set_defaults(run=_backends)


def _backends(arguments):
    from keras_qpsbgd import backends

    del arguments
    rows = backends.available()
    names = max(len("backend"), *(len(row.name) for row in rows))
    indent = names + 2 + len("ready") + 2
    print(f"{'backend':<{names}}  ready  what it is, or what is missing")
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
        help="what training a network on a D-Wave QPU would cost",
        description=(
            "Embeds the layers of a network on a D-Wave chip, and estimates "
            "the QPU time of training it. Needs no token and calls no QPU. "
            "Times are those of Ocean's cost model for an Advantage system of "
            "2022, the newest that Ocean ships."
        ),
    )
    parser.add_argument(
        "network",
        help="layer sizes such as 16-4-4-2, or a saved model (.keras, .h5)",
    )
    parser.add_argument(
        "--steps",
        type=positive,
        default=1000,
        help="training steps (default: %(default)s)",
    )
    parser.add_argument(
        "--num-reads",
        type=positive,
        default=100,
        help="anneals per call (default: %(default)s)",
    )
    parser.add_argument(
        "--annealing-time",
        type=float,
        help="microseconds per anneal (default: the chip's, 20)",
    )
    parser.add_argument(
        "--topology",
        choices=["pegasus", "zephyr"],
        default="pegasus",
        help="of the chip (default: %(default)s)",
    )
    parser.add_argument(
        "--block-size",
        type=positive,
        help=(
            "solve wider layers by blocks of so many inputs (default: as a "
            "whole if the chip holds them, else 64)"
        ),
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the layers on the chip"
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
            say(f"embedding {name} ...")
            costs.append(layer_cost(backend, inputs, outputs))
        say("")
    except (ValueError, OSError, backends.BackendUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    embedding = time.perf_counter() - start
    seconds = sum(cost.seconds for cost in costs)
    ratio = sum(cost.one_by_one_seconds for cost in costs) / seconds
    print(
        f"A full {arguments.topology} chip, {arguments.num_reads} reads per "
        "call\n"
    )
    print(_cost_table(layers, costs, arguments.steps))
    total = arguments.steps * seconds
    hours = f" ({total / 3600:,.1f} h)" if total > 3600 else ""
    print(
        f"\n{arguments.steps:,} steps: {total:,.1f} s{hours} of QPU access "
        f"time.\nA call per column would take {ratio:.1f} times as "
        f"much.\nEmbeddings took {embedding:.1f} s and are kept on disk."
    )
    if any(cost.block_size < cost.num_variables for cost in costs):
        print("Layers solved by blocks may need fewer calls: sweeps end early.")
    if arguments.plot:
        _draw_chip(backend, layers, arguments.plot)
    return 0


def _draw_chip(backend, layers, path):
    try:
        from keras_qpsbgd.backends.dwave import drawing

        drawing.draw(backend, layers, path)
    except ImportError:
        print(
            "No picture: matplotlib is not installed "
            '(`python -m pip install "keras_qpsbgd[plots]"`).'
        )
    else:
        print(f"Picture written to {path}")


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
    """Names, inputs and outputs of the binary layers."""
    if re.fullmatch(r"\d+(-\d+)+", network):
        sizes = [int(size) for size in network.split("-")]
        if min(sizes) < 1:
            raise ValueError(
                f"Layers have at least one unit. Received: {network}"
            )
        pairs = zip(sizes, sizes[1:])
        return [(f"{n} x {m}", n, m) for n, m in pairs]
    if not network.endswith((".keras", ".h5")):
        raise ValueError(
            "`network` must be sizes such as 16-4-4-2 or the file of a saved "
            f"model. Received: {network}"
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
            "The model has no binary layer, or was saved before it was built. "
            f"Received: {network}"
        )
    return layers


def _wrap(text, width):
    """Lines of text; what stands in backticks stays on one, to be copied."""
    text = re.sub("`[^`]*`", lambda code: code[0].replace(" ", "\xa0"), text)
    lines = textwrap.wrap(
        text, width, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\xa0", " ") for line in lines] or [""]


def say(text):
    """Shows a line that the next one replaces; a file does not get it."""
    if sys.stdout.isatty():
        print(f"\r{text[: WIDTH - 1]:<{WIDTH - 1}}\r", end="", flush=True)


def positive(text):
    """The type of arguments that are positive integers."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"must be at least 1. Received: {text}"
        )
    return value
