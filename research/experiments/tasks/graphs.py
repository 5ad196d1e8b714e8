"""Shared by experiments on graphs: batches of nodes, sparse inputs."""

import numpy as np
import tensorflow as tf

from keras_qpsbgd.comparison.task import random


def node_batches(seed, rows, batches, steps, evaluate_every, one_draw=False):
    """Returns batches of `1 / batches` of the training nodes.

    Args:
        seed: Integer.
        rows: The training nodes.
        batches: Integer. Number of batches of an epoch.
        steps: Integer. Number of updates.
        evaluate_every: Integer. Updates between two evaluations.
        one_draw: Boolean. If `True`, every step draws from all nodes. If
            `False`, an epoch uses every node at most once. Defaults to `False`.
    """
    generator = random(seed, 1)
    size = len(rows) // batches
    taken = 1 if one_draw else batches
    order = [
        generator.permutation(rows)[: taken * size]
        for _ in range(-(-steps // taken))
    ]
    order = np.reshape(order, (-1, size))[:steps]
    return order.reshape(-1, evaluate_every, size)


def sparse_tensor(matrix):
    """Converts a SciPy matrix to a `tf.SparseTensor`."""
    matrix = matrix.tocoo()
    indices = np.stack([matrix.row, matrix.col], axis=1)
    data = matrix.data.astype("float32")
    tensor = tf.SparseTensor(indices, data, matrix.shape)
    return tf.sparse.reorder(tensor)
