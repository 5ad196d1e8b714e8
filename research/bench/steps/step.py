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
  measured with and without the construction of the problem from the rows and
  gradients. The target is for the problem given. In training, the gradient of
  the kernel is not computed. Instead, the fields of the problem are computed, a
  product of the same size.
"""

import dataclasses

import tensorflow as tf
from tensorflow import keras

from keras_qpsbgd import backends
from keras_qpsbgd.backends.graph import native
from keras_qpsbgd.cli.console import WIDTH
from keras_qpsbgd.cli.console import show_status
from keras_qpsbgd.compare.report import canvas
from keras_qpsbgd.layers import BinaryDense
from keras_qpsbgd.optimizers import QPSBGD
from research.bench import timing
from research.bench.steps import layer_calls
from research.bench.steps import step_networks

HELP = "time of a training step relative to Adam (25 minutes)"
THREADS = (1, 2)

DEFAULT = backends.get("native").preset
SOLVERS = {
    **{name: {"name": "native", "preset": name} for name in native.PRESETS},
    "ridge": "ridge",
    "sign": "sign",
}
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
# Distinguishable with any color vision (Okabe and Ito).
COLORS = ("#56b4e9", "#0072b2", "#004266", "#d55e00", "#999999", "#009e73")
BAR = 0.16
MIN_BLOCKS = 3
MIN_STEPS = 3


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
            results["networks"][row] = _measure_network(row, solvers, options)
        keras.backend.clear_session()
    return results


def _measure_network(name, solvers, options):
    network = step_networks.NETWORKS[name]
    sides = {}
    for solver in solvers:
        show_status(f"{name}, {solver}: compiling")
        training = step_networks.Training(
            network, QPSBGD(network.rate, SOLVERS[solver], seed=0)
        )
        sides[solver] = _fitted(training, options)
    adam = step_networks.Training(network, "adam")
    return _compare(name, adam.side(_steps(network, options), 0), sides)


def _steps(network, options):
    return network.steps // 10 if options.quick else network.steps


def _measure_layer(options):
    network = step_networks.NETWORKS["16-4-4-2"]
    blocks = 4 if options.quick else 20
    plain, ours = (
        step_networks.Training(
            network, "adam", step_networks.small_mlp(dense)
        ).side(_steps(network, options), blocks)
        for dense in (step_networks.StraightThroughDense, BinaryDense)
    )
    return _compare(LAYER, plain, {"BinaryDense": ours})


def _fitted(training, options):
    """Returns a side whose blocks fit into the available time."""
    training.side(MIN_STEPS, 0).block()  # tracing and compilation
    _, seconds = timing.per_step(training.side(MIN_STEPS, 0))
    block, total = (0.3, 1.0) if options.quick else (1.0, 10.0)
    steps = int(block / seconds)
    steps = min(_steps(training.network, options), steps)
    steps = max(MIN_STEPS, steps)
    blocks = int(total / (steps * seconds))
    return training.side(steps, max(MIN_BLOCKS, min(20, blocks)))


def _compare(name, yardstick, sides):
    base, found = timing.compare(
        yardstick, sides, show=lambda text: show_status(f"{name}, {text}")
    )
    return {
        "yardstick": dataclasses.asdict(base),
        "sides": {side: dataclasses.asdict(t) for side, t in found.items()},
    }


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

    problems = [(layer_calls.problem(*pair),) for pair in pairs]
    sides = {}
    for name in solvers:
        solve = backends.get(SOLVERS[name]).solve_in_graph

        def from_problem(index, problem, solve=solve):
            return solve(problem, tf.constant([index, 0]))

        def from_rows(index, *pair, solve=solve):
            return solve(layer_calls.problem(*pair), tf.constant([index, 0]))

        sides[name] = layer_calls.side(from_rows, pairs, repeats, blocks)
        sides[f"{name}{GIVEN}"] = layer_calls.side(
            from_problem, problems, repeats, blocks
        )
    yardstick = layer_calls.side(forward_and_backward, pairs, repeats, blocks)
    return _compare(SOLVE, yardstick, sides)


def table(results):
    """Returns the ratios of CPU and wall time by network and solver."""
    parts = []
    for threads, result in results.items():
        for kind, title in (("cpu", "CPU"), ("wall", "wall")):
            parts.append(_step_table(result, kind, title, threads))
        parts.append(_other_rows(result, threads))
    return "\n\n".join(part for part in parts if part)


def _threads(count):
    return f"{count} thread{'s' * (count > 1)}"


def _step_table(result, kind, title, threads):
    rows = result["networks"]
    if not rows:
        return ""
    columns = _columns(rows)
    head = f"{'network':<16}{'Adam ms':>9}"
    width = min(10, (WIDTH - len(head)) // len(columns))
    head += "".join(f"{name:>{width}}" for name in columns)
    lines = [
        f"{title} time of a step relative to Adam, {_threads(threads)}",
        head,
        "-" * len(head),
    ]
    for name, row in rows.items():
        cells = "".join(
            f"{row['sides'][column][f'{kind}_ratio']:>{width}.2f}"
            if column in row["sides"]
            else f"{'-':>{width}}"
            for column in columns
        )
        lines.append(f"{name:<16}{1e3 * row['yardstick'][kind]:>9.2f}{cells}")
    return "\n".join(lines)


def _columns(rows):
    names = {name: None for row in rows.values() for name in row["sides"]}
    return list(names)


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
    from matplotlib.ticker import FuncFormatter
    from matplotlib.ticker import LogLocator
    from matplotlib.ticker import NullLocator

    figure = canvas.figure(8.0, 3.0 * len(results))
    panels = figure.subplots(len(results), squeeze=False, sharey=True)[:, 0]
    for axes, (threads, result) in zip(panels, results.items()):
        rows = result["networks"]
        for column in _columns(rows):
            _draw_column(axes, rows, column)
        if threads == max(results):
            _draw_targets(axes, rows)
        axes.axhline(1.0, color="#555555", linewidth=0.8)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.set_xticks(range(len(rows)), list(rows), fontsize=9)
        axes.set_xlim(-0.6, max(1, len(rows)) - 0.4)
        axes.set_ylabel("time relative to Adam")
        axes.set_title(_threads(threads), loc="left", fontsize=11)
        axes.grid(axis="y", color="#dddddd", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_title(
        "bar: CPU time, dot: wall time, line: target",
        loc="right",
        fontsize=8,
        color="#555555",
    )
    panels[0].set_ylim(bottom=0.7)  # shared by all panels
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=6, frameon=False
    )
    canvas.save(figure, path)


def _draw_column(axes, rows, column):
    columns = _columns(rows)
    color = COLORS[columns.index(column) % len(COLORS)]
    label = column
    for place, row in enumerate(rows.values()):
        if column not in row["sides"]:
            continue
        times = row["sides"][column]
        x = place + _offset(columns, column)
        axes.bar(x, times["cpu_ratio"], BAR, color=color, label=label)
        label = None  # only one legend entry
        axes.plot(x, times["wall_ratio"], "wo", mec="black", markersize=4)


def _draw_targets(axes, rows):
    columns = _columns(rows)
    for place, name in enumerate(rows):
        for column, target in STEP_TARGETS.get(name, {}).items():
            if column in rows[name]["sides"]:
                x = place + _offset(columns, column)
                ends = [x - 0.6 * BAR, x + 0.6 * BAR]
                axes.plot(ends, [target, target], color="black", linewidth=2.5)


def _offset(columns, column):
    """Returns the position of a bar relative to the center of its group."""
    return (columns.index(column) - (len(columns) - 1) / 2) * BAR
