"""`report`: writes the HTML page of a recorded run."""

import pathlib
import sys
import zipfile

from keras_qpsbgd import analysis
from keras_qpsbgd import disk
from keras_qpsbgd import report


def run(arguments):
    """Runs the command."""
    path = arguments.run_file
    out = pathlib.Path(arguments.output or path.with_suffix(".html"))
    try:
        recorded = analysis.load_run(path)
    except OSError as error:
        return _fail_to_read(path, error.strerror or error)
    except (ValueError, LookupError, TypeError, zipfile.BadZipFile):
        return _fail_to_read(path, "not a recorded run")
    if out.exists() and out.samefile(path):
        return _fail_to_read(path, "`--output` must be another file")
    try:
        disk.write(out, report.render(recorded, path.name).encode())
    except OSError as error:
        print(
            f"The page was not written to {out} ({error.strerror or error}).",
            file=sys.stderr,
        )
        return 1
    print(f"Report written to {out}")
    return 0


def _fail_to_read(path, reason):
    print(
        "`RUN` must be a file of `callbacks.QuboRecorder`. Received: "
        f"{path} ({reason})",
        file=sys.stderr,
    )
    return 1
