"""Tables of the stored times on a GPU, for `docs/guides/gpu.md`."""

import json
import pathlib
import statistics

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
# Names of optimizers in the study of CIFAR-10.
CIFAR10 = {"averaged": "QP-SBGD", "paper": 'QP-SBGD with `rule="paper"`'}


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


def cifar10(path):
    """Returns the times of steps in the study of CIFAR-10.

    Args:
        path: Path of `times.jsonl`.
    """
    found = {}
    adam = None
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if record["program"] == "adam":  # the first of its network
            adam = record
        if record["program"] not in CIFAR10:
            continue
        network = f"{record['width']} filters, {record['activation']}"
        ratios = found.setdefault((network, CIFAR10[record["program"]]), [])
        turns = zip(record["ms_per_step_by_turn"], adam["ms_per_step_by_turn"])
        ratios += [mine / base for mine, base in turns]
    head = ["network", "optimizer", "step / step of Adam"]
    lines = [[*names, _text(ratios)] for names, ratios in found.items()]
    source = f"{adam['device']}, `results/cifar10/times.jsonl`."
    return f"{tables.markdown_table(head, lines)}\n\n{source}"
