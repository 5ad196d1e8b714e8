r"""Configurations for a network that nobody has tuned yet: four a method.

A step of QP-SBGD moves every latent weight by the learning rate, so rates are
multiples of how large these are: \(a = \sqrt{6 / (n + m)}\), Glorot's bound for
a layer of n inputs and m outputs (geometric mean over the binary layers). Short
runs need larger steps, and deep networks smaller ones: with T steps and L
binary layers,

$$ f = (300 / T)^{1/3}, \qquad d = \min(1, 2 / L). $$

| method | setting | default | chosen in the experiments |
|---|---|---|---|
| native, ridge | rate | a f d times 0.02 to 0.54 | 0.02 to 0.29 |
| sign, signsgd | rate | a f d times 0.02 to 0.54 | 0.02 to 0.29 |
| adam | rate | a f d times 0.02 to 0.54 | 0.02 to 0.50 |
| real | rate | a f d times 0.007 to 0.18 | 0.006 to 0.29 |
| sgd | rate | 0.3 to 10 | 1 to 10 |
| proxquant | rate | f times 1 to 60 | 1 to 24 |
| bop | threshold | (a f)^2 times 0.0003 to 0.04 | 0.0003 to 0.0055 |

The experiments are those of `research`, networks from 3-1 to 784-256-10 and 30
to 4,690 steps, without Cora and PubMed: where an encoder of real weights learns
beside the binary ones, BinaryConnect took rates below these.
"""

from keras_qpsbgd.compare.grids import grids

BINARY = (0.02, 0.06, 0.18, 0.54)
REAL = (0.0067, 0.02, 0.06, 0.18)
SGD = (0.3, 1.0, 3.0, 10.0)
PROXQUANT = (1.0, 4.0, 15.0, 60.0)
# Of the strengths that were compared, this one was chosen most often.
PROXQUANT_REACH = 3.0
BOP_THRESHOLDS = (3e-4, 1.5e-3, 8e-3, 4e-2)
# Bop averages gradients over about a third of a run.
BOP_STEPS = 3.0
MAX_BOP_RATE = 0.1
REAL_RATES = (0.001, 0.003, 0.01, 0.03)
USUAL_STEPS = 300
USUAL_LAYERS = 2


def default_grids(scale, layers, steps, has_other_variables):
    """Grids by key of a method.

    Args:
        scale: how large latent weights are, see `network.latent_scale`.
        layers: number of binary layers.
        steps: of a run.
        has_other_variables: whether there is something to train beside the
            kernels. If not, frozen kernels leave nothing to choose.

    Returns:
        Dict of lists of configurations.
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
