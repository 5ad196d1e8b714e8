"""What a task consists of."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tensorflow import keras

import keras_qpsbgd as kq
from research.few_solves.methods import METHODS
from research.few_solves.methods import Method

UPDATES = (1, 2, 3, 5, 10, 20, 50, 100)
SHOWN = (
    "newton",
    "average",
    "columns",
    "gradient",
    "whitened",
    "top",
    "adam",
    "averaged",
)


@dataclasses.dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        name: String.
        title: String.
        load: Function of the folder of the data, a list of seeds and a boolean
            that is `True` for few samples. Returns a dictionary from seeds to
            dictionaries with a `Split` for each of the parts `"train"`,
            `"validation"` and `"test"`.
        network: Function of the splits of a seed. Returns a new network.
        counts: Tuple of the numbers of updates after which a network is
            evaluated.
        batch: Integer (optional). Number of samples of an update, which are
            drawn anew for each update. `None` uses all training samples.
        methods: Dictionary of the methods by name.
        tuning: Integer. Number of seeds for the choice of a configuration.
        tuned_on: String (optional). The name of the task whose tuning seeds
            choose the configurations. `None` is this task.
        chosen_at: Integer (optional). The number of updates after which a
            configuration is chosen. `None` chooses one for each number.
        fresh: Integer. Number of other seeds, whose results are reported.
        reference: String. The method that others are compared with.
        tested: Integer. The number of updates of these comparisons.
        shown: Tuple of the methods in the figure.
        probe: Integer (optional). Number of training samples for the training
            loss. `None` uses all of them.
        real_rate: Float (optional). Rate of Adam for all variables that are
            not binary kernels, for all methods. `None` means that Adam and SGD
            train them with their own rate, and that the others use Adam with
            the rate 0.01.
        first_limit: Float (optional). The initial latent weights of binary
            layers are at most this large. `None` uses the limit of Glorot and
            Bengio, as for real weights.
        weight_decay: Float. Weight decay of the layer named `encoder`.
        is_graph: Boolean. Whether the inputs are the features and the
            adjacency of a graph.
        accuracy_digits: Integer. Decimals of accuracies in percent.
        is_enumerated: Boolean. Whether the best of all networks is computed.
    """

    name: str
    title: str
    load: Callable[[Any, list, bool], dict]
    network: Callable[[dict], Any]
    counts: tuple[int, ...] = UPDATES
    batch: int | None = None
    methods: dict[str, Method] = dataclasses.field(
        default_factory=lambda: METHODS
    )
    tuning: int = 4
    tuned_on: str | None = None
    chosen_at: int | None = None
    fresh: int = 20
    reference: str = "average"
    tested: int = 20
    shown: tuple[str, ...] = SHOWN
    probe: int | None = None
    real_rate: float | None = None
    first_limit: float | None = 1.0
    weight_decay: float = 0.0
    is_graph: bool = False
    accuracy_digits: int = 1
    is_enumerated: bool = False


def plain(*sizes):
    """Returns a function that returns a new network of `BinaryDense` layers.

    A single layer has no bias.

    Args:
        *sizes: Integers. Widths from inputs to outputs.
    """

    def network(splits):
        del splits
        keras.backend.clear_session()
        layers = [keras.Input((sizes[0],))]
        for size in sizes[1:-1]:
            layers.append(kq.layers.BinaryDense(size, activation="hard_tanh"))
        layers.append(kq.layers.BinaryDense(sizes[-1], use_bias=len(sizes) > 2))
        return keras.Sequential(layers)

    return network
