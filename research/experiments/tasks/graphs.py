"""What experiments on graphs share: batches of nodes, sparse inputs."""

import numpy as np
import tensorflow as tf

from keras_qpsbgd.compare.task import random


def node_batches(seed, rows, batches, steps, evaluate_every, one_draw=False):
    """Batches of `1 / batches` of the training nodes.

    Args:
        seed: int.
        rows: the training nodes.
        batches: number of batches that the nodes are dealt to.
        steps: number of updates.
        evaluate_every: updates between two evaluations.
        one_draw: whether every step draws from all nodes anew, instead of
            dealing them out before it begins anew.
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
    """A SciPy matrix as a tensor."""
    matrix = matrix.tocoo()
    indices = np.stack([matrix.row, matrix.col], axis=1)
    data = matrix.data.astype("float32")
    tensor = tf.SparseTensor(indices, data, matrix.shape)
    return tf.sparse.reorder(tensor)
