"""A scripted check of a QPU: small problems, and a page about the answers."""

from keras_qpsbgd.qpu_check.checks import CHECKS
from keras_qpsbgd.qpu_check.page import render
from keras_qpsbgd.qpu_check.runner import Outcome
from keras_qpsbgd.qpu_check.runner import Runner
from keras_qpsbgd.qpu_check.storage import save

__all__ = ["CHECKS", "Outcome", "Runner", "render", "save"]
