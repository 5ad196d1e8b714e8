"""Cost of a training step of QP-SBGD relative to a step of Adam.

The networks train with `model.fit` and the same binary layers. The time of a
step of QP-SBGD with `native`, `ridge` and `sign` is divided by the time of a
step of Keras Adam (straight-through gradients). The batches are cached. All
sides of a comparison are in one process and take turns (see `timing.py`). A
slow side gets fewer and shorter blocks.

More ratios are measured:

- `layer`: `BinaryDense` divided by a plain straight-through layer, for
  16-4-4-2, both with Adam. This is the overhead of the layers without QP-SBGD.
- `solve`: the time to solve the QUBOs of a layer with 784 inputs, 256 outputs
  and 64 rows inside a graph, divided by the time of the forward and backward
  pass of the layer (outputs, gradients of the kernel and the inputs). It is
  measured with and without the second moments of the rows and the gradient of
  the kernel, from which the problem is built.
- `recording`: a step that records every tenth update with
  `callbacks.QuboRecorder`, in memory and to a file, divided by the same step
  without a recorder, for a layer with 128 inputs and 128 outputs and batches of
  64 rows. The side `none` is a second model without a recorder. Its ratio shows
  the precision of the measurement.

With `--device gpu`, only steps are measured, of the networks of the page
`docs/guides/gpu.md`. `fit` compiles the step with XLA if Keras does so by
default, as Keras 3 does on a GPU. Only wall time is reported, because the CPU
of the host mostly waits. It includes the time that TensorFlow and `fit` need to
start a step, which is often longer than the step itself takes on the GPU.
"""

import inspect
import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd import ops
from keras_qpsbgd import statistics
from keras_qpsbgd.callbacks import QuboRecorder
from keras_qpsbgd.layers import BinaryDense
from keras_qpsbgd.optimizers import QPSBGD
from keras_qpsbgd.optimizers import qpsbgd
from keras_qpsbgd.optimizers import rules
from research.bench import fit_steps
from research.bench import timing
from research.bench.fit_steps import DEFAULT
from research.bench.fit_steps import GPU_NETWORKS
from research.bench.fit_steps import SOLVERS

HELP = "time of a training step relative to Adam (30 minutes)"
THREADS = (1, 2)

LAYER = "layer"
SOLVE = "solve"
RECORDING = "recording"
OTHERS = (LAYER, SOLVE, RECORDING)
GIVEN = ", problem given"
INPUTS, OUTPUTS, ROWS = 784, 256, 64
RECORDED_SIZE, EVERY = 128, 10
RECORDERS = ("none", "memory", "file")
CALLS_PER_GRAPH = 8
# Optimizers cannot be created in a graph.
KAPPA = inspect.signature(QPSBGD).parameters["kappa"].default


def names(device="cpu"):
    """Returns the names that `--only` accepts on a device."""
    if device == "gpu":
        return [*GPU_NETWORKS, *SOLVERS]
    return [*fit_steps.NETWORKS, *OTHERS, *SOLVERS]


def measure(options):
    """Measures the ratios and the times of the yardsticks."""
    results = {"default": DEFAULT, "networks": {}}
    solvers = options.wanted(SOLVERS)
    networks, others = fit_steps.NETWORKS, OTHERS
    if options.device == "gpu":
        results["device"] = _device_name()
        networks, others = GPU_NETWORKS, ()
    for row in options.wanted([*networks, *others]):
        if row == LAYER:
            results[LAYER] = _measure_layer(options)
        elif row == SOLVE:
            results[SOLVE] = _measure_solve(solvers, options)
        elif row == RECORDING:
            results[RECORDING] = _measure_recording(solvers, options)
        else:
            results["networks"][row] = fit_steps.measure(
                row, networks[row], solvers, options
            )
        keras.backend.clear_session()
    return results


def _device_name():
    device = tf.config.list_physical_devices("GPU")[0]
    details = tf.config.experimental.get_device_details(device)
    return details.get("device_name", "GPU")


def _measure_layer(options):
    network = fit_steps.NETWORKS["16-4-4-2"]
    blocks = 4 if options.quick else 20
    plain, ours = (
        fit_steps.Training(network, "adam", fit_steps.small_mlp(dense)).side(
            fit_steps.steps_of(network, options), blocks
        )
        for dense in (fit_steps.StraightThroughDense, BinaryDense)
    )
    return fit_steps.compare(LAYER, plain, {"BinaryDense": ours})


