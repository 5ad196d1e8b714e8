"""Tables of the stored times on a GPU, for `docs/guides/gpu.md`."""

import json
import pathlib
import statistics

from research.cifar10 import table
from research.engine import tables

# The order of the columns.
NETWORKS = {
    "16-4-4-2": "16-4-4-2",
    "123-128x9-1": "123-128x9-1",
    "784-256-10": "784-256-10",
    "784-1024-1024-10": "784-1024-1024-10",
    "28x28-conv": "convolutions",
}
OPTIMIZERS = {"fast": "`fast` (default)", "sign": "`sign`"}
KINDS = {"loop": "device time", "piped": "one call per step"}


def read(folder):
    """Returns the records of all networks."""
    return [
        json.loads(pathlib.Path(folder, f"gpu-{name}.json").read_text())
        for name in NETWORKS
    ]


def markdown(records):
    """Returns ratios to Adam, and numbers of kernels, by network."""
    head = ["", *NETWORKS.values()]
    lines = []
    for kind, title in KINDS.items():
        for key, name in OPTIMIZERS.items():
            cells = [
                _cell(record["optimizers"], key, kind) for record in records
            ]
            lines.append([f"{name}, {title}", *cells])
    for key, name in {"adam": "Adam", **OPTIMIZERS}.items():
        counts = [
            record["optimizers"][key]["profile"]["launches"]
            for record in records
        ]
        lines.append([f"{name}, kernels", *(f"{n:.0f}" for n in counts)])
    source = (
        f"Time of a step / time of a step of Adam, on an {records[0]['device']}"
        f" with JAX {records[0]['jax']}, median and range of "
        f"{_rounds(records[0])} rounds in which the optimizers take turns. "
        "The last rows are the numbers of kernels that a step starts. "
        "The files `gpu-*.json` in `results/bench` have the output."
    )
    return f"{tables.markdown_table(head, lines)}\n\n{source}"


def _rounds(record):
    return len(record["optimizers"]["adam"]["loop"]["rounds_us"])


def _cell(optimizers, name, kind):
    mine, adam = (optimizers[key][kind]["rounds_us"] for key in (name, "adam"))
    return _text([one / base for one, base in zip(mine, adam)])


def _text(ratios):
    low, high = min(ratios), max(ratios)
    return f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"


def cifar10(paths):
    """Returns the times of steps in the studies of CIFAR-10.

    Args:
        paths: List of paths of `times.jsonl`.
    """
    lines = []
    for path in paths:
        # Adam is the first of its network.
        adam, ours = map(json.loads, path.read_text().splitlines())
        turns = zip(ours["ms_per_step_by_turn"], adam["ms_per_step_by_turn"])
        network = table.TITLES[ours["network"]].format(width=ours["width"])
        ratios = [mine / base for mine, base in turns]
        lines.append([network, _text(ratios)])
    head = ["network", "step / step of Adam"]
    source = (
        f"{adam['device']}, ReLU, `{adam['dtype']}`. The files `times.jsonl` "
        "in `results/cifar10` have the times."
    )
    return f"{tables.markdown_table(head, lines)}\n\n{source}"
