r"""Block coordinate descent for layers that are too wide for a solver.

With the variables B outside a block A fixed, the energy of the block is again a
QUBO, with couplings $Q_{AA}$ and fields $s_A + 2 Q_{AB} g_B$. The blocks are
solved one after the other, for all columns at once. A column only changes if
its new state is better, so the energy never increases.
"""

import numpy as np

from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.solution import merge_block_info
from keras_qpsbgd.qubo import Qubo

# Energy changes below this fraction of the summed terms are rounding errors.
ROUNDING = 1e-9


def solve(qubo, seed, block_size, solve_block, sweeps):
    """Runs block coordinate descent from `qubo.start` or sign(-s).

    Args:
        qubo: The `Qubo` to solve.
        seed: Integer. Seed of the blocks, which every sweep draws again, and of
            `solve_block`.
        block_size: Integer. Maximum number of variables in a block.
        solve_block: Function `(qubo, seed) -> Solution`.
        sweeps: Integer. Maximum number of sweeps. The descent ends after a
            sweep that did not improve any column.

    Returns:
        A tuple `(states, info)`. `states` has shape (n, m).
    """
    couplings = np.asarray(qubo.couplings, dtype=np.float64)
    fields = np.asarray(qubo.fields, dtype=np.float64)
    rng = np.random.default_rng(seed)
    if qubo.start is None:
        states = np.where(fields > 0, -1.0, 1.0)
    else:
        states = qubo.start.astype(np.float64)
    # Updated after each block, so that a block costs |A| n m, not n n m.
    forces = couplings @ states
    block_infos = []
    for _ in range(sweeps):
        improved = False
        for block in _blocks(couplings, block_size, rng):
            block.sort()
            inner = couplings[np.ix_(block, block)]
            outside = forces[block] - inner @ states[block]
            part = Qubo(inner, fields[block] + 2 * outside)
            if qubo.start is not None:
                part.start = states[block].astype(np.int8)
            try:
                solution = solve_block(part, int(rng.integers(2**31)))
            except (SolverError, BackendUnavailable) as error:
                error.info = merge_block_info([*block_infos, error.info])
                raise
            block_infos.append(solution.info)
            change, better = _improvement(part, states[block], solution.states)
            if not better.any():
                continue
            improved = True
            change = np.where(better, change, 0.0)
            states[block] += change
            forces += couplings[:, block] @ change
        if not improved:
            break
    return states.astype(np.int8), merge_block_info(block_infos)


def _blocks(couplings, block_size, rng):
    """Splits the variables into blocks at random.

    A block consists of a random variable and those with the strongest couplings
    to it. Such blocks improve the result of a descent more than random blocks.
    """
    free = np.arange(len(couplings))
    blocks = []
    sizes = np.array_split(free, _num_blocks(len(free), block_size))
    for size in map(len, sizes):
        center = rng.integers(len(free))
        strength = np.abs(couplings[free[center], free])
        strength[center] = np.inf
        chosen = np.argsort(-strength, kind="stable")[:size]
        blocks.append(free[chosen])
        free = np.delete(free, chosen)
    return blocks


def _improvement(qubo, old, new):
    """Returns `new - old` (n, m) and which columns (m,) it improves.

    Only sums the terms that change. With large constant terms, a small
    improvement would be lost to rounding.
    """
    change = new - old
    couplings, fields = qubo.couplings, qubo.fields
    # (new - old)'Q(new + old) = new'Q new - old'Q old
    total = new + old
    energy_change = (change * (couplings @ total + fields)).sum(axis=0)
    size = np.abs(couplings) @ np.abs(total) + np.abs(fields)
    tolerance = ROUNDING * (np.abs(change) * size).sum(axis=0)
    return change, energy_change < -tolerance


def block_sizes(num_variables, block_size):
    """Returns the distinct block sizes: one, or two that differ by 1."""
    count = _num_blocks(num_variables, block_size)
    return sorted({num_variables // count, -(-num_variables // count)})


def _num_blocks(num_variables, block_size):
    return -(-num_variables // block_size)
