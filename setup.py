"""Builds the C kernels. The other settings are in setup.cfg."""

import sys

from setuptools import Extension
from setuptools import setup

FOLDER = "keras_qpsbgd/inference/"
HEADERS = (
    "_patches.h",
    "_products.h",
    "_bit_product.h",
    "_bit_variants.h",
    "_sign_product.h",
    "_sign_variants.h",
)

setup(
    ext_modules=[
        Extension(
            "keras_qpsbgd.inference._kernels",
            sources=[FOLDER + "_kernels.c"],
            depends=[FOLDER + name for name in HEADERS],
            # Microsoft's compiler has no such options, and /O2 is its default.
            # Without the second one, results depend on the processor.
            extra_compile_args=(
                [] if sys.platform == "win32" else ["-O3", "-ffp-contract=off"]
            ),
            # Without a compiler, the package is installed without them, and
            # `Predictor` warns.
            optional=True,
        )
    ]
)
