r"""The averaged rule, the default of `QPSBGD`.

It solves one QUBO for each column \(j\) of a kernel,

$$g_j = \mathrm{argmin}_{g \in \{-1,+1\}^n} \; g^T Q g + s_j^T g ,$$

and moves the latent weights against the solution. \(M\) is the moving average
of the gradient \(G\), \(V\) that of its mean square, and \(C\) that of the
second moments of the inputs (`statistics.MovingCovariance`). As in Nesterov's
method, the fields look one step ahead:

$$\tilde M = \beta^2 M + (1 - \beta^2) G , \qquad
  M \leftarrow \beta M + (1 - \beta) G , \qquad
  V \leftarrow \gamma V + (1 - \gamma) \, \mathrm{mean}(G^2) .$$

As in Adam, all averages start at zero. A hat means division by the sum of the
weights of all gradients so far. \(U\) is the average gradient in units of the
typical size of a gradient, and \(\rho\) is the size of \(U\):

$$U = \frac{\hat M}{\sqrt{\hat V}} , \qquad \rho = \mathrm{rms}(U) .$$

\(\rho\) is 1 if the gradients of all steps agree. It is small if they are
noise, or smaller than they were in the last thousand steps. The step is
proportional to it, \(\Omega_j \leftarrow \Omega_j - \alpha \rho g_j\), and so
are the fields:

$$Q = C , \qquad s_j = -2 \kappa f U_j , \qquad
  f = \sqrt{\tfrac1n \sum_i \sum_{l \ne i} C_{il}^2} .$$

\(f\) is the root mean square of the force that the couplings exert on a
variable in a random state. So \(\kappa \rho\) is the ratio of the linear to the
quadratic force, and does not depend on the scale of the loss, the inputs or the
layer.
"""

from typing import NamedTuple

import tensorflow as tf

from keras_qpsbgd.layers import statistics
from keras_qpsbgd.optimizers.rule import Rule
from keras_qpsbgd.optimizers.rule import block_problems
from keras_qpsbgd.qubo import blocks
from keras_qpsbgd.qubo import ops

# The decay of V, as in Adam.
MEMORY = 0.999
# The length of `Averages.scalars`.
SCALARS = 4


class Averaged(Rule):
    """The averaged rule, and its state for every binary kernel.

    Attributes:
        momenta: Dictionary that maps each `BinaryKernel` to M.
        scalars: Dictionary that maps each `BinaryKernel` to `Averages.scalars`.
    """

    widest = 144

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.momenta = {}
        self.scalars = {}

    def build(self, marks, add_array, add_zeros_like):
        """Creates the variables.

        Args:
            marks: List of `statistics.BinaryKernel`.
            add_array: `Optimizer.add_array`.
            add_zeros_like: Function of a kernel and a name. Returns a variable
                of zeros with the shape of the kernel.
        """
        for index, mark in enumerate(marks):
            shape = mark.num_variables, mark.num_columns
            self.momenta[mark] = add_array(
                shape, "float32", f"momentum_{index}", aggregation="none"
            )
            self.scalars[mark] = add_array(
                (SCALARS,),
                "float32",
                f"second_moment_{index}",
                aggregation="none",
            )
            if self.uses_couplings:
                average = self.add_couplings(mark, add_array, index, "mean")
                self.observers[mark] = statistics.MovingCovariance(
                    average, self.covariance_decay, watches_size=index == 0
                )
        if self.is_warm:
            self.states = {m: add_zeros_like(m.kernel, "states") for m in marks}

    def check(self, marks, is_connected, warn_once):
        """Warns about layers without statistics.

        Args:
            marks: List of `statistics.BinaryKernel`.
            is_connected: Boolean. Whether `connect` was called before the step.
                If not, the step creates variables, so TensorFlow traces it
                again and no warning is needed.
            warn_once: Function of a key and a message.
        """
        names = self.missed(marks)
        if names and is_connected:
            warn_once(
                "late",
                f"The QUBOs of the layers {names} have no couplings, and these "
                "layers train as with Signum, because they were called or "
                "traced before the optimizer was built. Call "
                "`optimizer.build(model.trainable_variables)` before the first "
                "training step.",
            )

    def warn(self, names, warn_once):
        """Warns if the inputs of the first binary layer are not scaled."""
        for mark, observer in self.observers.items():
            size = observer.input_size
            message = size and statistics.warning_of_size(names[mark], size)
            if message:
                warn_once("inputs", message)

    def averages(self, gradient, mark):
        """Returns the `Averages` after an update with this gradient."""
        return averages(
            gradient,
            tf.convert_to_tensor(self.momenta[mark]),
            tf.convert_to_tensor(self.scalars[mark]),
            self.momentum,
        )

    def layer_problems(self, found, mark):
        """Returns the `ops.LayerProblems` of a kernel, given its averages."""
        shape = mark.num_variables, mark.num_columns
        if mark not in self.couplings:
            tensors = found.gradient, found.ahead
            return ops.LayerProblems(signum, tensors, shape)
        couplings = tf.convert_to_tensor(self.couplings[mark])
        start = self.states.get(mark)
        if start is not None:
            start = tf.cast(tf.convert_to_tensor(start), tf.float32)
            start = tf.reshape(start, shape)
        factors = scales(found, couplings, self.kappa)
        return ops.LayerProblems(
            scaled,
            (couplings, found.gradient, found.ahead, *factors, start),
            shape,
            is_warm=start is not None,
        )

    def store(self, found, mark):
        """Stores the averages of a kernel after a solve."""
        self.momenta[mark].assign(found.momentum)
        self.scalars[mark].assign(found.scalars)

    def step_size(self, mark):
        """Returns the distance of a step, in units of the learning rate."""
        return tf.convert_to_tensor(self.scalars[mark])[-1]


