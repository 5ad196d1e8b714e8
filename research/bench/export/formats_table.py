"""The table of formats in the documentation."""

import json
import pathlib

from keras_qpsbgd.compare.report import tables

COMMAND = "python -m research bench export --output results/export"
RECORD = pathlib.Path("results", "export", "bench-export.json")


def table(networks):
    """Returns a Markdown table of sizes, relative to float weights.

    Args:
        networks: Dictionary, the result of the suite for one thread count.
    """
    first = next(iter(networks.values()))["formats"]
    head = ["format", *networks, "largest difference"]
    rows = []
    for name in first:
        found = [each["formats"][name] for each in networks.values()]
        worst = [each["difference"] for each in found if not each["problem"]]
        rows.append(
            [
                name,
                *(
                    _size(each, network["floats"])
                    for each, network in zip(found, networks.values())
                ),
                f"{max(worst):.0e}" if worst else "-",
            ]
        )
    floats = ["weights as float32"]
    floats += [_kilobytes(each["floats"]) for each in networks.values()]
    return tables.markdown_table(head, [[*floats, "-"], *rows])


def block(root):
    """Returns the block `export-table`, from the record in the repository."""
    record = json.loads(pathlib.Path(root, RECORD).read_text())
    return (
        f"{table(next(iter(record['results'].values())))}\n\n"
        f"Sizes in kB (1,000 bytes), with 1 bit per weight. `{COMMAND}` "
        "measures them. The last column is the largest difference from the "
        "outputs of Keras in the runtime of the format, relative to the "
        "largest output."
    )


def _size(found, floats):
    if found["problem"]:
        return found["problem"]
    return f"{_kilobytes(found['size'])} ({_ratio(found['size'] / floats)})"


def _ratio(ratio):
    """Returns a relative size, for example "27x smaller" for 1/27."""
    factor = max(ratio, 1 / ratio)
    text = f"{factor:.0f}x" if factor >= 10 else f"{factor:.1f}x"
    if text == "1.0x":
        return "about the same"
    return f"{text} {'larger' if ratio > 1 else 'smaller'}"


def _kilobytes(size):
    return f"{size / 1000:,.0f}"
