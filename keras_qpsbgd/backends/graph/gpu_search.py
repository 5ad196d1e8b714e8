"""Local search by many flips at once, for GPUs.

A GPU starts a few hundred thousand small operations per second, so the other
searches, which make one flip after the other, take too long there. This search
consists of a fixed number of rounds, and a round is a few operations for all
columns of all layers. It needs no factorization and no decision on the host.

The variables form 16 slices. In each round, every slice proposes a move: it
flips those of its variables whose gain is at least a given fraction of the
largest gain in the slice. This fraction falls from round to round. Matrix
products give the energies of all combinations of moves. The moves are then made
one after the other if they still lower the energy. A second pass takes back
moves that turn out to raise it. So the energy never rises, except for rounding.

The search starts from the rounded ridge solution, approximated by conjugate
gradients, or from the start that the problem has. Layers with few inputs have
several lanes for each column. They round the solution with different amounts of
noise.
"""

import numpy as np
import tensorflow as tf

from keras_qpsbgd.backends.graph import gpu_batches
from keras_qpsbgd.backends.graph import products
from keras_qpsbgd.backends.graph import relaxed
from keras_qpsbgd.backends.graph.gpu_batches import slices_first
from keras_qpsbgd.qubo import ops

# Number of rounds.
ROUNDS = 4
# Pairs of a number of inputs and the number of lanes per column for layers with
# up to this many inputs. Other layers have one lane per column. Small layers
# barely use a GPU, so they get more lanes.
LANES = ((32, 4), (64, 2))
# The fraction of the largest gain in the first round. It falls linearly to
# zero.
SHARE = 0.8
# How many times a round decides about each move.
PASSES = 2
# A move must lower the energy by this fraction of its linear part. Otherwise
# the order of a sum could decide about moves that do not change the energy.
MARGIN = 1e-5
# Conjugate gradient iterations of the start.
ITERATIONS = 4
# Sizes of the noise of the starts of several lanes, relative to the ridge
# solution.
NOISE = (0.0, 0.5, 1.0, 2.0)


def search(layers, seeds, finish):
    """Searches for the states of all layers.

    Args:
        layers: List of lists of `ops.Problem`.
        seeds: List of int32 tensors of shape `(2,)`, one for each layer.
        finish: Function of states and problem, for a stack of problems.

    Returns:
        For each layer, a list with the finished states of each problem, of
        shape `(n, m)`.
    """

    return gpu_batches.in_batches(
        layers,
        seeds,
        _search,
        finish,
        lambda problem: _num_lanes(problem.fields.shape[0]),
    )


def _num_lanes(n):
    """Returns the number of lanes per column of a layer with n inputs."""
    return next((count for most, count in LANES if n <= most), 1)


def _search(problem, sizes, seeds):
    """Searches a stack of problems, and returns states (layers, m, n)."""
    restarts = _num_lanes(sizes[0])  # the same for all layers
    model = _Energies(problem, restarts)
    g = _start(problem, model, sizes, seeds, restarts)

    def body(index, g, h):
        share = SHARE * (1.0 - tf.cast(index, tf.float32) / ROUNDS)
        return index + 1, *_round(model, g, h, share)

    _, g, h = tf.while_loop(
        lambda index, *_: index < ROUNDS, body, (0, g, model.field(g))
    )
    return _best(model, g, h, restarts)


