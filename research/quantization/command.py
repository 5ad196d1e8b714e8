"""`python -m research quantize`."""

import argparse

from keras_qpsbgd.cli.console import positive
from research.datasets import DamagedFile
from research.datasets import MissingFile

NAMES = ("mnist", "mnist-bn", "cifar10", "cora", "pubmed", "digits")


def add(commands):
    parser = commands.add_parser(
        "quantize",
        help="quantize trained networks and compare the methods",
        description=(
            "Train float networks, quantize them with 1 to 4 bits by every "
            "method, fine-tune the results, and train the same networks from "
            "scratch. Writes records as JSON lines, figures and RESULTS.md. If "
            "it is interrupted, run the same command again to resume."
        ),
        epilog=(
            "CIFAR-10 must be in the data folder as cifar10.npz, with the "
            "arrays x_train, y_train, x_test and y_test of "
            "keras.datasets.cifar10.load_data(). The other data are downloaded."
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
        "--seeds",
        type=positive,
        default=5,
        metavar="N",
        help="float networks per task (default: %(default)s)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short runs that only show that it works",
    )
    parser.add_argument(
        "--processes",
        type=positive,
        metavar="N",
        help="parallel processes of one thread each (default: one per core)",
    )
    parser.add_argument(
        "--out",
        default="results/quantize",
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
        "cache, where all but cifar10.npz are downloaded to)",
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
    from research.quantization import page
    from research.quantization import study

    try:
        if not arguments.page:
            study.run(
                arguments.tasks,
                arguments.seeds,
                arguments.out,
                arguments.data_dir,
                arguments.quick,
                arguments.processes,
            )
        written = page.write(arguments.out)
    except (
        DamagedFile,
        ImportError,
        MissingFile,
        ValueError,
    ) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    print(f"The page is {written}")
    return 0
