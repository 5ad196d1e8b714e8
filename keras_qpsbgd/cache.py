"""Where the package keeps files between runs: embeddings and data sets."""

import os
import pathlib


def folder():
    """`KERAS_QPSBGD_CACHE`, else where the system keeps caches."""
    if os.environ.get("KERAS_QPSBGD_CACHE"):
        return pathlib.Path(os.environ["KERAS_QPSBGD_CACHE"]).expanduser()
    try:
        from platformdirs import user_cache_dir
    except ImportError:
        return pathlib.Path.home() / ".cache" / "keras_qpsbgd"
    return pathlib.Path(user_cache_dir("keras_qpsbgd"))
