"""The configurations that every method is given, the same number for all.

QP-SBGD, its relaxations, BinaryConnect and the real network have a learning
rate to choose; ProxQuant has a learning rate and the strength of its pull, Bop
a rate of its average and a threshold.
"""

import itertools

from keras_qpsbgd.experiments.task import grid


def grids(
    qp,
    sign,
    adam,
    sgd,
    prox,
    bop,
    steps,
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
        prox: of ProxQuant: half as many, with two strengths each.
        bop: pairs of averaging rate and threshold.
        steps: of a run. ProxQuant's pull grows with the steps, so its strength
            is set by how far it carries a weight in all of them.
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
        "proxquant": _proxquant(prox, steps, real_rates),
        "bop": [
            configuration
            for rate, threshold in bop
            for configuration in grid([rate], real_rates, threshold=threshold)
        ],
        "frozen": grid([None], frozen_real_rates),
        "real": grid(real or adam, real_rates),
    }


def _proxquant(rates, steps, real_rates):
    """With the learning rate's decay a weight is drawn by 0.45 or by 1.5.

    The step t is rate(t) * regularization * t; with a cosine they sum up to
    0.149 * rate * regularization * steps^2.
    """
    found = []
    for rate, reach in itertools.product(rates, (3.0, 10.0)):
        regularization = float(f"{reach / (rate * steps**2):.2g}")
        found += grid([rate], real_rates, regularization=regularization)
    return found
