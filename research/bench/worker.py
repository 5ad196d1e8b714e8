"""The process that measures a suite.

    python -m research.bench.worker SUITE JSON_OPTIONS RESULT_FILE

`run.py` starts it with environment variables that set the number of threads,
because the number must be set before TensorFlow is imported.
"""

import json
import pathlib
import sys

from tensorflow import keras

from research.bench.options import Options
from research.bench.suites import on_device


def main(name, options, path):
    options = json.loads(options)
    options["only"] = tuple(options["only"])  # JSON has no tuples
    options = Options(**options)
    # Only once, because TensorFlow rebuilds all graphs after a new seed.
    keras.utils.set_random_seed(0)
    result = on_device(options.device)[name].measure(options)
    pathlib.Path(path).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
