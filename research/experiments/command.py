"""`python -m research reproduce` and `pages`."""

import argparse
import pathlib

from research import arguments as shared
from research import pages
from research import studies
from research.bench import stored
from research.cifar10 import records as cifar10
from research.cifar10 import table as cifar10_table
from research.engine.methods import METHODS
from research.experiments import reproduce
from research.experiments import results
from research.experiments.catalogue import EXPERIMENTS
from research.experiments.catalogue import MAX_SEEDS
from research.experiments.options import DEFAULT
from research.experiments.options import Options
from research.models import cards

ROOT = pathlib.Path(__file__).parents[2]


def add(commands):
    """Adds the commands."""
    _add_reproduce(commands)
    _add_pages(commands)


def _add_reproduce(commands):
    parser = commands.add_parser(
        "reproduce",
        help="run the paper's experiments against tuned baselines",
        description=(
            "Runs experiments of the paper. Every method gets the same number "
            "of configurations; the best on validation data is run on fresh "
            "seeds. Writes runs as JSON lines, figures and RESULTS.md. "
            "If it is interrupted, run the same command again to resume."
        ),
    )
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help=f"{', '.join(EXPERIMENTS)}, or all",
    )
    shared.add_seeds(
        parser,
        None,
        "number of fresh seeds (default: depends on the experiment, mostly 10)",
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[],
        metavar="METHOD",
        help=(
            f"{', '.join(METHODS)} (default: all except gurobi and dwave, "
            "which take longer; dwave runs on a mock chip)"
        ),
    )
    shared.add_quick(parser)
    parser.add_argument(
        "--paper",
        action="store_true",
        help=(
            "use the paper's settings where it states them: its rule, "
            "unscaled layers, its batches and learning rates, five seeds"
        ),
    )
    shared.add_output(parser, "reproduced")
    shared.add_data(parser)
    shared.add_processes(parser)
    parser.set_defaults(run=shared.reported(_reproduce))


def _add_pages(commands):
    parser = commands.add_parser(
        "pages",
        help="write the tables of results in RESULTS.md, README.md and docs/",
        description=(
            "Writes all tables and figures from the records in results/, and "
            "the blocks <!-- results:NAME --> of the pages, README.md and "
            "docs/. Trains nothing."
        ),
    )
    parser.set_defaults(run=shared.reported(_pages))


def _pages(arguments):
    del arguments
    folders = _folders(ROOT)
    for folder in folders:
        folder.draw()
        print(folder.path, flush=True)
    for path in studies.write_pages(ROOT / "results"):
        print(path, flush=True)
    print(cifar10_table.draw(ROOT / "results" / "cifar10"))
    print(stored.draw(ROOT), flush=True)
    blocks = blocks_of(ROOT, *folders)
    for path in pages.files(ROOT):
        if pages.update(path, blocks):
            print(path)
    return 0


def _folders(root):
    path = pathlib.Path(root, "results")
    return (
        results.Folder(path, Options()),
        results.Folder(path / "paper", Options(paper=True)),
    )


def blocks_of(root, default=None, paper=None):
    """Returns all blocks of a checkout by name.

    Args:
        root: Folder of the checkout.
        default: `Folder` of `results` (optional).
        paper: `Folder` of `results/paper` (optional).
    """
    if default is None:
        default, paper = _folders(root)
    return {
        "cifar10": _cifar10(root),
        "cifar10/step-size": _cifar10(root, "step-size"),
        "cifar10/first": _cifar10(root, "first"),
        **stored.blocks(root),
        **cards.blocks(root),
        **default.placeholders(),
        **default.blocks(),
        **paper.placeholders("paper/"),
        **paper.blocks("paper/"),
    }


def _cifar10(root, *more):
    path = pathlib.Path(root, "results", "cifar10", *more, "runs.jsonl")
    return cifar10_table.markdown(cifar10.read(path))


def _reproduce(arguments):
    names = list(dict.fromkeys(arguments.names))
    shared.check_names("NAME", names, [*EXPERIMENTS, "all"])
    shared.check_names("--methods", arguments.methods, list(METHODS))
    if (arguments.seeds or 0) > MAX_SEEDS:
        raise argparse.ArgumentTypeError(
            f"`--seeds` must be at most {MAX_SEEDS}, since higher seeds "
            f"are used for tuning. Received: {arguments.seeds}"
        )
    stated = [n for n, e in EXPERIMENTS.items() if e.in_paper]
    if "all" in names:
        names = stated if arguments.paper else list(EXPERIMENTS)
    beyond = [name for name in names if name not in stated]
    if arguments.paper and beyond:
        raise argparse.ArgumentTypeError(
            "`--paper` needs experiments of the paper, which has no such "
            f"experiment. Received: {' '.join(beyond)}"
        )
    wanted = Options(
        quick=arguments.quick,
        paper=arguments.paper,
        seeds=arguments.seeds,
        methods=tuple(arguments.methods or DEFAULT),
        data_dir=arguments.data_dir,
    )
    if "all" in arguments.names:
        names = reproduce.with_methods(names, wanted)
    reproduce.reproduce(
        names,
        wanted,
        arguments.output,
        _flags(arguments),
        arguments.processes,
    )
    page = results.report(names, wanted, arguments.output)
    print(f"\nWrote {page}")
    return 0


def _flags(arguments):
    """The options to record; those of the user's machine are left out."""
    words = []
    if arguments.seeds is not None:
        words.append(f"--seeds {arguments.seeds}")
    if arguments.methods:
        words += ["--methods", *arguments.methods]
    return words + ["--quick"] * arguments.quick + ["--paper"] * arguments.paper
