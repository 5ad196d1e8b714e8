"""The process in which a suite is measured.

    python -m research.bench.worker SUITE JSON_OPTIONS RESULT_FILE

`run.py` starts it, with an environment that sets the number of threads, which
must be known before TensorFlow is imported.
"""

import json
import pathlib
import sys

from tensorflow import keras

from research.bench.options import Options
from research.bench.suites import SUITES


def main(name, options, path):
    options = json.loads(options)
    options["only"] = tuple(options["only"])  # JSON has lists alone
    # Once: a new seed makes TensorFlow prepare all its graphs anew.
    keras.utils.set_random_seed(0)
    result = SUITES[name].measure(Options(**options))
    pathlib.Path(path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
