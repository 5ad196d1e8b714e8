"""Times exported training steps with JAX, on any device.

    python -m research.bench.gpu.runner FOLDER [--only NAME ...] [--output DIR]

The command needs JAX and NumPy, but neither TensorFlow nor the library. Copy
the repository and the folder of the steps to the machine with the GPU. For each
network, the command prints a table and writes `gpu-NETWORK.json`. The
optimizers take turns. The table has medians of microseconds per step, and
medians of the ratios to Adam in the same round:

- `L`: 64 steps in one program, which is the time of the device.
- `C, piped`: one call per step, without waiting between them.
- `C, blocked`: one call per step, waiting for each.
- `launches`: number of kernels that a step starts, with piped calls.
- `signs`: share of updates with another sign than on the machine that exported
  the steps with `--check`, in the worst layer.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys

COLUMNS = {"loop": "L", "piped": "C, piped", "blocked": "C, blocked"}
WIDTH = 80
LISTED_KERNELS = 5


def main():
    """Times the networks of the command line. Returns the exit code."""
    arguments = _arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    found = sorted(path.parent.name for path in _steps(arguments.folder))
    found = list(dict.fromkeys(found))
    networks = [n for n in found if n in arguments.only] or found
    names = [name for name in arguments.only if name not in found]
    failed = False
    for network in networks:
        path = arguments.output / f"gpu-{network}.json"
        # Compiling the steps of several networks in one process can crash.
        command = [sys.executable, "-m", "research.bench.gpu.time_network"]
        command += [arguments.folder, network, path, *names]
        code = subprocess.run(list(map(str, command))).returncode
        if code:
            failed = True
            print(f"\n{network}: exit code {code}")
        else:
            result = json.loads(path.read_text())
            print(f"\n{table(result)}\n\n{kernels(result)}", flush=True)
    return 1 if failed else 0


def _arguments():
    parser = argparse.ArgumentParser(
        prog="python -m research.bench.gpu.runner",
        description="Time exported training steps with JAX.",
    )
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="NAME",
        help="networks and optimizers (default: all). Adam is always measured",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=".",
        metavar="DIR",
        help="folder of the results (default: %(default)s)",
    )
    arguments = parser.parse_args()
    if not _steps(arguments.folder):
        parser.error(
            "`FOLDER` must contain steps of `research.bench.gpu.export`. "
            f"Received: {arguments.folder}"
        )
    known = {
        name
        for path in _steps(arguments.folder)
        for name in (path.parent.name, path.stem)
    }
    unknown = [name for name in arguments.only if name not in known]
    if unknown:
        parser.error(
            f"`--only` must be one or more of {', '.join(sorted(known))}. "
            f"Received: {' '.join(unknown)}"
        )
    return arguments


def _steps(folder):
    return sorted(folder.glob("*/*.xz"))


def table(result):
    """Returns times and ratios by optimizer, as text."""
    lines = [
        f"{result['network']}, {result['device']}, JAX {result['jax']}",
        f"{'':<10}"
        + "".join(f"{title:>18}" for title in COLUMNS.values())
        + f"{'launches':>9}{'signs':>7}",
        f"{'':<10}" + f"{'us':>10}{'ratio':>8}" * len(COLUMNS),
    ]
    rows = result["optimizers"]
    for name, row in rows.items():
        line = f"{name:<10}"
        if "error" in row:
            error = " ".join(row["error"].split())
            lines.append(f"{line}failed: {error}"[:WIDTH])
            continue
        for kind in COLUMNS:
            ratio = statistics.median(ratios(row[kind], rows["adam"][kind]))
            line += f"{row[kind]['us']:>10,.1f}{ratio:>8.2f}"
        launches = row["profile"]["launches"] if row["profile"] else math.nan
        signs = row["wrong_signs"]
        signs = math.nan if signs is None else signs
        lines.append(line + f"{launches:>9,.0f}{signs:>7.4f}")
    return "\n".join(lines).replace("nan", "  -")


def ratios(times, adam):
    """Returns the ratios to Adam in the same round."""
    pairs = zip(times["rounds_us"], adam["rounds_us"])
    return [mine / base for mine, base in pairs]


def kernels(result):
    """Returns the kernels with the largest times, as text."""
    lines = []
    for name, row in result["optimizers"].items():
        if row.get("profile"):
            lines.append(f"{name}: us and launches per step by kernel")
            for kernel in row["profile"]["kernels"][:LISTED_KERNELS]:
                times = f"{kernel['us']:>9.1f}{kernel['launches']:>8.1f}"
                lines.append(f"{times}  {kernel['name']}"[:WIDTH])
    return "\n".join(lines) or "The profiler found no kernels of a GPU."


if __name__ == "__main__":
    sys.exit(main())