class Averages(NamedTuple):
    r"""The averages of the gradient of one kernel, after an update.

    Attributes:
        gradient: G, tensor of shape `(n, m)`.
        momentum: M, tensor of the same shape.
        ahead: \(\tilde M\), tensor of the same shape.
        scalars: Tensor of shape `(SCALARS,)`: V, the sums of the weights in V
            and in M, and \(\rho\).
        unit: Scalar. U is this number times `ahead`.
    """

    gradient: tf.Tensor
    momentum: tf.Tensor
    ahead: tf.Tensor
    scalars: tf.Tensor
    unit: tf.Tensor


def averages(gradient, momentum, scalars, beta):
    """Updates the averages of the gradient of one kernel.

    Args:
        gradient: G, tensor of shape `(n, m)`.
        momentum: M before the update, tensor of shape `(n, m)`.
        scalars: `Averages.scalars` before the update.
        beta: Float. The decay of M.

    Returns:
        `Averages`.
    """
    # This takes one operation fewer than two calls of `average`.
    change = gradient - momentum
    ahead = gradient - beta**2 * change
    square = average(scalars[0], mean_square(gradient), MEMORY)
    square_weight = average(scalars[1], 1.0, MEMORY)
    ahead_weight = average(scalars[2], 1.0, beta**2)
    size = tf.sqrt(square / square_weight) * ahead_weight
    unit = tf.math.divide_no_nan(1.0, size)
    step_size = tf.sqrt(mean_square(ahead)) * unit
    return Averages(
        gradient,
        momentum + (1.0 - beta) * change,
        ahead,
        tf.stack(
            [square, square_weight, average(scalars[2], 1.0, beta), step_size]
        ),
        unit,
    )


def average(before, new, decay):
    """Returns the next value of a moving average."""
    return decay * before + (1.0 - decay) * new


def mean_square(tensor):
    """Returns the mean of the squares of the entries."""
    # TensorFlow has a fast kernel for `l2_loss`.
    return tf.nn.l2_loss(tensor) * (2.0 / tensor.shape.num_elements())


def scales(averages, covariance, kappa):
    """Returns the arguments of `scaled` that are reductions over a whole layer.

    On a CPU, TensorFlow computes them faster than a compiled function.

    Returns:
        Tuple of the factor from `averages.ahead` to fields (scalar) and the
        inputs with couplings (Boolean vector).
    """
    n = averages.gradient.shape[0]
    forces = ops.squared_forces(covariance)
    square = tf.reduce_sum(forces) / n
    # Without couplings, the scale of the fields does not matter.
    force = tf.where(square > 0, tf.sqrt(square), 1.0)
    factor = -2.0 * kappa * force * averages.unit
    return factor, blocks.join_vector(forces > 0, n)


def scaled(covariance, gradient, ahead, factor, is_coupled, start=None):
    """Returns the problems of the averaged rule, given the result of `scales`.

    Args:
        covariance: C, tensor of shape `(blocks, width, width)`.
        gradient: See `Averages`.
        ahead: See `Averages`.
        factor: See `scales`.
        is_coupled: See `scales`.
        start: Tensor of shape `(n, m)` (optional). States of the last update,
            zero for entries that it held. Defaults to `None`.

    Returns:
        List of `ops.Problem`, one for each block.
    """
    fields = ahead * factor
    informative = ops.has_information(
        fields, ops.has_gradient(gradient), is_coupled
    )
    return block_problems(covariance, fields, informative, start)


def signum(gradient, ahead):
    """Returns the problems of a layer without couplings, a list of one."""
    informative = ops.has_information(ahead, ops.has_gradient(gradient))
    return [ops.Problem(None, -ahead, informative=informative)]
