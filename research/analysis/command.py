"""`python -m research gaps` and `python -m research pictures`."""

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
            "gaps.json, table.md and RESULTS.md."
        ),
    )
    parser.add_argument(
        "--seeds",
        type=positive,
        default=10,
        metavar="N",
        help="training runs per network (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        default="results/gaps",
        metavar="DIR",
        help="folder of the results (default: %(default)s)",
    )
    parser.add_argument(
        "--page",
        action="store_true",
        help="only write the page again, from the numbers in the folder",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder of the data sets (default: KERAS_QPSBGD_DATA, else the "
        "cache, where they are downloaded to)",
    )
    parser.set_defaults(run=_gaps)


def add_pictures(commands):
    parser = commands.add_parser(
        "pictures",
        help="draw the pictures of the guide on analysis",
        description="Draw the pictures of docs/inside/analysis.md.",
    )
    parser.add_argument(
        "--out",
        default="docs/images",
        metavar="DIR",
        help="folder of the pictures (default: %(default)s)",
    )
    parser.set_defaults(run=_pictures)


def _gaps(arguments):
    from research.analysis import gaps_page

    try:
        if arguments.page:
            page = gaps_page.write_page(arguments.out)
        else:
            from research.analysis import gaps

            start = time.process_time()
            study = gaps.study(arguments.seeds, arguments.data_dir)
            page = gaps_page.write(study, arguments.out)
            seconds = time.process_time() - start
            print(gaps_page.table(study))
            print(f"\n{seconds:.0f} CPU seconds.")
    except (ImportError, OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    print(f"The page is {page}")
    return 0


def _pictures(arguments):
    from research.analysis import pictures

    try:
        for path in pictures.draw(arguments.out):
            print(path)
    except (ImportError, OSError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return 0
