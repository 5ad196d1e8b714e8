"""`python -m research reproduce`."""

import argparse

from keras_qpsbgd import backends
from keras_qpsbgd.cli import positive
from keras_qpsbgd.compare import methods
from research.experiments import plan
from research.experiments import reproduce
from research.experiments.catalogue import EXPERIMENTS
from research.experiments.options import Options


def add(commands):
    parser = commands.add_parser(
        "reproduce",
        help="run the paper's experiments against tuned baselines",
        description=(
            "Runs experiments of the paper: every method gets the same number "
            "of configurations, the best on validation data is run on fresh "
            "seeds. Writes runs as JSON lines, tables, figures and RESULTS.md. "
            "If it is interrupted, run the same command again to resume."
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
        type=positive,
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
        "--processes", type=positive, help="default: one for each core"
    )
    parser.set_defaults(run=_run)


def _run(arguments):
    names = list(dict.fromkeys(arguments.names))
    for argument, received, known in (
        ("NAME", names, [*EXPERIMENTS, "all"]),
        ("--methods", arguments.methods, list(methods.METHODS)),
    ):
        unknown = [name for name in received if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"`{argument}` must be one of {', '.join(known)}. "
                f"Received: {' '.join(unknown)}"
            )
    if (arguments.seeds or 0) > plan.MAX_SEEDS:
        raise argparse.ArgumentTypeError(
            f"`--seeds` must be at most {plan.MAX_SEEDS}: others are those of "
            f"tuning. Received: {arguments.seeds}"
        )
    stated = [n for n, e in EXPERIMENTS.items() if e.in_paper]
    if "all" in names:
        names = stated if arguments.paper else list(EXPERIMENTS)
    beyond = [name for name in names if name not in stated]
    if arguments.paper and beyond:
        raise argparse.ArgumentTypeError(
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
        raise argparse.ArgumentTypeError(str(error)) from error
    print(f"\nThe page is {page}")
    return 0


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
