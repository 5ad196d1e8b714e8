r"""Columns that are wider than a solver: sweeps over blocks of variables.

With all variables B outside a block A held, the energy of the block is again a
QUBO, with couplings $Q_{AA}$ and fields $s_A + 2 Q_{AB} g_B$. Each block is
solved in its turn, for all columns at once, and the answer of a column is taken
only if it is better. So the energy never rises.
"""

import numpy as np

from keras_qpsbgd.backends.errors import BackendUnavailable
from keras_qpsbgd.backends.errors import SolverError
from keras_qpsbgd.backends.host import infos
from keras_qpsbgd.backends.host import progress
from keras_qpsbgd.qubo import Qubo

# Changes of the energy below this share of their terms are rounding errors.
ROUNDING = 1e-9


def solve(qubo, seed, block_size, solve_block, sweeps):
    """States (n, m) by block coordinate descent from sign(-s).

    Args:
        qubo: a `Qubo`.
        seed: int. Every sweep cuts the variables into blocks in another way.
        block_size: largest number of variables in a block.
        solve_block: `(qubo, seed) -> Solution`.
        sweeps: most sweeps; they end when one has improved no column.

    Returns:
        `(states, info)`.
    """
    n = qubo.num_variables
    couplings = np.asarray(qubo.couplings, dtype=np.float64)
    fields = np.asarray(qubo.fields, dtype=np.float64)
    rng = np.random.default_rng(seed)
    states = np.where(fields > 0, -1.0, 1.0)
    # Kept up to date, so that a block costs |A| n m instead of n n m.
    forces = couplings @ states
    told = []
    for sweep in range(sweeps):
        improved = False
        parts = np.array_split(rng.permutation(n), _count(n, block_size))
        for index, block in enumerate(parts):
            progress.block(index, len(parts), sweep, sweeps)
            block.sort()
            inner = couplings[np.ix_(block, block)]
            outside = forces[block] - inner @ states[block]
            part = Qubo(inner, fields[block] + 2 * outside)
            try:
                solution = solve_block(part, int(rng.integers(2**31)))
            except (SolverError, BackendUnavailable) as error:
                error.info = infos.over_blocks([*told, error.info])
                raise
            told.append(solution.info)
            change, better = _improvement(part, states[block], solution.states)
            if not better.any():
                continue
            improved = True
            change = np.where(better, change, 0.0)
            states[block] += change
            forces += couplings[:, block] @ change
        if not improved:
            break
    return states.astype(np.int8), infos.over_blocks(told)


def _improvement(qubo, old, new):
    """The change (n, m) from `old` to `new`, and for which columns it is good.

    Only the terms that change are summed up. Next to the others, if they are
    large, a small improvement would be lost.
    """
    change = new - old
    couplings, fields = qubo.couplings, qubo.fields
    # d'Q(new + old) = new'Q new - old'Q old
    both = new + old
    gain = (change * (couplings @ both + fields)).sum(axis=0)
    size = np.abs(couplings) @ np.abs(both) + np.abs(fields)
    tolerance = ROUNDING * (np.abs(change) * size).sum(axis=0)
    return change, gain < -tolerance


def sizes(num_variables, block_size):
    """The sizes of the blocks that there are: one, or two that differ by 1."""
    count = _count(num_variables, block_size)
    return sorted({num_variables // count, -(-num_variables // count)})


def _count(num_variables, block_size):
    return -(-num_variables // block_size)
