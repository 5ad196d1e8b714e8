"""The grids of all methods, with the same number of configurations.

QP-SBGD, its relaxations, BinaryConnect and the real-valued network have a
learning rate to tune. ProxQuant has a learning rate and a regularization
strength, and Bop has an averaging rate and a threshold.
"""

import itertools

from keras_qpsbgd.compare.task import grid


def grids(
    qp,
    sign,
    adam,
    sgd,
    prox,
    bop,
    steps,
    prox_reaches=(3.0, 10.0),
    real=None,
    real_rates=(None,),
    frozen_real_rates=(None,),
):
    """Returns a dict that maps keys of methods to their grids.

    Args:
        qp: learning rates of QP-SBGD, of `ridge` and of the paper's rule.
        sign: learning rates of signSGD and Signum.
        adam: learning rates of BinaryConnect with Adam.
        sgd: learning rates of BinaryConnect with SGD.
        prox: learning rates of ProxQuant. Pass half as many if there are two
            strengths.
        bop: pairs of averaging rate and threshold.
        steps: number of steps of a run. ProxQuant's pull grows with the steps,
            so its strength is set by how far it moves a weight in a whole run.
        prox_reaches: strengths of ProxQuant, as rate * strength * steps^2.
        real: learning rates of the real-valued network. `None` uses `adam`.
        real_rates: learning rates of all other variables. Each is combined with
            each of the rates above.
        frozen_real_rates: the same, for frozen kernels.
    """
    return {
        "native": grid(qp, real_rates),
        "ridge": grid(qp, real_rates),
        "paper": grid(qp, real_rates),
        "signsgd": grid(sign, real_rates),
        "signum": grid(sign, real_rates),
        "adam": grid(adam, real_rates),
        "sgd": grid(sgd, real_rates),
        "proxquant": _proxquant(prox, prox_reaches, steps, real_rates),
        "bop": [
            configuration
            for rate, threshold in bop
            for configuration in grid([rate], real_rates, threshold=threshold)
        ],
        "frozen": grid([None], frozen_real_rates),
        "real": grid(real or adam, real_rates),
    }


def _proxquant(rates, reaches, steps, real_rates):
    """Returns ProxQuant's grid, with strengths that fit the rate and the steps.

    Step t moves a weight by rate * regularization * t. Over a whole run this
    sums to half of rate * regularization * steps^2, or to 0.149 of it if the
    rate decays along a cosine.
    """
    found = []
    for rate, reach in itertools.product(rates, reaches):
        regularization = float(f"{reach / (rate * steps**2):.2g}")
        found += grid([rate], real_rates, regularization=regularization)
    return found
