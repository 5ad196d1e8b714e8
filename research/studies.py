"""The commands `quantize`, `few-solves`, `gaps`, `appendix` and `pictures`."""

from research import arguments as shared

TASKS = {
    "quantize": ("mnist", "digits", "cora", "cifar10", "transformer"),
    "few-solves": ("logistic", "adult", "digits", "mnist"),
}


def add(commands):
    """Adds the commands."""
    parser = _command(
        commands,
        "quantize",
        _quantize,
        "quantize trained networks and compare the methods",
        "Quantize float networks with 1 to 4 bits by every method, and "
        "compare accuracies and output errors. Writes records as JSON lines, "
        f"a figure and README.md. {shared.RESUMED} CIFAR-10 must be in the "
        "data folder as cifar10.npz, with the arrays x_train, y_train, x_test "
        "and y_test of keras.datasets.cifar10.load_data(). "
        "research/quantization/train_on_gpu.py trained the networks of cifar10 "
        "and transformer.",
    )
    shared.add_seeds(parser, 5, "float networks per task")
    shared.add_processes(parser)
    _command(
        commands,
        "few-solves",
        _few_solves,
        "compare fit_columns at equal cost",
        "Train single layers and networks by fit_columns, by QP-SBGD, and by "
        "methods without a QUBO. Compare them at equal numbers of gradient "
        "evaluations, equal QPU time and equal CPU time (about 40 minutes of "
        "one core). Writes records, figures and README.md. "
        f"{shared.RESUMED}",
    )
    parser = _command(
        commands,
        "gaps",
        _gaps,
        "measure what raises the spectral gap of small networks",
        "Compute the spectral gaps of the QUBOs of small networks on UCI "
        "Adult, and what the scale of the gradient, held variables and damped "
        "couplings change (about two CPU minutes). Writes gaps.json and "
        "the tables of README.md.",
    )
    shared.add_seeds(parser, 10, "training runs per network")
    _command(
        commands,
        "appendix",
        _appendix,
        "draw the figures of the paper's appendix",
        "Train a small network on MNIST digits with the mock QPU, and draw the "
        "figures of the paper's appendix beside what it reports (about two CPU "
        "minutes). Takes gaps and directions from `results/`. Writes "
        "appendix.json, the figures, and the table of README.md.",
    )
    parser = commands.add_parser(
        "pictures",
        help="draw pictures of the documentation",
        description="Draw the pictures of docs/inside/analysis.md, with "
        "Chromium that of docs/inside/report.md, and with the examples those "
        "of docs/examples.md.",
    )
    shared.add_output(parser, "docs/images")
    parser.set_defaults(run=shared.reported(_pictures))


def _command(commands, name, run, help, description):
    """Adds the command of a study that writes a page."""

    def print_page(arguments):
        print(f"The page is {run(arguments)}")
        return 0

    parser = commands.add_parser(name, help=help, description=description)
    shared.add_output(parser, f"results/{name}")
    shared.add_data(parser)
    if name in TASKS:
        parser.add_argument(
            "--tasks",
            nargs="+",
            choices=TASKS[name],
            default=TASKS[name],
            metavar="NAME",
            help=f"of {', '.join(TASKS[name])} (default: all)",
        )
        shared.add_quick(parser)
    parser.set_defaults(run=shared.reported(print_page))
    return parser


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


def _pictures(arguments):
    from research.analysis import pictures

    for path in pictures.draw(arguments.output):
        print(path)
    return 0


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
