"""`python -m research bench`."""

import argparse
import textwrap

from keras_qpsbgd.cli import WIDTH
from keras_qpsbgd.cli import positive
from research.bench.options import Options
from research.bench.run import run
from research.bench.suites import SUITES


def add(commands):
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
        type=positive,
        nargs="+",
        metavar="N",
        help="numbers of threads (default: those of the suite, 1 and 2)",
    )
    parser.add_argument(
        "--seeds", type=positive, help="trainings per method, where it trains"
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
    parser.set_defaults(run=_run)


def _run(arguments):
    names = arguments.suites or list(SUITES)
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"`SUITE` must be one of {', '.join(SUITES)}. "
            f"Received: {' '.join(unknown)}"
        )
    known = [name for suite in names for name in SUITES[suite].names()]
    unknown = [name for name in arguments.only if name not in known]
    if unknown:
        allowed = ", ".join(dict.fromkeys(known))
        raise argparse.ArgumentTypeError(
            f"`--only` takes {allowed}. Received: {' '.join(unknown)}"
        )
    options = Options(
        quick=arguments.quick,
        seeds=arguments.seeds,
        data_dir=arguments.data_dir,
        only=tuple(arguments.only),
    )
    return run(names, options, arguments.threads, arguments.output)
