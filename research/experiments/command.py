"""`python -m research reproduce`, `verify` and `pages`."""

import argparse
import pathlib

from research import arguments as shared
from research import code_version
from research import pages
from research import studies
from research.bench import stored
from research.cifar10 import records as cifar10
from research.cifar10 import table as cifar10_table
from research.engine.methods import METHODS
from research.experiments import claims
from research.experiments import front
from research.experiments import readings
from research.experiments import reproduce
from research.experiments import results
from research.experiments import verify
from research.experiments.catalogue import EXPERIMENTS
from research.experiments.catalogue import MAX_SEEDS
from research.experiments.options import LOSSES
from research.experiments.options import PAPER_METHODS
from research.experiments.options import QUICK_METHODS
from research.experiments.options import QUICK_TASK
from research.experiments.options import Options
from research.models import cards

ROOT = pathlib.Path(__file__).parents[2]

# Studies of CIFAR-10 in `results`.
VGG = "cifar10/vgg-decay"
CIFAR10 = ("cifar10/vgg", VGG, "cifar10/study")
RECIPE = " with weight decay and label smoothing"


def add(commands):
    """Adds the commands."""
    _add_reproduce(commands)
    _add_verify(commands)
    _add_pages(commands)


def _add_reproduce(commands):
    parser = commands.add_parser(
        "reproduce",
        help="run the paper's experiments against tuned baselines",
        description=(
            "Runs experiments of the paper. Every method gets the same number "
            "of configurations; the best on validation data is run on fresh "
            "seeds. Writes runs as JSON lines, figures and README.md. "
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
            "which take longer; dwave runs on a mock chip; with --paper: "
            f"{' '.join(PAPER_METHODS)}; with --quick: all on {QUICK_TASK}, "
            f"{' '.join(QUICK_METHODS)} on the others)"
        ),
    )
    shared.add_quick(parser)
    parser.add_argument(
        "--paper",
        action="store_true",
        help=(
            "use the paper's settings where it states them: its rule, "
            "unscaled layers, its batches and learning rates"
        ),
    )
    parser.add_argument(
        "--loss",
        choices=LOSSES,
        help="with --paper: mean or sum over the rows of a batch, which the "
        "paper does not say (default: mean)",
    )
    shared.add_output(parser, "reproduced")
    shared.add_data(parser)
    shared.add_processes(parser)
    parser.set_defaults(run=shared.reported(_reproduce))


def _add_verify(commands):
    parser = commands.add_parser(
        "verify",
        help="repeat stored runs that are older than the code",
        description=(
            "Repeats one run of each method whose records are older than the "
            "code. If all of its numbers are the same, the pages no longer "
            "mark these records. The exit code is 1 if a run differs."
        ),
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"{', '.join(EXPERIMENTS)} (default: all)",
    )
    shared.add_output(parser, "results")
    shared.add_data(parser)
    shared.add_processes(parser)
    parser.set_defaults(run=shared.reported(_verify))


def _verify(arguments):
    names = arguments.names or list(EXPERIMENTS)
    shared.check_names("NAME", names, list(EXPERIMENTS))
    is_same = verify.verify(
        names,
        arguments.output,
        Options(data_dir=arguments.data_dir),
        arguments.processes,
    )
    return 0 if is_same else 1


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
    default, of_paper = _folders(ROOT)
    for folder in (default, *of_paper.values()):
        folder.draw()
        print(folder.path, flush=True)
    for path in studies.write_pages(ROOT / "results"):
        print(path, flush=True)
    for name in CIFAR10:
        print(cifar10_table.draw(ROOT / "results" / name))
    print(front.draw(ROOT / "results"))
    print(stored.draw(ROOT), flush=True)
    blocks = blocks_of(ROOT, default, of_paper)
    for path in pages.files(ROOT):
        if pages.update(path, blocks):
            print(path)
    return 0


def _folders(root):
    path = pathlib.Path(root, "results")
    of_paper = {
        loss: results.Folder(
            path / "paper" / loss, Options(paper=True, loss=loss)
        )
        for loss in LOSSES
    }
    return results.Folder(path, Options()), of_paper


def blocks_of(root, default=None, of_paper=None):
    """Returns all blocks of a checkout by name.

    Args:
        root: Folder of the checkout.
        default: `Folder` of `results` (optional).
        of_paper: Dictionary (optional) that maps each of `LOSSES` to the
            `Folder` of its runs in `results/paper`.
    """
    if default is None:
        default, of_paper = _folders(root)
    found = {
        **_cifar10(root),
        **stored.blocks(root),
        **cards.blocks(root),
        **front.blocks(root),
        **default.placeholders(),
        **default.blocks(),
        **readings.blocks(of_paper),
    }
    older = [
        f"{loss}/{name}"
        for loss, folder in of_paper.items()
        for name in folder.older()
    ]
    table = claims.table(readings.Readings(of_paper))
    found["paper/claims"] = code_version.note(older) + table
    for loss, folder in of_paper.items():
        found |= folder.placeholders(f"paper/{loss}/")
        found |= folder.blocks(f"paper/{loss}/")
    return found


def _cifar10(root):
    found = {}
    for name in CIFAR10:
        runs = cifar10.read(pathlib.Path(root, "results", name, "runs.jsonl"))
        found[name] = cifar10_table.markdown(cifar10_table.of_methods(runs))
        if variants := cifar10_table.of_variants(runs):
            found[f"{name}/ablation"] = cifar10_table.markdown(variants)
        found[f"{name}/tuning"] = cifar10_table.tuning_table(runs)
        if name == VGG and runs:
            sentence = cifar10_table.sentence(runs, RECIPE)
            found[f"{name}/sentence"] = sentence
    return found


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
    if arguments.loss and not arguments.paper:
        raise argparse.ArgumentTypeError(
            f"`--loss` needs `--paper`. Received: --loss {arguments.loss}"
        )
    wanted = Options(
        quick=arguments.quick,
        paper=arguments.paper,
        loss=arguments.loss or Options.loss,
        seeds=arguments.seeds,
        methods=tuple(arguments.methods),
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
    if page is None:
        print("\n`python -m research pages` writes the pages.")
    else:
        print(f"\nWrote {page}")
    return 0


def _flags(arguments):
    """The options to record; those of the user's machine are left out."""
    words = []
    if arguments.seeds is not None:
        words.append(f"--seeds {arguments.seeds}")
    if arguments.methods:
        words += ["--methods", *arguments.methods]
    words += ["--quick"] * arguments.quick + ["--paper"] * arguments.paper
    return words + ([f"--loss {arguments.loss}"] if arguments.loss else [])
