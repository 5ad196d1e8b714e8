"""The commands `quantize`, `few-solves`, `gaps`, `appendix` and `pictures`."""

import argparse

from keras_qpsbgd.backends import BackendUnavailable
from keras_qpsbgd.cli.console import positive

QUANTIZE = ("mnist", "digits", "cora", "cifar10", "transformer")
FEW_SOLVES = ("logistic", "adult", "digits", "mnist")
RESUMED = "If it is interrupted, run the same command again to resume."


def add(commands):
    """Adds the commands."""
    _add_quantize(commands)
    _add_few_solves(commands)
    _add_gaps(commands)
    _add_appendix(commands)
    _add_pictures(commands)


def _add_quantize(commands):
    parser = commands.add_parser(
        "quantize",
        help="quantize trained networks and compare the methods",
        description=(
            "Quantize float networks with 1 to 4 bits by every method, and "
            "compare accuracies and output errors. Writes records as JSON "
            "lines, a figure and RESULTS.md. "
            f"{RESUMED}"
        ),
        epilog=(
            "CIFAR-10 must be in the data folder as cifar10.npz, with the "
            "arrays x_train, y_train, x_test and y_test of "
            "keras.datasets.cifar10.load_data(). The other data are stored or "
            "downloaded. research/quantization/train_on_gpu.py trained the "
            "networks of cifar10 and transformer."
        ),
    )
    parser.add_argument(
        "--seeds",
        type=positive,
        default=5,
        metavar="N",
        help="float networks per task (default: %(default)s)",
    )
    parser.add_argument(
        "--processes",
        type=positive,
        metavar="N",
        help="parallel processes of one thread each (default: one per core)",
    )
    _add_shared(parser, QUANTIZE, "results/quantize")
    parser.set_defaults(run=_reported(_quantize))


def _add_few_solves(commands):
    parser = commands.add_parser(
        "few-solves",
        help="compare fit_columns at equal cost",
        description=(
            "Train single layers and networks by fit_columns, by QP-SBGD, and "
            "by methods without a QUBO. Compare them at equal numbers of "
            "gradient evaluations, equal QPU time and equal CPU time (about 25 "
            "minutes of one core). Writes records, figures and RESULTS.md. "
            f"{RESUMED}"
        ),
    )
    _add_shared(parser, FEW_SOLVES, "results/few-solves")
    parser.set_defaults(run=_reported(_few_solves))


def _add_gaps(commands):
    parser = commands.add_parser(
        "gaps",
        help="measure what raises the spectral gap of small networks",
        description=(
            "Compute the spectral gaps of the QUBOs of small networks on UCI "
            "Adult, and what the scale of the gradient, held variables and "
            "damped couplings change (about two CPU minutes). Writes "
            "gaps.json, table.md and the tables of RESULTS.md."
        ),
    )
    parser.add_argument(
        "--seeds",
        type=positive,
        default=10,
        metavar="N",
        help="training runs per network (default: %(default)s)",
    )
    _add_folders(parser, "results/gaps")
    parser.set_defaults(run=_reported(_gaps))


def _add_appendix(commands):
    parser = commands.add_parser(
        "appendix",
        help="draw the figures of the paper's appendix",
        description=(
            "Train a small network on MNIST digits with the mock QPU, and draw "
            "the figures of the paper's appendix beside what it reports (about "
            "two CPU minutes). Takes gaps and directions from `results/`. "
            "Writes appendix.json, the figures, and the table of RESULTS.md."
        ),
    )
    _add_folders(parser, "results/appendix")
    parser.set_defaults(run=_reported(_appendix))


def _add_pictures(commands):
    parser = commands.add_parser(
        "pictures",
        help="draw the pictures of docs/inside",
        description=(
            "Draw the pictures of docs/inside/analysis.md, and with Chromium "
            "that of docs/inside/report.md."
        ),
    )
    parser.add_argument(
        "--output",
        default="docs/images",
        metavar="DIR",
        help="folder of the pictures (default: %(default)s)",
    )
    parser.set_defaults(run=_pictures)


def _add_shared(parser, names, output):
    """Adds the options that both commands have."""

    def tasks(text):
        found = text.split(",")
        unknown = [name for name in found if name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"must be one or more of {', '.join(names)}. "
                f"Received: {', '.join(unknown)}"
            )
        return found

    parser.add_argument(
        "--tasks",
        type=tasks,
        default=names,
        metavar="NAME,...",
        help=f"tasks, separated by commas (default: {','.join(names)})",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short runs that only show that it works",
    )
    _add_folders(parser, output)


def _add_folders(parser, output):
    """Adds the options that all studies have."""
    parser.add_argument(
        "--output",
        default=output,
        metavar="DIR",
        help="folder of the results (default: %(default)s)",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of the data sets (default: KERAS_QPSBGD_DATA, else the "
        "cache, where they are downloaded to)",
    )


def _quantize(arguments):
    from research.quantization import page
    from research.quantization import study

    study.run(
        arguments.tasks,
        arguments.seeds,
        arguments.output,
        arguments.data_dir,
        arguments.quick,
        arguments.processes,
    )
    return page.write(arguments.output)


def _few_solves(arguments):
    from research.few_solves import page
    from research.few_solves import study

    study.run(
        arguments.tasks, arguments.output, arguments.data_dir, arguments.quick
    )
    return page.write(arguments.output)


def _gaps(arguments):
    from research.analysis import gaps

    found = gaps.study(arguments.seeds, arguments.data_dir)
    gaps.store(found, arguments.output)
    return gaps.write(arguments.output)


def _appendix(arguments):
    from research.analysis import appendix
    from research.analysis import appendix_page

    found = appendix.study(arguments.data_dir)
    appendix.store(found, arguments.output)
    return appendix_page.write(arguments.output)


def write_pages(results):
    """Writes the pages of all studies again, from their records.

    Args:
        results: Folder of all results.

    Returns:
        List of the paths of the pages.
    """
    from research.analysis import appendix_page
    from research.analysis import gaps
    from research.few_solves import page as few_solves
    from research.quantization import page as quantization

    return [
        quantization.write(results / "quantize"),
        few_solves.write(results / "few-solves"),
        gaps.write(results / "gaps"),
        appendix_page.write(results / "appendix"),
    ]


def _pictures(arguments):
    from research.analysis import pictures

    try:
        for path in pictures.draw(arguments.output):
            print(path)
    except (ImportError, OSError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return 0


def _reported(run):
    """Returns a command that prints the page or an error."""

    def command(arguments):
        try:
            written = run(arguments)
        except (
            BackendUnavailable,
            ImportError,
            OSError,
            ValueError,
        ) as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        print(f"The page is {written}")
        return 0

    return command
