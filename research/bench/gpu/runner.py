"""Times exported training steps with JAX, on any device.

    python -m research.bench.gpu.runner FOLDER OUTPUT

The command needs JAX and NumPy, but neither TensorFlow nor the library. Copy
the repository and the folder of the steps to the machine with the GPU. For each
network, the command writes `gpu-NETWORK.json` to the folder `OUTPUT`. All steps
of a network are compiled first. Then the optimizers take turns, and each has

- `loop`: 64 steps in one program, which is the time of the device;
- `piped`: one call per step, without waiting between them;
- `profile`: the kernels that a step starts, with piped calls.
"""

import collections
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np

from research.bench.gpu import programs

LOOP_STEPS = 64
KINDS = ("loop", "piped")
ROUNDS = 7
ROUND_SECONDS = 0.1  # for each kind of time
MAX_STEPS = 60
PROFILED_STEPS = 2
KERNELS = 40


def main(folder, output, network=None):
    """Writes the times of a network, or of all of them.

    Every network has a process of its own, because compiling the steps of
    several networks in one process can crash.
    """
    folder, output = pathlib.Path(folder), pathlib.Path(output)
    output.mkdir(parents=True, exist_ok=True)
    if network is not None:
        path = output / f"gpu-{network}.json"
        path.write_text(json.dumps(measure(folder, network)))
        return 0
    command = [sys.executable, "-m", "research.bench.gpu.runner"]
    codes = []
    for path in sorted(folder.glob("*/adam.xz")):
        words = [folder, output, path.parent.name]
        codes.append(subprocess.run([*command, *map(str, words)]).returncode)
        print(f"{path.parent.name}: exit code {codes[-1]}", flush=True)
    return int(any(codes) or not codes)


def measure(folder, network):
    """Compiles and times the steps of a network.

    Args:
        folder: Path of the exported steps.
        network: String.

    Returns:
        A dictionary.
    """
    paths = sorted((folder / network).glob("*.xz"))
    steps = {path.stem: Step(path) for path in paths}
    optimizers = {
        name: {"compile_seconds": step.compile_seconds}
        for name, step in steps.items()
    }
    for name, times in _all_times(steps).items():
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
    """Returns the hash of the code that was exported, if known."""
    path = folder / "code.txt"
    return path.read_text() if path.exists() else None


def _all_times(steps):
    """Returns the seconds per step of all rounds, by optimizer and kind."""
    times = {}
    for name, step in steps.items():
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
        state = [arrays[f"state{i}"] for i in range(len(arrays))]
        self.state = jax.device_put(state)
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


def time_steps(step, times):
    """Adds the seconds per step of one round to `times`, by kind."""
    seconds = _seconds(step, step.step, 5)
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
    sys.exit(main(*sys.argv[1:]))
