"""`report`: writes the HTML page of a recorded run."""

import pathlib
import sys
import zipfile

from keras_qpsbgd import analysis
from keras_qpsbgd import disk
from keras_qpsbgd import report


def run(arguments):
    """Runs the command."""
    path = pathlib.Path(arguments.run_file)
    out = pathlib.Path(arguments.output or path.with_suffix(".html"))
    try:
        _write(path, out)
    except _NotARun as error:
        print(
            "`RUN` must be a file of `callbacks.QuboRecorder`. Received: "
            f"{path} ({error})",
            file=sys.stderr,
        )
        return 1
    except OSError as error:
        print(
            f"The page was not written to {out} ({error.strerror or error}).",
            file=sys.stderr,
        )
        return 1
    print(f"Report written to {out}")
    return 0


class _NotARun(Exception):
    """Raised if a file cannot be read as a run."""


def _write(path, out):
    try:
        run = analysis.load_run(path)
    except OSError as error:
        raise _NotARun(error.strerror or error) from error
    except (ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        raise _NotARun("not a recorded run") from error
    if out.exists() and out.samefile(path):
        raise _NotARun("`--output` must be another file")
    disk.write(out, report.render(run, path.name).encode())
