"""Atomic writes: a file is either complete or does not exist.

A process may be killed at any moment, and two processes may write the same file
at the same time. Each process writes its own temporary file in the same folder
and then renames it in one step.
"""

import contextlib
import glob
import os
import pathlib
import secrets
import shutil
import time

# No write takes this long, so older temporary files are leftovers.
LEFTOVER_SECONDS = 24 * 3600.0


def file_path(path):
    """Returns the path of a file that can be written, with `~` expanded.

    Args:
        path: String or path, as passed by the user.

    Raises:
        ValueError: If the path is empty or a folder.
    """
    given = os.fspath(path)
    found = os.path.expanduser(given)
    if not os.path.basename(found) or os.path.isdir(found):
        reason = "a folder" if given else "empty"
        raise ValueError(
            "`path` must be the path of a file. "
            f"Received: path={given!r}, which is {reason}"
        )
    return pathlib.Path(found)


def write(path, content):
    """Writes a file and creates its folder if it does not exist.

    Args:
        path: Path of the file.
        content: Bytes or string. A string is written as UTF-8.
    """
    path = pathlib.Path(path)
    if isinstance(content, str):
        content = content.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, f".{glob.escape(path.name)}-*.tmp")
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            # The content must be on the disk before the file is renamed.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def remove_leftovers(folder, pattern):
    """Removes the temporary files of processes that were killed long ago."""
    for path in pathlib.Path(folder).glob(pattern):
        # Another process may remove the same file.
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime < LEFTOVER_SECONDS:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
