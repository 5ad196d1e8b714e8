r"""Default configurations for a new network: four for each method.

A step of QP-SBGD moves every latent weight by the learning rate, so the default
rates are proportional to the size of these weights, \(a = \sqrt{6 / (n + m)}\).
This is Glorot's bound for a layer with n inputs and m outputs (the geometric
mean over the binary layers). Short runs need larger steps, and deep networks
need smaller ones. With T steps and L binary layers, let

$$ f = (300 / T)^{1/3}, \qquad d = \min(1, 2 / L). $$

| method | setting | default | chosen in the experiments |
|---|---|---|---|
| native, ridge, paper | rate | a f d times 0.02 to 0.54 | 0.02 to 0.29 |
| signsgd, signum | rate | a f d times 0.02 to 0.54 | 0.02 to 0.29 |
| adam | rate | a f d times 0.02 to 0.54 | 0.02 to 0.50 |
| real | rate | a f d times 0.007 to 0.18 | 0.006 to 0.29 |
| sgd | rate | 0.3 to 10 | 1 to 10 |
| proxquant | rate | f times 1 to 60 | 1 to 24 |
| bop | threshold | (a f)^2 times 0.0003 to 0.04 | 0.0003 to 0.0055 |

The last column comes from the experiments in `research` with the rules of
version 0.1: networks from 3-1 to 784-256-10 with 30 to 4,690 steps. It leaves
out Cora and PubMed. There a real-valued encoder is trained together with the
binary layers, and the best rates of BinaryConnect were below the default ones.
"""

from keras_qpsbgd.compare.grids import grids

BINARY = (0.02, 0.06, 0.18, 0.54)
REAL = (0.0067, 0.02, 0.06, 0.18)
SGD = (0.3, 1.0, 3.0, 10.0)
PROXQUANT = (1.0, 4.0, 15.0, 60.0)
# This strength was chosen most often in the experiments.
PROXQUANT_REACH = 3.0
BOP_THRESHOLDS = (3e-4, 1.5e-3, 8e-3, 4e-2)
# Bop averages the gradients over about a third of a run.
BOP_STEPS = 3.0
MAX_BOP_RATE = 0.1
REAL_RATES = (0.001, 0.003, 0.01, 0.03)
USUAL_STEPS = 300
USUAL_LAYERS = 2


def default_grids(scale, layers, steps, has_other_variables):
    """Returns the default grids of all methods.

    Args:
        scale: size of the latent weights, see `network.latent_scale`.
        layers: number of binary layers.
        steps: number of steps of a run.
        has_other_variables: whether there are trainable variables other than
            the binary kernels. If not, there is nothing to tune for frozen
            kernels.

    Returns:
        A dict that maps keys of methods to lists of configurations.
    """
    short = (USUAL_STEPS / steps) ** (1 / 3)
    rate = scale * short * min(1.0, USUAL_LAYERS / layers)
    bop_rate = _rounded(min(BOP_STEPS / steps, MAX_BOP_RATE))
    thresholds = _times((scale * short) ** 2, BOP_THRESHOLDS)
    return grids(
        qp=_times(rate, BINARY),
        sign=_times(rate, BINARY),
        adam=_times(rate, BINARY),
        real=_times(rate, REAL),
        sgd=SGD,
        prox=_times(short, PROXQUANT),
        prox_reaches=(PROXQUANT_REACH,),
        bop=[(bop_rate, threshold) for threshold in thresholds],
        steps=steps,
        frozen_real_rates=REAL_RATES if has_other_variables else (None,),
    )


def _times(factor, values):
    return [_rounded(factor * value) for value in values]


def _rounded(value):
    return float(f"{value:.2g}")
