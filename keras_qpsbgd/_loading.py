"""Registers the classes of the package with Keras as soon as Keras is imported.

`import keras_qpsbgd` does not import TensorFlow, so that the command line and
`keras_qpsbgd.inference` start fast and run without TensorFlow. However, Keras
loads a saved model only if the classes of its layers are registered. They are
registered when both packages have been imported, in either order.

If this package is imported first, it hides harmless log lines of TensorFlow.
"""

import contextlib
import importlib
import importlib.abc
import importlib.util
import os
import sys

# These packages import one another.
KERAS_PACKAGES = ("tensorflow", "keras", "tf_keras")
# The modules with classes that Keras can find in a saved model.
REGISTERED = (
    "backends",
    "layers",
    "layers.constraints",
    "layers.metrics",
    "optimizers",
)
# TensorFlow reads this variable once, when it is imported.
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# If there may be a GPU, one of these exists (NVIDIA, including Windows and
# Jetson, or AMD).
GPU_FILES = (
    "/proc/driver/nvidia",
    "/dev/nvidiactl",
    "/dev/dxg",
    "/dev/nvhost-gpu",
    "/dev/nvmap",
    "/dev/kfd",
)


def register_with_keras():
    """Registers the classes now, or when Keras is imported."""
    if _has_keras():
        _register()
    else:
        sys.meta_path.insert(0, _AfterKeras())


def _has_keras():
    return any(name in sys.modules for name in KERAS_PACKAGES)


def _register():
    for name in REGISTERED:
        importlib.import_module(f"keras_qpsbgd.{name}")


class _AfterKeras(importlib.abc.MetaPathFinder):
    """Finds modules as usual, and registers the classes after their import.

    TensorFlow imports Keras, Keras imports TensorFlow, and the modules of this
    package import both. The classes are registered when the outermost import
    has finished, so that no module is only partly loaded.
    """

    def __init__(self):
        self._searched = set()
        self._open_imports = 0

    def find_spec(self, fullname, path=None, target=None):
        ours = fullname.rpartition(".")[0] == "keras_qpsbgd"
        if not (ours or fullname in KERAS_PACKAGES):
            return None
        if fullname in self._searched:
            return None
        self._searched.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searched.remove(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self)
        return spec

    def load(self, loader, module):
        with _quiet():
            self._open_imports += 1
            try:
                loader.exec_module(module)
            finally:
                self._open_imports -= 1
            if self._open_imports or self not in sys.meta_path:
                return
            if _has_keras():
                sys.meta_path.remove(self)
                _register()  # loads further libraries of TensorFlow


@contextlib.contextmanager
def _quiet():
    """Sets the log level while TensorFlow is imported.

    The environment is restored afterwards, and a level set by the user is kept.
    With a GPU, only `INFO` messages are hidden, because TensorFlow logs a
    warning if it cannot use the GPU. Without one, errors are hidden too,
    because TensorFlow logs an error if it finds no GPU. No error in a
    computation is lost: TensorFlow also raises it, and it logs fatal errors at
    all levels.
    """
    if LOG_LEVEL in os.environ:
        yield
        return
    os.environ[LOG_LEVEL] = "1" if any(map(os.path.exists, GPU_FILES)) else "3"
    try:
        yield
    finally:
        os.environ.pop(LOG_LEVEL, None)


class _Loader(importlib.abc.Loader):
    """Loads a module with its usual loader, and lets the finder count it."""

    def __init__(self, loader, finder):
        self._loader = loader
        self._finder = finder

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # Tools such as `inspect` and `pkgutil` ask the usual loader.
        module.__spec__.loader = module.__loader__ = self._loader
        self._finder.load(self._loader, module)

    def __getattr__(self, name):  # `python -m` asks for the code
        return getattr(self._loader, name)
