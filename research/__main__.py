"""Command line interface of the research code: `python -m research ...`."""

import sys

from keras_qpsbgd import cli
from research import studies
from research.bench import harness as bench
from research.engine import compare
from research.experiments import command as experiments
from research.models import command as models


def main(argv=None):
    """Runs a command. See `cli.run`."""
    return cli.run(
        "python -m research",
        "Run the experiments and benchmarks of keras_qpsbgd.",
        (
            experiments.add,
            compare.add,
            bench.add,
            studies.add,
            models.add,
        ),
        argv,
    )


if __name__ == "__main__":
    sys.exit(main())
