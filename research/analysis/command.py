"""`python -m research gaps`, `appendix` and `pictures`."""

import argparse
import time

from keras_qpsbgd.cli.console import positive


def add_gaps(commands):
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
    parser.set_defaults(run=_gaps)


def add_appendix(commands):
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
    parser.set_defaults(run=_appendix)


def _add_folders(parser, out):
    parser.add_argument(
        "--output",
        default=out,
        metavar="DIR",
        help="folder of the results (default: %(default)s)",
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="only write tables and figures again, from the numbers in the "
        "folder",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of the data sets (default: KERAS_QPSBGD_DATA, else the "
        "cache, where they are downloaded to)",
    )


def add_pictures(commands):
    parser = commands.add_parser(
        "pictures",
        help="draw the pictures of the guide on analysis",
        description="Draw the pictures of docs/inside/analysis.md.",
    )
    parser.add_argument(
        "--output",
        default="docs/images",
        metavar="DIR",
        help="folder of the pictures (default: %(default)s)",
    )
    parser.set_defaults(run=_pictures)


def _gaps(arguments):
    from research.analysis import gaps
    from research.analysis import tables

    def measure():
        study = gaps.study(arguments.seeds, arguments.data_dir)
        tables.store(study, arguments.output, tables.GAPS)

    return _run(arguments, measure, tables.write_gaps)


def _appendix(arguments):
    from research.analysis import appendix
    from research.analysis import tables

    def measure():
        study = appendix.study(arguments.data_dir)
        tables.store(study, arguments.output, tables.APPENDIX)

    return _run(arguments, measure, tables.write_appendix)


def _run(arguments, measure, write):
    """Measures, unless `--page` is given, and writes the tables."""
    try:
        if not arguments.page:
            start = time.process_time()
            measure()
            seconds = time.process_time() - start
            print(f"\n{seconds:.0f} CPU seconds.")
        path = write(arguments.output)
    except (ImportError, OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    print(f"The page is {path}")
    return 0


def _pictures(arguments):
    from research.analysis import pictures

    try:
        for path in pictures.draw(arguments.output):
            print(path)
    except (ImportError, OSError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return 0
