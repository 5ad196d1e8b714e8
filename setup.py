"""Builds the C kernels. The other settings are in setup.cfg."""

import sys

from setuptools import Extension
from setuptools import setup

FOLDER = "keras_qpsbgd/inference/"

setup(
    ext_modules=[
        Extension(
            "keras_qpsbgd.inference._kernels",
            sources=[FOLDER + "_kernels.c"],
            depends=[FOLDER + "_sign_product.h"],
            # Microsoft's compiler has no such option, and /O2 is its default.
            extra_compile_args=[] if sys.platform == "win32" else ["-O3"],
            # Without a compiler, the package is installed without them.
            optional=True,
        )
    ]
)
