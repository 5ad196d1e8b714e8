"""The version of the installed package."""

import importlib.metadata

try:
    __version__ = importlib.metadata.version("keras_qpsbgd")
except (
    importlib.metadata.PackageNotFoundError
):  # a checkout that is not installed
    __version__ = "0"