def _measure_solve(solvers, options):
    """Measures a solve relative to a forward and backward pass."""
    repeats, blocks = (3, 4) if options.quick else (10, 20)
    pairs = draw_pairs(INPUTS, OUTPUTS, ROWS, CALLS_PER_GRAPH)
    # One layer per call. TensorFlow would compute the sign of a shared kernel
    # only once.
    layers = [BinaryDense(OUTPUTS, use_bias=False) for _ in pairs]
    for layer in layers:
        layer.build((ROWS, INPUTS))

    def forward_and_backward(index, rows, gradients):
        layer = layers[index]
        with tf.GradientTape() as tape:
            tape.watch(rows)
            outputs = layer(rows)
        return outputs, tape.gradient(
            outputs, [layer.kernel, rows], output_gradients=gradients
        )

    sides = {}
    for name in solvers:
        backend = backends.get(SOLVERS[name])
        given = given_problems(backend, pairs)

        def from_rows(index, *pair, backend=backend):
            layer = layer_problems(backend, *pair)
            return solve(backend, layer, index)

        sides[name] = calls_side(from_rows, pairs, repeats, blocks)
        sides[f"{name}{GIVEN}"] = calls_side(*given, repeats, blocks)
    yardstick = calls_side(forward_and_backward, pairs, repeats, blocks)
    return fit_steps.compare(SOLVE, yardstick, sides)


def _measure_recording(solvers, options):
    """Measures recorded steps relative to steps without a recorder."""
    steps, blocks = (50, 4) if options.quick else (200, 20)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for solver in solvers:
            yardstick, *sides = (
                _recorded(solver, recorder, folder, steps, blocks)
                for recorder in ("none", *RECORDERS)
            )
            sides = dict(zip(RECORDERS, sides))
            results[solver] = fit_steps.compare(solver, yardstick, sides)
    return results


