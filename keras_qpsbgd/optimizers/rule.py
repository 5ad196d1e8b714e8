"""Base class of the two rules of `QPSBGD`.

A rule turns gradients and statistics into QUBOs, and owns the state that it
keeps from one update to the next. `QPSBGD` calls it in this order:

1. `build` creates its variables, and `connect` asks the layers for statistics.
2. In a step, `check` warns or raises if a layer did not compute them,
   `averages` receives the gradient of a kernel, and `layer_problems` returns
   its QUBOs.
3. After the solve, `store` keeps the new state, the kernel moves by `step_size`
   times the learning rate, and `store_states` keeps the solution. `drop` runs
   instead if the solve fails or a gradient is not finite.
"""

import numbers

import tensorflow as tf

from keras_qpsbgd.backends.errors import check_number
from keras_qpsbgd.qubo import blocks
from keras_qpsbgd.qubo import ops


class Rule:
    """Base class of the rules: arguments, and couplings with their observers.

    Args:
        kappa: See `QPSBGD`.
        momentum: See `QPSBGD`.
        covariance_decay: See `QPSBGD`.
        uses_couplings: Boolean. Whether the solver uses couplings.
        is_warm: Boolean. Whether the solver starts from the last states.

    Attributes:
        widest: Integer. Layers with more inputs than this have several blocks
            of couplings.
        couplings: Dictionary that maps each `BinaryKernel` to the variable of
            its couplings. The layers update it in training passes.
        observers: Dictionary that maps each `BinaryKernel` to its observer.
        states: Dictionary that maps each `BinaryKernel` to the states of its
            last update. Empty if the solver does not start from them.
    """

    def __init__(
        self, kappa, momentum, covariance_decay, uses_couplings, is_warm
    ):
        check_number("kappa", kappa, above=0)
        _check_decay("momentum", momentum)
        _check_decay("covariance_decay", covariance_decay)
        # NumPy numbers cannot be saved.
        self.kappa = float(kappa)
        self.momentum = float(momentum)
        self.covariance_decay = float(covariance_decay)
        self.uses_couplings = uses_couplings
        self.is_warm = is_warm
        self.couplings = {}
        self.observers = {}
        self.states = {}

    def get_config(self):
        """Returns the arguments that are saved with the model."""
        return {
            "kappa": self.kappa,
            "momentum": self.momentum,
            "covariance_decay": self.covariance_decay,
        }

    def problem_sizes(self, num_variables, num_columns):
        """Returns the numbers of inputs and outputs of the QUBOs of a layer."""
        if not self.uses_couplings:
            return [(num_variables, num_columns)]
        return blocks.block_sizes(num_variables, num_columns, self.widest)

    def sizes(self, marks):
        """Returns the numbers of inputs and outputs of the QUBOs of kernels."""
        return [
            size
            for mark in marks
            for size in self.problem_sizes(mark.num_variables, mark.num_columns)
        ]

    def blocks_note(self, names):
        """Returns which layers have several blocks, for error messages.

        Args:
            names: Dictionary that maps each `BinaryKernel` to its name.
        """
        notes = [
            f"`{name}` has {mark.num_variables} inputs in {len(sizes)} blocks "
            f"of couplings with {sizes[0][0]} inputs"
            for mark, name in names.items()
            if len(sizes := self.problem_sizes(mark.num_variables, 1)) > 1
        ]
        return f" ({'; '.join(notes)})" if notes else ""

    def add_couplings(self, mark, add_array, index, aggregation):
        """Creates the variable of the couplings of a kernel."""
        count, width = blocks.block_shape(mark.num_variables, self.widest)
        self.couplings[mark] = add_array(
            (count, width, width),
            "float32",
            f"couplings_{index}",
            aggregation=aggregation,
        )
        return self.couplings[mark]

    def connect(self):
        """Asks the layers for their statistics."""
        for mark, observer in self.observers.items():
            mark.observer = observer

    def missed(self, marks):
        """Returns the names of the layers that computed no statistics."""
        return [m.name for m in marks if m in self.observers and m.missed]

    def warn(self, names, warn_once):
        """Warns about training so far. It must not slow down a step.

        Args:
            names: Dictionary that maps each `BinaryKernel` to its name.
            warn_once: Function of a key and a message.
        """

    def store_states(self, mark, states):
        """Stores the states that a kernel has moved against."""
        if mark in self.states:
            self.states[mark].assign(states)

    def drop(self, accumulated):
        """Discards state that is no longer valid after a skipped update.

        Args:
            accumulated: The variables of a gradient accumulation.
        """


def block_problems(couplings, fields, informative, start=None):
    """Returns the problems of a layer, one for each block.

    Args:
        couplings: Tensor of shape `(blocks, width, width)`.
        fields: Tensor of shape `(n, m)`.
        informative: See `ops.Problem`, shape `(n, m)`.
        start: Tensor of shape `(n, m)` (optional). States of the last update,
            zero for entries that it held. Defaults to `None`.
    """
    if start is not None:
        # Entries without a start get the state that their field prefers.
        start = tf.where(start == 0, ops.sign(-fields), start)
        # Solvers on the host accept no zeros, not even for padding.
        start = ops.sign(blocks.split(start, couplings.shape))
    fields = blocks.split(fields, couplings.shape)
    informative = blocks.split(informative, couplings.shape)
    return [
        ops.Problem(
            couplings[block],
            fields[block],
            None if start is None else start[block],
            informative[block],
        )
        for block in range(couplings.shape[0])
    ]


def _check_decay(name, value):
    if not isinstance(value, numbers.Real) or not 0 <= value < 1:
        raise ValueError(
            f"`{name}` must be a number in [0, 1). Received: {name}={value!r}"
        )
