"""The QUBOs of `QPSBGD`, from their definition and in NumPy.

The rows and the gradient of the loss with respect to the product of rows and
weights come from plain TensorFlow operations, without the statistics of the
package.
"""

import numpy as np
import tools


def first_problem(rule, rows, v, kappa):
    """Returns the couplings and fields of the first update of a layer.

    Args:
        rule: Argument of `QPSBGD`.
        rows: Array of shape `(B, n)`.
        v: Array of shape `(B, m)`. The gradient of the loss.
        kappa: Float.
    """
    rows, v = np.asarray(rows, np.float64), np.asarray(v, np.float64)
    if rule == "paper":
        rows = rows[(v != 0).any(axis=1)]
        v = v[(v != 0).any(axis=1)]
        squares = (rows**2).sum(axis=1, keepdims=True)
        z = np.divide(rows, squares, out=np.zeros_like(rows), where=squares > 0)
        return z.T @ z, -2 * z.T @ v
    gradient, moments = rows.T @ v, rows.T @ rows
    couplings = moments / max(np.trace(moments), 1e-300)
    others = couplings - np.diag(np.diag(couplings))
    # The mean square of the force on a variable of a random state.
    force = np.sqrt((others**2).sum() / len(couplings)) or 1.0
    size = np.sqrt((gradient**2).mean()) or 1.0
    return couplings, -2 * kappa * force * gradient / size


def energies(couplings, fields, states):
    """Returns the energies of states (n, k) in one column, less a constant."""
    others = couplings - np.diag(np.diag(couplings))
    return np.einsum("nk,nk->k", states, others @ states) + fields @ states


def lowest_energy(couplings, fields):
    """Returns the lowest energy of one column, by enumeration."""
    states = tools.all_states(len(couplings))
    return energies(couplings, fields, states).min()
