r"""The methods that are compared, and their grids of configurations.

All methods train the same network from the same initial weights on the same
batches. They differ in how they update the kernels. Adam trains all other
variables (an encoder, batch normalization) in every method.

A configuration has a `rate` (the learning rate of the kernels) and, if there
are other variables, a `real_rate`. Its other entries are passed to the
optimizer of the method. All methods have the same number of configurations.
QP-SBGD, its relaxations, BinaryConnect and the real-valued network have a
learning rate to tune. ProxQuant has a learning rate and a regularization
strength, and Bop has an averaging rate and a threshold. `kappa`, `momentum` and
`covariance_decay` of QP-SBGD are the defaults of the rule on every task. No
task tunes them, and only the ablation varies them.

A step of QP-SBGD moves a latent weight by the learning rate times rho, a number
of order 1. So the default rates are proportional to the size of these weights,
\(a = \sqrt{6 / (n + m)}\). This is Glorot's bound for a layer with n inputs and
m outputs (the geometric mean over the binary layers). Short runs need larger
steps, and deep networks need smaller ones. With T steps and L binary layers,
let

$$ f = (300 / T)^{1/3}, \qquad d = \min(1, 2 / L). $$

| method | setting | default | chosen in the experiments |
|---|---|---|---|
| native, ridge, paper | rate | a f d times 0.02 to 1.2 | 0.022 to 4.5 |
| signsgd, signum | rate | a f d times 0.02 to 1.2 | 0.0085 to 5.2 |
| adam | rate | a f d times 0.02 to 1.2 | 0.014 to 5.2 |
| real | rate | a f d times 0.007 to 0.18 | 0.0085 to 0.23 |
| sgd | rate | 1 to 125 | 0.72 to 720 |
| momentum | rate | 0.1 to 12.5 | 0.027 to 30 |
| proxquant | rate | f times 1 to 60 | 2 to 36 |
| bop | threshold | (a f)^2 times 0.0001 to 0.04 | 0.000001 to 0.027 |

The last column comes from the experiments in `research`: networks from 3-1 to
784-256-10 with 30 to 2,340 steps. It leaves out Cora and PubMed. There a
real-valued encoder is trained together with the binary layers, and the best
rates of BinaryConnect were below the default ones.
"""

import dataclasses
import functools
import itertools

from tensorflow import keras

from keras_qpsbgd import optimizers
from keras_qpsbgd.optimizers.base import BinaryOptimizer

NOT_FOR_THE_OPTIMIZER = ("rate", "real_rate", "batches")
# Default grids
BINARY = (0.02, 0.08, 0.3, 1.2)
REAL = (0.0067, 0.02, 0.06, 0.18)
SGD = (1.0, 5.0, 25.0, 125.0)
PROXQUANT = (1.0, 4.0, 15.0, 60.0)
# This strength was chosen most often in the experiments.
PROXQUANT_REACH = 3.0
BOP_THRESHOLDS = (1e-4, 8e-4, 6e-3, 4e-2)
# Bop averages the gradients over about a third of a run.
BOP_STEPS = 3.0
MAX_BOP_RATE = 0.1
REAL_RATES = (0.001, 0.003, 0.01, 0.03)
USUAL_STEPS = 300
USUAL_LAYERS = 2


@dataclasses.dataclass(frozen=True)
class Method:
    """A method for training binary kernels.

    Attributes:
        key: name in code and on the command line.
        label: name in tables, figures and records.
        backend: backend of QP-SBGD, or `None` for other methods.
        rule: `rule` of QP-SBGD.
        weights: `"binary"`, `"latent"` (real-valued in training, their signs
            in evaluation) or `"real"`.
        like: key of the method whose chosen configuration is used, or `None`.
    """

    key: str
    label: str
    backend: str | dict | None = None
    rule: str = "averaged"
    weights: str = "binary"
    like: str | None = None


_ALL = (
    Method("native", "QP-SBGD", "native"),
    Method("gurobi", "QP-SBGD (gurobi)", "gurobi", like="native"),
    Method(
        "dwave",
        "QP-SBGD (mock dwave)",
        {"name": "dwave", "mock": True},
        like="native",
    ),
    Method("ridge", "QP-SBGD (ridge)", "ridge"),
    Method("paper", "QP-SBGD (paper)", "native", rule="paper"),
    Method("sgd", "BinaryConnect (SGD)"),
    Method("momentum", "BinaryConnect (momentum)"),
    Method("signsgd", "BinaryConnect (signSGD)"),
    Method("signum", "BinaryConnect (Signum)"),
    Method("adam", "BinaryConnect (Adam)"),
    Method("proxquant", "ProxQuant", weights="latent"),
    Method("bop", "Bop"),
    Method("frozen", "frozen at random"),
    # It trains nothing, see `training.Constant`.
    Method("constant", "constant answer"),
    # Not a baseline: it shows how much accuracy binary weights cost.
    Method("real", "real weights", weights="real"),
)
METHODS = {method.key: method for method in _ALL}


