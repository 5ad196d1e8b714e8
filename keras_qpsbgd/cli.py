"""The command line: `python -m keras_qpsbgd ...`."""

import argparse
import re
import sys
import textwrap
import time

from keras_qpsbgd.bench.progress import WIDTH
from keras_qpsbgd.bench.progress import say


def main(argv=None):
    """Runs a command.

    Args:
        argv: list of arguments; `None` takes those of the process.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m keras_qpsbgd",
        description="Train networks of +1 and -1 weights by quantum annealing.",
    )
    commands = parser.add_subparsers(metavar="command", required=True)
    _add_demo(commands)
    _add_backends(commands)
    _add_qpu_cost(commands)
    _add_bench(commands)
    _add_reproduce(commands)
    arguments = parser.parse_args(argv)
    return arguments.run(arguments)


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
        type=_positive,
        help="passes over the training images (default: 20)",
    )
    parser.add_argument(
        "--seeds",
        type=_positive,
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
    from keras_qpsbgd.experiments import digits

    start = time.perf_counter()
    try:
        data = digits.load()
    except digits.MissingPackage as error:
        print(error, file=sys.stderr)
        return 1
    epochs = arguments.epochs or digits.EPOCHS
    seeds = arguments.seeds or digits.SEEDS
    print(
        f"Handwritten digits, 10 classes: {len(data.train[0])} images to train "
        f"on,\n{len(data.validation[0])} to validate, {len(data.test[0])} to "
        "test.\n"
        f"A 64-{digits.HIDDEN}-10 network with weights of +1 and -1, "
        f"{epochs} epochs, {seeds} seed{'s' * (seeds > 1)}."
    )
    runs = []
    for method in digits.METHODS:
        training = digits.Training(method, data, epochs)
        for seed in range(seeds):
            print(f"\n{method}, seed {seed}", flush=True)
            runs.append(training.run(seed))
    print("\n" + digits.table(runs))
    if seeds > 1:
        print("+- is the standard error of the mean over seeds.")
    if not arguments.no_plot:
        _plot(digits, runs, arguments.output)
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")
    return 0


def _plot(digits, runs, path):
    try:
        digits.plot(runs, path)
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
        type=_positive,
        default=1000,
        help="training steps (default: %(default)s)",
    )
    parser.add_argument(
        "--num-reads",
        type=_positive,
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
        type=_positive,
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
    from keras_qpsbgd.backends.qpu_cost import layer_cost

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
        from keras_qpsbgd.backends import chip_drawing

        chip_drawing.draw(backend, layers, path)
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


def _add_bench(commands):
    from keras_qpsbgd.bench.suites import SUITES

    width = max(map(len, SUITES)) + 2
    parser = commands.add_parser(
        "bench",
        help="measure speed, solvers and accuracy against the alternatives",
        description=textwrap.fill(
            "Measures, prints tables and whether each target was reached "
            "(exit code 1 if one was not), and writes bench-SUITE.json and "
            "bench-SUITE.png. Times are for two cores.",
            WIDTH,
        ),
        epilog="suites:\n"
        + "\n".join(
            f"  {name:<{width}}{suite.HELP}" for name, suite in SUITES.items()
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "suites",
        nargs="*",
        metavar="SUITE",
        help="what to measure, see below (default: everything)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="about ten times shorter: a first look, not for figures",
    )
    parser.add_argument(
        "--threads",
        type=_positive,
        nargs="+",
        metavar="N",
        help="numbers of threads (default: those of the suite, 1 and 2)",
    )
    parser.add_argument(
        "--seeds", type=_positive, help="trainings per method, where it trains"
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="where the data sets are (default: as `datasets` has it)",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        default=".",
        help="where to put results and figures (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="NAME",
        help="rows or columns to measure, as the table names them",
    )
    parser.set_defaults(run=_bench)


def _bench(arguments):
    from keras_qpsbgd.bench.options import Options
    from keras_qpsbgd.bench.run import run
    from keras_qpsbgd.bench.suites import SUITES

    names = arguments.suites or list(SUITES)
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        return _refuse(
            f"`SUITE` must be one of {', '.join(SUITES)}. "
            f"Received: {' '.join(unknown)}"
        )
    known = [name for suite in names for name in SUITES[suite].names()]
    unknown = [name for name in arguments.only if name not in known]
    if unknown:
        allowed = ", ".join(dict.fromkeys(known))
        return _refuse(
            f"`--only` takes {allowed}. Received: {' '.join(unknown)}"
        )
    options = Options(
        quick=arguments.quick,
        seeds=arguments.seeds,
        data_dir=arguments.data_dir,
        only=tuple(arguments.only),
    )
    return run(names, options, arguments.threads, arguments.output)


def _add_reproduce(commands):
    parser = commands.add_parser(
        "reproduce",
        help="run the paper's experiments against tuned baselines",
        description=(
            "Runs experiments of the paper: every method gets the same number "
            "of configurations, the best on validation data is run on fresh "
            "seeds. Writes runs as JSON lines, tables, figures and RESULTS.md. "
            "A killed command goes on where it was when it is given again."
        ),
    )
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help=(
            "logistic, adult-2layer, adult-10layer, adult-small, mnist-pairs, "
            "karate, cora, pubmed, direction, mnist, or all"
        ),
    )
    parser.add_argument(
        "--seeds",
        type=_positive,
        help="fresh seeds (default: that of each experiment, mostly 10)",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[],
        metavar="METHOD",
        help=(
            "native, gurobi, dwave, ridge, sign, sgd, signsgd, adam, "
            "proxquant, bop, frozen, real (default: all but gurobi and dwave, "
            "which take longer; the chip of dwave is mocked)"
        ),
    )
    parser.add_argument(
        "--backend",
        help="what solves the QUBOs of QP-SBGD (default: native)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short runs, to see that it works; no result",
    )
    parser.add_argument(
        "--paper",
        action="store_true",
        help=(
            "all that the paper states, as it states it: raw gradients, "
            "unscaled layers, its batches and learning rates, five runs"
        ),
    )
    parser.add_argument(
        "--out",
        default="reproduced",
        metavar="DIR",
        help="folder of the results (default: %(default)s)",
    )
    parser.add_argument(
        "--page",
        metavar="FILE",
        help="where to put the page (default: RESULTS.md in the folder)",
    )
    parser.add_argument(
        "--data-dir",
        help=(
            "folder of the data sets (default: KERAS_QPSBGD_DATA, else the "
            "cache, where they are downloaded to)"
        ),
    )
    parser.add_argument(
        "--processes", type=_positive, help="default: one for each core"
    )
    parser.set_defaults(run=_reproduce)


def _reproduce(arguments):
    from keras_qpsbgd import backends
    from keras_qpsbgd.experiments import methods
    from keras_qpsbgd.experiments import plan
    from keras_qpsbgd.experiments import reproduce
    from keras_qpsbgd.experiments.catalogue import EXPERIMENTS
    from keras_qpsbgd.experiments.options import Options

    names = list(dict.fromkeys(arguments.names))
    for argument, received, known in (
        ("NAME", names, [*EXPERIMENTS, "all"]),
        ("--methods", arguments.methods, list(methods.METHODS)),
    ):
        unknown = [name for name in received if name not in known]
        if unknown:
            return _refuse(
                f"`{argument}` must be one of {', '.join(known)}. "
                f"Received: {' '.join(unknown)}"
            )
    if (arguments.seeds or 0) > plan.MAX_SEEDS:
        return _refuse(
            f"`--seeds` must be at most {plan.MAX_SEEDS}: others are those of "
            f"tuning. Received: {arguments.seeds}"
        )
    stated = [n for n, e in EXPERIMENTS.items() if e.in_paper]
    if "all" in names:
        names = stated if arguments.paper else list(EXPERIMENTS)
    beyond = [name for name in names if name not in stated]
    if arguments.paper and beyond:
        return _refuse(
            "`--paper` takes what the paper states, which has no such "
            f"experiment. Received: {' '.join(beyond)}"
        )
    options = Options(
        quick=arguments.quick,
        paper=arguments.paper,
        seeds=arguments.seeds,
        backend=arguments.backend,
        methods=tuple(arguments.methods or methods.DEFAULT),
        data_dir=arguments.data_dir,
    )
    if "all" in arguments.names:
        names = reproduce.with_methods(names, options)
    try:
        reproduce.reproduce(
            names,
            options,
            arguments.out,
            _flags(arguments),
            arguments.processes,
        )
        page = reproduce.report(names, options, arguments.out, arguments.page)
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.")
        return 130
    except (
        backends.BackendUnavailable,
        ValueError,
        ImportError,
        OSError,
    ) as error:
        return _refuse(error)
    print(f"\nThe page is {page}")
    return 0


def _refuse(message):
    """Says what is wrong; the exit code."""
    print(message, file=sys.stderr)
    return 1


def _flags(arguments):
    """What was asked for, without what concerns the user's machine."""
    words = []
    if arguments.seeds is not None:
        words.append(f"--seeds {arguments.seeds}")
    if arguments.methods:
        words += ["--methods", *arguments.methods]
    if arguments.backend is not None:
        words.append(f"--backend {arguments.backend}")
    return words + ["--quick"] * arguments.quick + ["--paper"] * arguments.paper


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


def _positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"must be at least 1. Received: {text}"
        )
    return value
