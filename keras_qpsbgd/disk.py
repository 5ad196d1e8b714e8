"""Files that are there whole or not at all.

A process may be killed at any moment, and two may write the same file at once.
Each writes a temporary file of its own in the same folder, which then takes the
place of the file in one step.
"""

import contextlib
import glob
import hashlib
import os
import pathlib
import secrets
import shutil
import time

# Nothing is written for as long as this.
LEFTOVER_SECONDS = 24 * 3600.0


def cache_folder():
    """Where files are kept between runs: embeddings and data sets.

    Returns:
        `KERAS_QPSBGD_CACHE`, else the folder in which the system keeps caches.
    """
    if os.environ.get("KERAS_QPSBGD_CACHE"):
        return pathlib.Path(os.environ["KERAS_QPSBGD_CACHE"]).expanduser()
    try:
        from platformdirs import user_cache_dir
    except ImportError:
        return pathlib.Path.home() / ".cache" / "keras_qpsbgd"
    return pathlib.Path(user_cache_dir("keras_qpsbgd"))


def write(path, content):
    """Writes a file, whose folder is made if it is missing.

    Args:
        path: where the file is to be.
        content: bytes, or text, which is written as UTF-8.
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
            # The name must not reach the disk before the content does.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_sealed(path, content):
    """Writes bytes and their checksum, see `read_sealed`."""
    write(path, _seal(content) + content)


def read_sealed(path):
    """The bytes that `write_sealed` wrote.

    Returns:
        `None` if there is no such file, if it cannot be read, or if a single
        bit of it has changed.
    """
    try:
        found = pathlib.Path(path).read_bytes()
    except OSError:
        return None
    seal, line, content = found.partition(b"\n")
    return content if seal + line == _seal(content) else None


def remove_leftovers(folder, pattern):
    """Removes what processes that were killed long ago have left."""
    for path in pathlib.Path(folder).glob(pattern):
        # Another process may be removing it, too.
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime < LEFTOVER_SECONDS:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _seal(content):
    return hashlib.sha256(content).hexdigest().encode() + b"\n"