_OURS = {
    "signsgd": optimizers.SignSGD,
    # QP-SBGD without couplings, without looking ahead, and with steps of
    # the same length.
    "signum": functools.partial(optimizers.SignSGD, momentum=0.9),
    "proxquant": optimizers.ProxQuant,
    "bop": optimizers.Bop,
}
_KERAS = {
    "sgd": keras.optimizers.SGD,
    "momentum": functools.partial(keras.optimizers.SGD, momentum=0.9),
    "adam": keras.optimizers.Adam,
    "real": keras.optimizers.Adam,
}


class Update:
    """The optimizers of a method for a model.

    Args:
        method: a `Method`.
        model: a built model.
        kernels: the kernels that the method trains.
        settings: dict of further arguments of the optimizer.
    """

    def __init__(self, method, model, kernels, settings):
        self._variables = list(model.trainable_variables)
        self._real = keras.optimizers.Adam(0.0)
        self._binary = self._optimizer(method, settings)
        if isinstance(self._binary, BinaryOptimizer):
            # The optimizer has its own copy, whose rate `set_rates` must set.
            self._real = self._binary.real_optimizer
            parts = [(self._binary, self._variables)]
        else:
            known = {id(kernel) for kernel in kernels}
            rest = [v for v in self._variables if id(v) not in known]
            parts = [(self._binary, kernels), (self._real, rest)]
        # Empty if the kernels are frozen, or if there are no other variables.
        self._parts = [part for part in parts if all(part)]
        for optimizer, variables in self._parts:
            optimizer.build(variables)

    def _optimizer(self, method, settings):
        """Returns the optimizer of the kernels, `None` if they are frozen."""
        if method.key == "frozen":
            return None
        if method.key in _KERAS:
            return _KERAS[method.key](0.0)
        if method.key in _OURS:
            return _OURS[method.key](0.0, real_optimizer=self._real, **settings)
        return optimizers.QPSBGD(
            0.0,
            backend=method.backend,
            real_optimizer=self._real,
            seed=0,
            rule=method.rule,
            **settings,
        )

    def set_rates(self, rate, real_rate):
        """Sets the learning rates for the next update."""
        if self._binary is not None:
            self._binary.learning_rate.assign(rate)
        self._real.learning_rate.assign(real_rate)

    def apply(self, gradients):
        """Updates all variables with their gradients."""
        of = {id(v): g for v, g in zip(self._variables, gradients)}
        for optimizer, variables in self._parts:
            optimizer.apply_gradients([(of[id(v)], v) for v in variables])

    def state(self):
        """Returns all variables of the optimizers."""
        return [v for optimizer, _ in self._parts for v in optimizer.variables]


# Grids


def grid(rates, real_rates=(None,), **settings):
    """Returns the configurations with all combinations of rates.

    Args:
        rates: learning rates of the kernels.
        real_rates: learning rates of all other variables.
        **settings: further arguments of the optimizer, for all configurations.
    """
    configurations = []
    for rate in rates:
        for real_rate in real_rates:
            configuration = {"rate": rate, "real_rate": real_rate, **settings}
            configurations.append(
                {k: v for k, v in configuration.items() if v is not None}
            )
    return configurations


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
        sgd: learning rates of BinaryConnect with SGD. With momentum, they are
            ten times lower, because momentum makes steps ten times as long.
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
        "momentum": grid(_times(0.1, sgd), real_rates),
        "proxquant": _proxquant(prox, prox_reaches, steps, real_rates),
        "bop": [
            configuration
            for rate, threshold in bop
            for configuration in grid([rate], real_rates, threshold=threshold)
        ],
        "frozen": grid([None], frozen_real_rates),
        "constant": grid([None]),
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
    (bop_rate,) = _times(min(BOP_STEPS / steps, MAX_BOP_RATE), [1.0])
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
    return [float(f"{factor * value:.2g}") for value in values]
