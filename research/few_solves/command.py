"""`python -m research few-solves`."""

import argparse

from keras_qpsbgd.backends import BackendUnavailable
from research.datasets import DamagedFile
from research.datasets import MissingFile

NAMES = (
    "logistic",
    "layer-16",
    "layer-49",
    "pairs",
    "adult",
    "cora",
    "mnist-5000",
    "mnist-20000",
    "mnist-bn-5000",
    "mnist-bn-20000",
    "mnist-bn-3-epochs",
    "mnist-bn-10-epochs",
)


def add(commands):
    parser = commands.add_parser(
        "few-solves",
        help="train with 1 to 100 solver calls per column",
        description=(
            "Train single layers and networks with few updates, by QP-SBGD, "
            "column by column, and by methods without a QUBO. "
            "Writes records, figures and RESULTS.md. If it is interrupted, run "
            "the same command again to resume. The tasks on MNIST take hours."
        ),
    )
    parser.add_argument(
        "--tasks",
        type=_tasks,
        default=NAMES,
        metavar="NAME,...",
        help=f"tasks, separated by commas (default: {','.join(NAMES)})",
    )
    parser.add_argument(
        "--methods",
        type=lambda text: text.split(","),
        metavar="NAME,...",
        help="methods of the tasks, separated by commas (default: all)",
    )
    parser.add_argument(
        "--annealer",
        action="store_true",
        help="train the small tasks with native, Gurobi and the mock QPU, "
        "instead of the others",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short runs that only show that it works",
    )
    parser.add_argument(
        "--out",
        default="results/few-solves",
        metavar="DIR",
        help="folder of the results (default: %(default)s)",
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="only write the page and the figures again, from the records",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of the data sets (default: KERAS_QPSBGD_DATA, else the "
        "cache, where they are downloaded to)",
    )
    parser.set_defaults(run=_run)


def _tasks(text):
    names = text.split(",")
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"must be one or more of {', '.join(NAMES)}. "
            f"Received: {', '.join(unknown)}"
        )
    return names


def _run(arguments):
    from research.few_solves import annealer
    from research.few_solves import page
    from research.few_solves import study

    try:
        if arguments.annealer and not arguments.page:
            annealer.run(arguments.out, arguments.data_dir, arguments.quick)
        elif not arguments.page:
            study.run(
                arguments.tasks,
                arguments.out,
                arguments.data_dir,
                arguments.quick,
                arguments.methods,
            )
        written = page.write(arguments.out)
    except (
        BackendUnavailable,
        DamagedFile,
        ImportError,
        MissingFile,
        ValueError,
    ) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    print(f"The page is {written}")
    return 0
