"""Keras callbacks for progress, recording and backups of a training run."""

from keras_qpsbgd.callbacks.backup_and_restore import BackupAndRestore
from keras_qpsbgd.callbacks.qubo_recorder import QuboRecorder
from keras_qpsbgd.callbacks.solver_progress import SolverProgress

__all__ = ["BackupAndRestore", "QuboRecorder", "SolverProgress"]
