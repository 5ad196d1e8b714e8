"""Local search by many flips at once, for GPUs.

A GPU starts a few hundred thousand small operations per second, so the other
searches, which make one flip after the other, take too long there. This search
consists of a fixed number of rounds, and a round is a few operations for all
columns of all layers. It needs no factorization and no decision on the host.

The variables form 16 blocks. In each round, every block proposes a move: it
flips its variables whose gain is at least a share of the largest gain in the
block. This share falls from round to round. Matrix products give the energies
of all combinations of moves. The moves are then made one after the other if
they still lower the energy. A second pass takes back moves that turn out to
raise it. So the energy never rises, except for rounding.

The search starts from the rounded ridge solution, approximated by conjugate
gradients, or from the start that the problem has. Layers with few inputs have
several lanes for each column. They round the solution with different amounts of
noise.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_qpsbgd import ops
from keras_qpsbgd.backends.graph.parallel import blocks
from keras_qpsbgd.backends.graph.parallel import forms
from keras_qpsbgd.backends.graph.parallel import ridge
from keras_qpsbgd.backends.graph.parallel import stacks
from keras_qpsbgd.backends.graph.parallel.random_numbers import Random


class Effort(NamedTuple):
    """How long to search.

    Attributes:
        rounds: Number of rounds from the start.
        restarts: Pairs of a number of inputs and the number of lanes per column
            for layers with up to this many inputs. The lanes have different
            noise. Other layers have one lane per column.
        kicks: Number of times that a lane flips random variables, searches on,
            and goes back unless the energy is lower.
        kick_rounds: Number of rounds after a kick.
    """

    rounds: int
    restarts: tuple[tuple[float, int], ...] = ()
    kicks: int = 0
    kick_rounds: int = 0

    def lanes(self, n):
        """Returns the number of lanes per column of a layer with n inputs."""
        return next((count for most, count in self.restarts if n <= most), 1)


# The share of the largest gain in the first round. It falls linearly to zero.
SHARE = 0.8
# How often a round decides about each move.
PASSES = 2
# A move must lower the energy by this share of its linear part. Otherwise the
# order of a sum could decide about moves that do not change the energy.
MARGIN = 1e-5
# Conjugate gradient iterations of the start.
ITERATIONS = 4
# Sizes of the noise of the starts of several lanes, relative to the ridge
# solution.
NOISE = (0.0, 0.5, 1.0, 2.0)
# A kick flips a variable with this probability, if the flip raises the energy
# by less than a random limit. The largest limit, relative to the mean of the
# lane, depends on the number of variables: `KICK_REACH / n`, within bounds.
KICK = 0.3
KICK_REACH = 60.0
KICK_BOUNDS = (0.6, 1.5)


def search(layers, seeds, effort, finish):
    """Searches the states of all layers.

    Args:
        layers: List of lists of `ops.Problem`.
        seeds: List of int32 tensors of shape `(2,)`, one for each layer.
        effort: An `Effort`.
        finish: Function of states and problem, for a stack of problems.

    Returns:
        For each layer, a list with the finished states of each problem, of
        shape `(n, m)`.
    """

    def solve(stack, sizes, seeds):
        return _search(stack, sizes, seeds, effort)

    def lanes(problem):
        return effort.lanes(problem.fields.shape[0])

    return stacks.in_batches(layers, seeds, solve, finish, lanes)


def _search(problem, sizes, seeds, effort):
    """Searches a stack of problems, and returns states (layers, m, n)."""
    restarts = effort.lanes(sizes[0])  # the same for all layers
    form = forms.Couplings(problem, restarts)
    n, columns = problem.fields.shape[1:]
    random = Random(seeds, blocks.positions(sizes, n // blocks.COUNT))
    g = _start(problem, form, sizes, random, restarts)
    memory = form.memory(g)

    def descend(g, memory, rounds):
        def body(index, g, memory):
            share = SHARE * (1.0 - tf.cast(index, tf.float32) / rounds)
            return _round(form, g, memory, share)

        return _repeat(rounds, body, (g, memory))

    g, memory = descend(g, memory, effort.rounds)
    if effort.kicks == 0:
        return _best(form, g, memory, restarts)

    n_of_layers = np.float32(sizes)[:, None, None]
    reach = np.clip(KICK_REACH / n_of_layers, *KICK_BOUNDS) / KICK

    def kick(index, g, memory, energy):
        costs = -form.gains(g, memory)
        size = tf.reduce_sum(tf.abs(costs), axis=-1, keepdims=True)
        # By column, because the number of lanes depends on the padding.
        chance = random.uniform(1 + index, restarts, columns)
        chance = tf.reshape(chance, g.shape)
        is_flipped = (chance < KICK) & (
            costs < size / n_of_layers * reach * chance
        )
        kicked = tf.where(is_flipped, -g, g)
        kicked, new = descend(kicked, form.memory(kicked), effort.kick_rounds)
        new_energy = form.energy(kicked, new)
        is_better = new_energy < energy
        return (
            tf.where(is_better[..., None], kicked, g),
            tf.where(is_better[..., None], new, memory),
            tf.where(is_better, new_energy, energy),
        )

    state = (g, memory, form.energy(g, memory))
    g, memory, _ = _repeat(effort.kicks, kick, state)
    return _best(form, g, memory, restarts)


def _start(problem, form, sizes, random, restarts):
    """Returns the initial states of all lanes."""
    if problem.start is not None:
        g = forms.lanes_first(problem.start)
        return tf.tile(g, (1, restarts, 1))
    x = ridge.solution(problem, sizes, ITERATIONS)
    if restarts == 1:
        return ops.sign(x)
    layers, m, n = x.shape
    sizes = np.float32(sizes)[:, None, None]
    size = tf.sqrt(tf.reduce_sum(tf.square(x), axis=-1, keepdims=True) / sizes)
    # Layers x noise x restarts x columns x variables.
    chance = random.uniform(0, len(NOISE), restarts)[:, :, :, None, :]
    noise = np.float32(NOISE)[None, :, None, None, None] * (2.0 * chance - 1.0)
    g = ops.sign(x[:, None, None] + noise * size[:, None, None])
    candidates = tf.unstack(
        tf.reshape(g, (layers, len(NOISE), restarts * m, n)), axis=1
    )
    best = candidates[0]
    energy = form.energy(best, form.memory(best))
    for g in candidates[1:]:
        new = form.energy(g, form.memory(g))
        best = tf.where((new < energy)[..., None], g, best)
        energy = tf.minimum(new, energy)
    return best


def _best(form, g, memory, count):
    """Returns the best of `count` states of each lane, the first of ties."""
    if count == 1:
        return g
    layers, lanes, n = g.shape
    energies = form.energy(g, memory)
    energies = tf.reshape(energies, (layers, count, lanes // count))
    g = tf.reshape(g, (layers, count, lanes // count, n))
    best, energy = g[:, 0], energies[:, 0]
    for index in range(1, count):
        is_better = energies[:, index] < energy
        best = tf.where(is_better[..., None], g[:, index], best)
        energy = tf.where(is_better, energies[:, index], energy)
    return best


def _round(form, g, memory, share):
    """Makes the moves of one round, and returns the new states and memory."""
    gains = blocks.first(form.gains(g, memory))
    largest = tf.reduce_max(gains, axis=-1, keepdims=True)
    is_chosen = (gains > 0.0) & (gains >= share * largest)
    moves = tf.where(is_chosen, -blocks.first(g), 0.0)
    responses, linear, pairs = form.evaluate(moves, memory)
    is_made = [made[..., None] for made in _made_moves(linear, pairs)]
    # Sums and not reductions, so that a GPU does not copy the decisions.
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
    return g + 2.0 * flips, form.update(memory, response)


def _made_moves(linear, pairs):
    """Decides which moves to make, one after the other.

    Returns:
        List of Boolean tensors of shape `(layers, lanes)`.
    """
    linear = tf.unstack(linear, axis=1)
    pairs = [tf.unstack(row, axis=1) for row in tf.unstack(pairs, axis=1)]
    is_made = [None] * len(linear)
    # One operation per pair and not one per move, because a GPU computes
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


def _repeat(count, body, state):
    """Calls `state = body(index, *state)` for each index below `count`."""
    if count == 0:
        return state
    _, *state = tf.while_loop(
        lambda index, *_: index < count,
        lambda index, *state: (index + 1, *body(index, *state)),
        (0, *state),
    )
    return tuple(state)