def _start(problem, model, sizes, seeds, restarts):
    """Returns the initial states of all lanes."""
    if problem.start is not None:
        g = tf.linalg.matrix_transpose(problem.start)
        return tf.tile(g, (1, restarts, 1))
    x = relaxed.iterated_solution(problem, sizes, ITERATIONS)
    if restarts == 1:
        return ops.sign(x)
    layers, m, n = x.shape
    positions = gpu_batches.positions(sizes, n // gpu_batches.SLICES)
    sizes = np.float32(sizes)[:, None, None]
    size = tf.sqrt(tf.reduce_sum(tf.square(x), axis=-1, keepdims=True) / sizes)
    # Layers x noise x restarts x columns x variables.
    chance = _uniform(seeds, positions, len(NOISE), restarts)[:, :, :, None, :]
    noise = np.float32(NOISE)[None, :, None, None, None] * (2.0 * chance - 1.0)
    g = ops.sign(x[:, None, None] + noise * size[:, None, None])
    candidates = tf.unstack(
        tf.reshape(g, (layers, len(NOISE), restarts * m, n)), axis=1
    )
    best = candidates[0]
    energy = model.energy(best, model.field(best))
    for g in candidates[1:]:
        new = model.energy(g, model.field(g))
        best = tf.where((new < energy)[..., None], g, best)
        energy = tf.minimum(new, energy)
    return best


def _best(model, g, h, count):
    """Returns the best of `count` states of each lane, the first of ties."""
    if count == 1:
        return g
    layers, lanes, n = g.shape
    energies = model.energy(g, h)
    energies = tf.reshape(energies, (layers, count, lanes // count))
    g = tf.reshape(g, (layers, count, lanes // count, n))
    best, energy = g[:, 0], energies[:, 0]
    for index in range(1, count):
        is_better = energies[:, index] < energy
        best = tf.where(is_better[..., None], g[:, index], best)
        energy = tf.where(is_better, energies[:, index], energy)
    return best


def _round(model, g, h, share):
    """Makes the moves of one round, and returns the new states and fields."""
    gains = slices_first(g * h)
    largest = tf.reduce_max(gains, axis=-1, keepdims=True)
    is_chosen = (gains > 0.0) & (gains >= share * largest)
    moves = tf.where(is_chosen, -slices_first(g), 0.0)
    responses, linear, pairs = model.evaluate(moves, h)
    is_made = [made[..., None] for made in _made_moves(linear, pairs)]
    # Sums instead of reductions, so that a GPU does not copy the decisions.
    zero = tf.zeros(())
    response = tf.add_n(
        [
            tf.where(made, one, zero)
            for made, one in zip(is_made, tf.unstack(responses, axis=1))
        ]
    )
    flips = tf.concat(
        [
            tf.where(made, move, zero)
            for made, move in zip(is_made, tf.unstack(moves, axis=1))
        ],
        axis=-1,
    )
    return g + 2.0 * flips, h + 2.0 * response


def _made_moves(linear, pairs):
    """Decides which moves to make, one after the other.

    Returns:
        List of Boolean tensors of shape `(layers, lanes)`.
    """
    linear = tf.unstack(linear, axis=1)
    pairs = [tf.unstack(row, axis=1) for row in tf.unstack(pairs, axis=1)]
    is_made = [None] * len(linear)
    # One operation per pair instead of one per move, because a GPU computes
    # operations of the same shape at once.
    for _ in range(PASSES):
        for k, own in enumerate(linear):
            others = [
                tf.where(made, pairs[k][other], 0.0)
                for other, made in enumerate(is_made)
                if other != k and made is not None
            ]
            cost = own + pairs[k][k]
            if others:
                cost += 2.0 * tf.add_n(others)
            is_made[k] = cost < -MARGIN * tf.abs(own)
    return is_made


class _Energies:
    r"""Energies of a stack of problems, in units of 4 and without constants.

    The states g have the shape (layers, lanes, n), where the lanes are columns
    and restarts. Besides the states, the search holds the field
    h = Qg + s/2, which gives the gains of all flips and is cheap to update. Q
    is the matrix of the couplings without its diagonal.

    A move is a set of flips within a slice: c = -g where a variable is flipped,
    0 elsewhere. Its response is the product Qc. If the moves k with
    \(a_k = 1\) are made, the energy changes by

    $$\sum_k a_k l_k + \sum_{kl} a_k a_l C_{kl} .$$

    The factors of all products are rounded first (see `products.rounded`), so
    that TensorFloat-32 gives the same results as float32.

    Args:
        problem: A stack of `ops.Problem`.
        restarts: Integer. Number of lanes per column.
    """

    def __init__(self, problem, restarts):
        couplings = problem.couplings
        zeros = tf.zeros_like(couplings[..., 0])
        couplings = tf.linalg.set_diag(couplings, zeros)
        self._couplings = products.rounded(couplings)
        half_fields = tf.linalg.matrix_transpose(problem.fields) / 2.0
        self._half_fields = tf.tile(half_fields, (1, restarts, 1))

    def field(self, g):
        """Returns the field of states (layers, lanes, n)."""
        return products.matmul(g, self._couplings) + self._half_fields

    def energy(self, g, h):
        """Returns g'Qg + s'g in units of 4."""
        return tf.reduce_sum(g * (h + self._half_fields), axis=-1) / 4.0

    def evaluate(self, moves, h):
        """Returns the responses Qc, l and C of moves.

        Args:
            moves: Tensor of shape `(layers, SLICES, lanes, n / SLICES)`.
            h: The fields.

        Returns:
            Three tensors of shape `(layers, SLICES, lanes, n)`,
            `(layers, SLICES, lanes)` and `(layers, SLICES, SLICES, lanes)`.
        """
        layers, count, lanes, width = moves.shape
        matrix = tf.reshape(
            self._couplings, (layers, count, width, count * width)
        )
        responses = products.matmul(moves, matrix)
        linear = tf.reduce_sum(moves * slices_first(h), axis=-1)
        # The response of one move to the flips of another.
        pairs = tf.reshape(responses, (layers, count, lanes, count, width))
        pairs *= tf.transpose(moves, (0, 2, 1, 3))[:, None]
        pairs = tf.reduce_sum(pairs, axis=-1)
        return responses, linear, tf.transpose(pairs, (0, 1, 3, 2))


def _uniform(seeds, positions, *shape):
    """Returns numbers from 0 to 1, by hashing a seed and a position.

    Unlike with TensorFlow's generators, the numbers of a layer do not depend on
    the padding, and one operation computes the numbers of all layers.

    Args:
        seeds: Int32 tensor of shape `(layers, 2)`.
        positions: Integer array of shape `(layers, n)`. Variables at the same
            position have the same numbers in all stacks.
        *shape: Integers.

    Returns:
        Tensor of shape `(layers, *shape, n)`.
    """
    seeds = tf.cast(seeds, tf.uint32)
    numbers = _hash(_hash(seeds[:, 1] + _hash(seeds[:, 0])))
    for size in shape:
        position = tf.cast(tf.range(size), tf.uint32)
        numbers = _hash(numbers[..., None] + position)
    layers, n = positions.shape
    position = tf.constant(positions, tf.uint32)
    position = tf.reshape(position, (layers, *[1] * len(shape), n))
    numbers = _hash(numbers[..., None] + position)
    # The upper 24 bits, which float32 represents exactly.
    numbers = tf.bitwise.right_shift(numbers, tf.constant(8, tf.uint32))
    return tf.cast(numbers, tf.float32) * 2.0**-24


def _hash(x):
    """Mixes the bits of uint32 numbers (the function `lowbias32`)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        shifted = tf.bitwise.right_shift(x, tf.constant(shift, tf.uint32))
        x = tf.bitwise.bitwise_xor(x, shifted)
        x *= tf.constant(factor, tf.uint32)
    return x
