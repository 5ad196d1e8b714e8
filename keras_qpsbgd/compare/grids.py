"""The configurations that every method is given, the same number for all.

QP-SBGD, its relaxations, BinaryConnect and the real network have a learning
rate to choose; ProxQuant has a learning rate and the strength of its pull, Bop
a rate of its average and a threshold.
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
    """Grids by key of a method.

    Args:
        qp: learning rates of QP-SBGD and `ridge`.
        sign: of signSGD and of QP-SBGD with `sign`.
        adam: of BinaryConnect with Adam.
        sgd: of BinaryConnect with SGD.
        prox: of ProxQuant: half as many, if there are two strengths.
        bop: pairs of averaging rate and threshold.
        steps: of a run. ProxQuant's pull grows with the steps, so its strength
            is set by how far it carries a weight in all of them.
        prox_reaches: the strengths: rate * strength * steps^2.
        real: of the real network, if not those of Adam.
        real_rates: of everything else, for each of the above.
        frozen_real_rates: where the kernels stay as they are.
    """
    return {
        "native": grid(qp, real_rates),
        "ridge": grid(qp, real_rates),
        "sign": grid(sign, real_rates),
        "signsgd": grid(sign, real_rates),
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
    """Strengths that carry a weight as far, whatever the rate and the steps.

    Step t draws a weight by rate * regularization * t. In all steps that is
    half of rate * regularization * steps^2, and 0.149 of it where the rate
    decays along a cosine.
    """
    found = []
    for rate, reach in itertools.product(rates, reaches):
        regularization = float(f"{reach / (rate * steps**2):.2g}")
        found += grid([rate], real_rates, regularization=regularization)
    return found
