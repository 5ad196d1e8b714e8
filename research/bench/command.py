"""The command `python -m research bench`."""

import argparse
import textwrap

import tensorflow as tf

from keras_qpsbgd.cli.console import WIDTH
from keras_qpsbgd.cli.console import positive
from research.bench.harness import GPU_SUITES
from research.bench.harness import SUITES
from research.bench.harness import Options
from research.bench.harness import on_device
from research.bench.harness import run


def add(commands):
    width = max(map(len, SUITES)) + 2
    parser = commands.add_parser(
        "bench",
        help="measure speed, solvers and accuracy against the alternatives",
        description=textwrap.fill(
            "Run benchmark suites, print tables, and check targets. The exit "
            "code is 1 if a target is missed or a suite fails. The results are "
            "written to bench-SUITE.json. The durations below are for two "
            "cores.",
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
        help="suites to run, listed below (default: all suites)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run about ten times faster, with results that are too rough to "
        "report",
    )
    parser.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        default="cpu",
        help="device to measure on; gpu is for these suites and writes "
        f"bench-SUITE-gpu.json: {', '.join(GPU_SUITES)} (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=positive,
        nargs="+",
        metavar="N",
        help="numbers of threads to measure with (default: 1, 2 or both, "
        "depending on the suite)",
    )
    parser.add_argument(
        "--seeds",
        type=positive,
        metavar="N",
        help="number of training runs per method, for suites that train "
        "(default: depends on the suite)",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of the datasets (default: the environment variable "
        "KERAS_QPSBGD_DATA, else the user cache)",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        default=".",
        help="folder of the results (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="NAME",
        help="rows or columns of the table to measure (default: all)",
    )
    parser.set_defaults(run=_run)


def _run(arguments):
    suites = on_device(arguments.device)
    names = arguments.suites or list(suites)
    unknown = [name for name in names if name not in suites]
    if unknown:
        where = " with `--device gpu`" if arguments.device == "gpu" else ""
        raise argparse.ArgumentTypeError(
            f"`SUITE` must be one of {', '.join(suites)}{where}. "
            f"Received: {' '.join(unknown)}"
        )
    known = [name for suite in names for name in suites[suite].names()]
    unknown = [name for name in arguments.only if name not in known]
    if unknown:
        allowed = ", ".join(dict.fromkeys(known))
        raise argparse.ArgumentTypeError(
            f"`--only` must be one or more of {allowed}. "
            f"Received: {' '.join(unknown)}"
        )
    if arguments.device == "gpu" and not tf.config.list_physical_devices("GPU"):
        raise argparse.ArgumentTypeError(
            "`--device gpu` requires a GPU, and TensorFlow finds none. "
            "Received: device=gpu"
        )
    options = Options(
        quick=arguments.quick,
        seeds=arguments.seeds,
        data_dir=arguments.data_dir,
        only=tuple(arguments.only),
        device=arguments.device,
    )
    return run(names, options, arguments.threads, arguments.output)