def _recorded(solver, recorder, folder, steps, blocks):
    """Returns a `timing.Side` of a layer that is recorded.

    The blocks call the training function of the model directly, because `fit`
    traces it again at the start and at the end of a recording.
    """
    model = keras.Sequential(
        [keras.layers.InputLayer((RECORDED_SIZE,)), BinaryDense(RECORDED_SIZE)]
    )
    model.compile(
        QPSBGD(0.002, SOLVERS[solver], seed=0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    if recorder == "none":
        model.make_train_function()
    else:
        path = os.path.join(folder, solver) if recorder == "file" else None
        callback = QuboRecorder(path, every=EVERY)
        callback.set_model(model)
        callback.on_train_begin()
        callback.on_train_batch_begin(0)
    batches = iter(_recorded_data())

    def block():
        for _ in range(steps):
            model.train_function(batches)

    return timing.Side(block, steps, blocks)


def _recorded_data():
    """Returns an endless dataset of 16 cached batches."""
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (16 * ROWS, RECORDED_SIZE)).astype("float32")
    y = random.integers(RECORDED_SIZE, size=(16 * ROWS, 1))
    data = tf.data.Dataset.from_tensor_slices((x, y))
    return data.batch(ROWS, drop_remainder=True).cache().repeat()


def table(results):
    """Returns the ratios of CPU and wall time by network and solver."""
    parts = []
    for threads, result in results.items():
        where = result.get("device", _threads(threads))
        title = f"time of a step relative to Adam, {where}"
        if "device" in result:
            rows = result["networks"]
            parts.append(fit_steps.table(rows, "wall", f"wall {title}"))
            continue
        for kind, word in (("cpu", "CPU"), ("wall", "wall")):
            rows = result["networks"]
            parts.append(fit_steps.table(rows, kind, f"{word} {title}"))
        parts.append(_other_rows(result, threads))
    return "\n\n".join(part for part in parts if part)


def _threads(count):
    return f"{count} thread{'s' * (count > 1)}"


def _other_rows(result, threads):
    lines = []
    if LAYER in result:
        times = result[LAYER]["sides"]["BinaryDense"]
        lines += [
            "BinaryDense / plain straight-through layer, both with Adam, "
            f"{_threads(threads)}:",
            f"CPU {times['cpu_ratio']:.3f}, wall {times['wall_ratio']:.3f}",
        ]
    if RECORDING in result:
        size = RECORDED_SIZE
        lines += [""] * bool(lines) + [
            f"Step that records every {EVERY}th update / step without a "
            "recorder,",
            f"layer {size} x {size}, {_threads(threads)}",
            f"{'':<28}{'CPU ratio':>12}{'wall ratio':>12}",
        ]
        lines += [
            f"{f'{solver}, {recorder}':<28}{times['cpu_ratio']:>12.3f}"
            f"{times['wall_ratio']:>12.3f}"
            for solver, row in result[RECORDING].items()
            for recorder, times in row["sides"].items()
        ]
    if SOLVE in result:
        base = result[SOLVE]["yardstick"]
        lines += [""] * bool(lines) + [
            f"One solve / forward and backward pass, layer {INPUTS} x "
            f"{OUTPUTS}, {ROWS} rows, {_threads(threads)}",
            f"(time of the pass: CPU {1e3 * base['cpu']:.2f} ms, wall "
            f"{1e3 * base['wall']:.2f} ms)",
            f"{'':<28}{'CPU ratio':>12}{'wall ratio':>12}",
        ]
        lines += [
            f"{name:<28}{times['cpu_ratio']:>12.2f}{times['wall_ratio']:>12.2f}"
            for name, times in result[SOLVE]["sides"].items()
        ]
    return "\n".join(lines)


# Calls of single layers and their solvers inside a graph
#
# A graph contains several calls, which run one after the other as in training.
# The overhead of calling the graph from Python is then small, and no two calls
# run at the same time. Every call has different data, because TensorFlow would
# compute common parts only once.


def draw_pairs(inputs, outputs, rows, calls):
    """Returns a list of pairs of rows and gradients, as in training."""
    random = np.random.default_rng(0)
    pairs = []
    for _ in range(calls):
        x = np.clip(random.standard_normal((rows, inputs)), -1.0, 1.0)
        v = random.standard_normal((rows, outputs))
        pairs.append((tf.constant(x, tf.float32), tf.constant(v, tf.float32)))
    return pairs


def layer_problems(backend, rows, gradients):
    """Returns the `ops.LayerProblems` of an update, as in `fit`.

    Args:
        backend: The solver.
        rows: Tensor of shape `(B, n)`.
        gradients: Tensor of shape `(B, m)`.
    """
    gradient = tf.matmul(rows, gradients, transpose_a=True)
    shape = tuple(gradient.shape)
    if not backend.uses_couplings:
        return ops.LayerProblems(rules.signum, (gradient, gradient), shape)
    count, width = statistics.block_shape(shape[0], qpsbgd.WIDEST["averaged"])
    moments = statistics.second_moments(rows, (count, width, width))
    covariance = moments / tf.reduce_sum(tf.linalg.trace(moments))
    # After the first update, a search starts from the last states.
    start = ops.sign(gradient) if backend.warm_start else None
    return ops.LayerProblems(
        rules.averaged,
        (gradient, gradient, covariance, tf.constant(KAPPA), start),
        shape,
        is_warm=start is not None,
    )


def solve(backend, layer, index):
    """Returns the states of a layer. The index of the call is the seed."""
    (states,) = backend.step_in_graph([layer], [tf.constant([index, 0])])
    return states


def given_problems(backend, pairs):
    """Returns the arguments of `calls_side` for solves of given problems.

    Args:
        backend: The solver.
        pairs: The result of `draw_pairs`.
    """
    layers = [layer_problems(backend, *pair) for pair in pairs]

    def from_problem(index, *tensors):
        given = layers[index]._replace(tensors=tensors)
        return solve(backend, given, index)

    return from_problem, [given.tensors for given in layers]


def calls_side(function, arguments, repeats, blocks):
    """Returns a `timing.Side` with several calls of a function in one graph.

    Args:
        function: Function to time, called as `function(index,
            *arguments[index])`. One call is one step.
        arguments: List with one entry per call.
        repeats: Number of calls of the graph in a block.
        blocks: Number of blocks to measure.
    """

    @tf.function(autograph=False)
    def graph(arguments):
        outputs = []
        for index, values in enumerate(arguments):
            with tf.control_dependencies(tf.nest.flatten(outputs[-1:])):
                values = tf.nest.map_structure(_later, values)
                outputs.append(function(index, *values))
        return outputs

    def block():
        for _ in range(repeats):
            last = tf.nest.flatten(graph(arguments))[-1]
        last.numpy()

    return timing.Side(block, repeats * len(arguments), blocks)


def _later(tensor):
    """Copies a tensor, so that it waits for its control dependencies."""
    return None if tensor is None else tf.identity(tensor)
