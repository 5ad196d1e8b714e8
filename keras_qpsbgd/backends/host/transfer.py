"""Passes problems from TensorFlow to NumPy."""

import numpy as np

from keras_qpsbgd.qubo import Qubo


def pack(problems):
    """Lists the tensors from which the host builds the QUBOs of all layers.

    A problem without couplings becomes a QUBO whose couplings are zero.

    Args:
        problems: List of `ops.Problem`.

    Returns:
        A tuple `(tensors, unpack)`. The function `unpack` turns an iterator
        over the values of the tensors into a list of `Qubo`.
    """
    names = [_field_names(problem) for problem in problems]
    tensors = [
        getattr(problem, name)
        for problem, layer in zip(problems, names)
        for name in layer
    ]

    def unpack(arrays):
        qubos = []
        for layer in names:
            values = {name: next(arrays) for name in layer}
            start = values.pop("start", None)
            if "couplings" not in values:
                size = len(values["fields"])
                values["couplings"] = np.zeros((size, size), np.float32)
            qubo = Qubo(**values)
            qubo.start = None if start is None else start.astype(np.int8)
            qubos.append(qubo)
        return qubos

    return tensors, unpack


def _field_names(problem):
    names = ("couplings", "fields", "start")
    return [name for name in names if getattr(problem, name) is not None]
