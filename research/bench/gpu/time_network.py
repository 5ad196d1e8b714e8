"""Times the converted training steps of one network. Started by `runner.py`.

    python time_network.py FOLDER NETWORK RESULT_FILE [OPTIMIZER ...]

Compiles all steps, prints a line, waits for a line on the standard input, and
then measures, so that other processes can compile in the meantime. The file
needs JAX and NumPy. It uses internals of JAX and was tested with JAX 0.10.
"""

import collections
import gzip
import json
import pathlib
import statistics
import sys
import tempfile
import time

import jax
import numpy as np
from jax._src.lib import _jax

jax.config.update("jax_enable_x64", True)

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
        folder: Path of the converted steps.
        network: String.
        names: Optimizers to measure in addition to Adam. All if it is empty.

    Returns:
        A dictionary.
    """
    steps, optimizers = {}, {}
    paths = sorted((folder / network).glob("*.json"))
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
    print("compiled", flush=True)
    sys.stdin.readline()
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
        "optimizers": optimizers,
    }


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
        self.record = json.loads(path.read_text())
        self._arrays = path.parents[1] / "arrays"
        start = time.perf_counter()
        self._step, self._loop = (
            compiled(gzip.decompress(path.with_suffix(suffix).read_bytes()))
            for suffix in (".step.gz", ".loop.gz")
        )
        self.compile_seconds = time.perf_counter() - start
        data = [self._load(self.record[k]) for k in ("inputs", "targets")]
        self._batches = [_on_device(batch) for batch in zip(*data)]
        self._stacked = _on_device(data)
        self._initial = [self._load(name) for name in self.record["state"]]
        self.state = _on_device(self._initial)
        self.count = 0

    def _load(self, name):
        with gzip.open(self._arrays / f"{name}.npy.gz") as file:
            return np.load(file)

    def step(self):
        """Starts one step and returns the loss."""
        batch = self._batches[self.count % len(self._batches)]
        outputs = execute(self._step, [*batch, *self.state])
        for index, output in self.record["updates"]:
            self.state[index] = outputs[output]
        self.count += 1
        return outputs[0]

    def loop(self):
        """Starts 64 steps in one program."""
        self.state = execute(self._loop, [*self._stacked, *self.state])

    def wait(self):
        """Waits until the device is done."""
        jax.block_until_ready(self.state)

    def wrong_signs(self):
        """Takes the first step, and returns the share of wrong updates."""
        self.step()
        shares = [
            np.mean(
                np.sign(np.asarray(self.state[int(i)]) - self._initial[int(i)])
                != self._load(name)
            )
            for i, name in self.record.get("signs", {}).items()
        ]
        return float(max(shares)) if shares else None


def compiled(program):
    """Compiles a program in StableHLO for the first device.

    Args:
        program: Bytes.
    """
    device = jax.devices()[0]
    devices = _jax.DeviceList((device,))
    return device.client.compile_and_load(
        program, devices, _jax.CompileOptions()
    )


def _on_device(arrays):
    return [jax.device_put(array, jax.devices()[0]) for array in arrays]


def execute(program, arrays):
    """Starts a compiled program and returns its outputs."""
    results = program.execute_sharded(arrays)
    return [a for (a,) in results.disassemble_into_single_device_arrays()]


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
    per_loop = step.record["loop_steps"]
    loops = int(min(10, max(1, ROUND_SECONDS / seconds / per_loop)))
    times["loop"].append(_seconds(step, step.loop, loops) / per_loop)


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
