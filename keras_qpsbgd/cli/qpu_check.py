"""`qpu-check`, which is now a command of the research code."""

import sys


def add(commands):
    """Adds the command `qpu-check`, which names its replacement."""
    # Every option is an argument here, so that old calls get the message.
    parser = commands.add_parser("qpu-check", prefix_chars="+", add_help=False)
    parser.add_argument("options", nargs="*")
    parser.set_defaults(run=_run)


def _run(arguments):
    print(
        "`qpu-check` was removed from the installed package. In a clone of the "
        "repository, use `python -m research qpu-check`. Received: qpu-check "
        f"{' '.join(arguments.options)}".rstrip(),
        file=sys.stderr,
    )
    return 1
