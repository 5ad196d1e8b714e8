"""Builds the C kernels. The other settings are in setup.cfg."""

from setuptools import Extension
from setuptools import setup

FOLDER = "keras_qpsbgd/inference/"

setup(
    ext_modules=[
        Extension(
            "keras_qpsbgd.inference._kernels",
            sources=[FOLDER + "_kernels.c"],
            depends=[FOLDER + "_sign_product.h"],
            extra_compile_args=["-O3"],
            # Without a compiler, the package is installed without them.
            optional=True,
        )
    ]
)
