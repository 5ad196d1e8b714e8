"""`report`: writes the HTML page of a recorded run."""

import pathlib
import zipfile

from keras_qpsbgd import analysis
from keras_qpsbgd import disk
from keras_qpsbgd.analysis import report
from keras_qpsbgd.cli import console


def run(arguments):
    """Runs the command."""
    path = arguments.run_file
    out = pathlib.Path(arguments.output or path.with_suffix(".html"))
    reason = None
    try:
        recorded = analysis.load_run(path)
        if out.exists() and out.samefile(path):
            reason = "`--output` must be another file"
    except OSError as error:
        reason = error.strerror or error
    except (ValueError, LookupError, TypeError, zipfile.BadZipFile):
        reason = "not a recorded run"
    if reason is not None:
        return console.fail(
            "`RUN` must be a file of `callbacks.QuboRecorder`. Received: "
            f"{path} ({reason})"
        )
    try:
        disk.write(out, report.render(recorded, path.name))
    except ImportError as error:
        return console.fail(str(error))
    except OSError as error:
        return console.fail(
            f"The page was not written to {out} ({error.strerror or error})."
        )
    print(f"Report written to {out}")
    return 0
