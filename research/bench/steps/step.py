"""Cost of a training step of QP-SBGD relative to a step of Adam.

The networks train with `model.fit` and the same binary layers. The time of a
step of QP-SBGD with each preset of `native` and with `ridge` and `sign` is
divided by the time of a step of Keras Adam (straight-through gradients). The
batches are cached. All sides of a comparison are in one process and take turns
(see `timing.py`). A slow side gets fewer and shorter blocks.

Two more ratios are measured:

- `layer`: `BinaryDense` divided by a plain straight-through layer, for
  16-4-4-2, both with Adam. This is the overhead of the layers without QP-SBGD.
- `solve`: the time to solve the QUBOs of a layer with 784 inputs, 256 outputs
  and 64 rows inside a graph, divided by the time of the forward and backward
  pass of the layer (outputs, gradients of the kernel and the inputs). It is
  measured with and without the second moments of the rows and the gradient of
  the kernel, from which the problem is built. The target is for the problem
  given: the pass computes the gradient, too.
"""

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd.compare.report import canvas
from keras_qpsbgd.layers import BinaryDense
from research.bench.steps import fit_steps
from research.bench.steps import layer_calls
from research.bench.steps import step_networks
from research.bench.steps.fit_steps import DEFAULT
from research.bench.steps.fit_steps import SOLVERS

HELP = "time of a training step relative to Adam (25 minutes)"
THREADS = (1, 2)

# Maximum CPU ratios, with two threads (one thread for the layer).
STEP_TARGETS = {
    "16-4-4-2": {DEFAULT: 1.5, "ridge": 1.3},
    "123-128x9-1": {DEFAULT: 3.2, "ridge": 2.0},
    "784-256-10": {DEFAULT: 2.2, "ridge": 3.0},
}
LAYER_TARGET = 1.05
SOLVE_TARGETS = {DEFAULT: 3.0, "ridge": 1.0}

LAYER = "layer"
SOLVE = "solve"
GIVEN = ", problem given"
INPUTS, OUTPUTS, ROWS = 784, 256, 64
CALLS_PER_GRAPH = 8


def names():
    """Returns the names that `--only` accepts."""
    return [*step_networks.NETWORKS, LAYER, SOLVE, *SOLVERS]


def measure(options):
    """Measures the ratios and the times of the yardsticks."""
    results = {"default": DEFAULT, "networks": {}}
    solvers = options.wanted(SOLVERS)
    for row in options.wanted([*step_networks.NETWORKS, LAYER, SOLVE]):
        if row == LAYER:
            results[LAYER] = _measure_layer(options)
        elif row == SOLVE:
            results[SOLVE] = _measure_solve(solvers, options)
        else:
            network = step_networks.NETWORKS[row]
            results["networks"][row] = fit_steps.measure(
                row, network, solvers, options
            )
        keras.backend.clear_session()
    return results


def _measure_layer(options):
    network = step_networks.NETWORKS["16-4-4-2"]
    blocks = 4 if options.quick else 20
    plain, ours = (
        step_networks.Training(
            network, "adam", step_networks.small_mlp(dense)
        ).side(fit_steps.steps_of(network, options), blocks)
        for dense in (step_networks.StraightThroughDense, BinaryDense)
    )
    return fit_steps.compare(LAYER, plain, {"BinaryDense": ours})


def _measure_solve(solvers, options):
    """Measures a solve relative to a forward and backward pass."""
    repeats, blocks = (3, 4) if options.quick else (10, 20)
    pairs = layer_calls.draw(INPUTS, OUTPUTS, ROWS, CALLS_PER_GRAPH)
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
        given = layer_calls.given_problems(backend, pairs)

        def from_rows(index, *pair, backend=backend):
            layer = layer_calls.layer(backend, *pair)
            return layer_calls.solve(backend, layer, index)

        sides[name] = layer_calls.side(from_rows, pairs, repeats, blocks)
        sides[f"{name}{GIVEN}"] = layer_calls.side(*given, repeats, blocks)
    yardstick = layer_calls.side(forward_and_backward, pairs, repeats, blocks)
    return fit_steps.compare(SOLVE, yardstick, sides)


def table(results):
    """Returns the ratios of CPU and wall time by network and solver."""
    parts = []
    for threads, result in results.items():
        title = f"time of a step relative to Adam, {_threads(threads)}"
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


def verdicts(results):
    """Checks the targets at the maximum thread count (`layer`: minimum)."""
    found = []
    threads = max(results)
    result = results[threads]
    note = f"CPU, {_threads(threads)}"

    def check(ratio, target, text):
        found.append((ratio <= target, f"{text}: {ratio:.2f} (<= {target:g})"))

    for solver in (DEFAULT, "ridge"):
        for name, targets in STEP_TARGETS.items():
            row = result["networks"].get(name, {"sides": {}})
            if solver in row["sides"]:
                check(
                    row["sides"][solver]["cpu_ratio"],
                    targets[solver],
                    f"step / Adam, {name}, {solver}, {note}",
                )
    for solver, target in SOLVE_TARGETS.items():
        sides = result.get(SOLVE, {"sides": {}})["sides"]
        if f"{solver}{GIVEN}" in sides:
            check(
                sides[f"{solver}{GIVEN}"]["cpu_ratio"],
                target,
                f"solve / forward + backward, {solver}, {note}",
            )
    threads = min(results)
    if LAYER in results[threads]:
        check(
            results[threads][LAYER]["sides"]["BinaryDense"]["cpu_ratio"],
            LAYER_TARGET,
            f"BinaryDense / plain layer, CPU, {_threads(threads)}",
        )
    return found


def draw(results, path):
    """Draws CPU ratios as bars, wall ratios as dots and targets as lines.

    Raises:
        ImportError: If Matplotlib is not installed.
    """
    figure = canvas.figure(8.0, 3.0 * len(results))
    panels = figure.subplots(len(results), squeeze=False, sharey=True)[:, 0]
    for axes, (threads, result) in zip(panels, results.items()):
        targets = STEP_TARGETS if threads == max(results) else {}
        fit_steps.draw_panel(axes, result["networks"], targets)
        axes.set_title(_threads(threads), loc="left", fontsize=11)
    note = "bar: CPU time, dot: wall time, line: target"
    fit_steps.finish_figure(figure, panels[0], note)
    canvas.save(figure, path)
