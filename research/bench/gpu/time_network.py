"""Times the exported training steps of one network. Started by `runner.py`.

    python -m research.bench.gpu.time_network FOLDER NETWORK RESULT_FILE \\
        [OPTIMIZER ...]

Compiles all steps, then measures them in turns.
"""

import collections
import json
import pathlib
import statistics
import sys
import tempfile
import time

import jax
import numpy as np

from research.bench.gpu import programs

LOOP_STEPS = 64
KINDS = ("loop", "piped", "blocked")
ROUNDS = 7
ROUND_SECONDS = 0.1  # for each kind of time
MAX_STEPS = 60
PROFILED_STEPS = 2
KERNELS = 40


def main(folder, network, path, *names):
    """Writes the times of a network to a file."""
    result = measure(pathlib.Path(folder), network, names)
    pathlib.Path(path).write_text(json.dumps(result))


def measure(folder, network, names):
    """Compiles and times the steps of a network.

    Args:
        folder: Path of the exported steps.
        network: String.
        names: Optimizers to measure in addition to Adam. All if it is empty.

    Returns:
        A dictionary.
    """
    steps, optimizers = {}, {}
    paths = sorted((folder / network).glob("*.xz"))
    for path in sorted(paths, key=lambda path: path.stem != "adam"):
        name = path.stem
        if name != "adam" and names and name not in names:
            continue
        try:
            steps[name] = Step(path)
            optimizers[name] = {"compile_seconds": steps[name].compile_seconds}
        except jax.errors.JaxRuntimeError as error:
            if name == "adam":
                raise
            optimizers[name] = {"error": str(error)[:1000]}
    for name, times in _all_times(steps, optimizers).items():
        for kind in KINDS:
            seconds = times[kind]
            optimizers[name][kind] = {
                "us": 1e6 * statistics.median(seconds),
                "rounds_us": [1e6 * s for s in seconds],
            }
    for name, step in steps.items():
        optimizers[name]["loss"] = float(np.asarray(step.step()))
        optimizers[name]["profile"] = profile(step)
    return {
        "network": network,
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "code": _code(folder),
        "optimizers": optimizers,
    }


def _code(folder):
    """Returns the fingerprint of the code that was exported, if known."""
    path = folder / "code.txt"
    return path.read_text() if path.exists() else None


def _all_times(steps, optimizers):
    """Returns the seconds per step of all rounds, by optimizer and kind."""
    times = {}
    for name, step in steps.items():
        optimizers[name]["wrong_signs"] = step.wrong_signs()
        times[name] = {kind: [] for kind in KINDS}
        time_steps(step, {kind: [] for kind in KINDS})  # warm-up
    for _ in range(ROUNDS):
        for name, step in steps.items():
            time_steps(step, times[name])
    return times


class Step:
    """A compiled training step and its state on the device."""

    def __init__(self, path):
        with np.load(path.with_suffix(".npz")) as file:
            arrays = dict(file)
        data = arrays.pop("inputs"), arrays.pop("targets")
        start = time.perf_counter()
        content = path.read_bytes()
        self._step, self._updates = programs.compiled(content)
        self._loop = programs.compiled_loop(content, LOOP_STEPS, len(data[0]))
        self.compile_seconds = time.perf_counter() - start
        self._batches = [jax.device_put(list(batch)) for batch in zip(*data)]
        self._stacked = jax.device_put(list(data))
        self._signs = {
            int(name.removeprefix("signs")): arrays.pop(name)
            for name in list(arrays)
            if name.startswith("signs")
        }
        self._initial = [arrays[f"state{i}"] for i in range(len(arrays))]
        self.state = jax.device_put(self._initial)
        self.count = 0

    def step(self):
        """Starts one step and returns the loss."""
        batch = self._batches[self.count % len(self._batches)]
        outputs = programs.execute(self._step, [*batch, *self.state])
        for index, output in self._updates:
            self.state[index] = outputs[output]
        self.count += 1
        return outputs[0]

    def loop(self):
        """Starts 64 steps in one program."""
        self.state = programs.execute(self._loop, [*self._stacked, *self.state])

    def wait(self):
        """Waits until the device is done."""
        jax.block_until_ready(self.state)

    def wrong_signs(self):
        """Takes the first step, and returns the share of wrong updates."""
        self.step()
        shares = [
            np.mean(
                np.sign(np.asarray(self.state[index]) - self._initial[index])
                != signs
            )
            for index, signs in self._signs.items()
        ]
        return float(max(shares)) if shares else None


def time_steps(step, times):
    """Adds the seconds per step of one round to `times`, by kind."""
    start = time.perf_counter()
    blocked = []
    while len(blocked) < MAX_STEPS and (
        len(blocked) < 5 or time.perf_counter() - start < ROUND_SECONDS
    ):
        blocked.append(_seconds(step, step.step, 1))
    seconds = statistics.median(blocked)
    times["blocked"].append(seconds)
    steps = int(min(MAX_STEPS, max(4, ROUND_SECONDS / seconds)))
    times["piped"].append(_seconds(step, step.step, steps))
    loops = int(min(10, max(1, ROUND_SECONDS / seconds / LOOP_STEPS)))
    times["loop"].append(_seconds(step, step.loop, loops) / LOOP_STEPS)


def _seconds(step, function, count):
    start = time.perf_counter()
    for _ in range(count):
        function()
    step.wait()
    return (time.perf_counter() - start) / count


def profile(step):
    """Returns the kernels that a step starts, or `None` without a GPU."""
    kernels = collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(PROFILED_STEPS):
                step.step()
            step.wait()
        for path in pathlib.Path(folder).rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
                for line in plane.lines if "GPU" in plane.name else ():
                    if line.name.lower().startswith("stream"):
                        for event in line.events:
                            kernels[event.name].append(event.duration_ns)
    if not kernels:
        return None
    rows = [
        {
            "name": name,
            "launches": len(times) / PROFILED_STEPS,
            "us": sum(times) / PROFILED_STEPS / 1e3,
        }
        for name, times in kernels.items()
    ]
    rows.sort(key=lambda row: -row["us"])
    launches = sum(row["launches"] for row in rows)
    return {"launches": launches, "kernels": rows[:KERNELS]}


if __name__ == "__main__":
    main(*sys.argv[1:])
