"""`python -m research qpu-check`: runs the checks and writes a page.

The API token is read by Ocean and never written.
"""

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import sys
import textwrap

import numpy as np

from keras_qpsbgd import backends
from keras_qpsbgd import disk
from keras_qpsbgd.backends.dwave.cost import timing_source
from keras_qpsbgd.cli import console
from research.engine.tables import markdown_table
from research.qpu_check import checks

PACKAGES = (
    "keras_qpsbgd",
    "dwave-system",
    "dwave-cloud-client",
    "dwave-samplers",
    "dimod",
    "minorminer",
    "numpy",
    "tensorflow",
    "keras",
)


def add(commands):
    """Adds the command `qpu-check`."""
    parser = commands.add_parser(
        "qpu-check",
        help="check the backend `dwave` on a QPU with small problems",
        description=(
            "Run a scripted set of small problems on a D-Wave QPU, one for "
            "each feature of the backend `dwave`. The command prints the plan "
            "with its estimated QPU time and asks before it starts. It writes "
            "raw reads, timings and a page to a folder. The API token is read "
            "from D-Wave's configuration and never written."
        ),
    )
    parser.add_argument(
        "--budget-seconds",
        type=_seconds,
        default=20.0,
        metavar="S",
        help="maximum QPU access time in seconds (default: %(default)g)",
    )
    parser.add_argument(
        "--solver",
        action="append",
        metavar="NAME",
        help="name of the solver; repeat the option for solvers to try if it "
        "is offline (default: D-Wave's configuration)",
    )
    parser.add_argument(
        "--mock",
        action="store_true",
        help="simulate the chip; needs no token and no confirmation",
    )
    parser.add_argument(
        "--topology",
        choices=["pegasus", "zephyr"],
        help="topology of the chip (default: any; pegasus with --mock)",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="folder of the files (default: qpu-check-DATE)",
    )
    parser.add_argument(
        "--yes", action="store_true", help="start without confirmation"
    )
    parser.set_defaults(run=_run)


def _seconds(text):
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(
            f"must be a finite number above 0. Received: {text}"
        )
    return value


def _run(arguments):
    backend = None
    try:
        backend = backends.get(
            {
                "name": "dwave",
                "mock": arguments.mock,
                "solver": arguments.solver,
                "topology": arguments.topology,
            }
        )
        console.show_status("connecting ...")
        return _check(arguments, backend.open().sampler)
    except (ValueError, backends.BackendUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if backend is not None:
            backend.close()


def _check(arguments, sampler):
    runner = checks.Runner(sampler, arguments.budget_seconds)
    facts = describe(sampler)
    name = "a simulated chip (mock)" if arguments.mock else facts["solver"]
    console.show_status("embedding ...")
    plan = [(check, runner.estimate(check)) for check in checks.CHECKS]
    console.show_status("")
    total = sum(seconds for _, seconds in plan)
    _print_plan(plan, name, facts, total, arguments)
    if total > arguments.budget_seconds:
        raise ValueError(
            f"The plan needs {total:.3f} s of QPU time, more than "
            "`--budget-seconds`. Nothing was sent. Received: "
            f"--budget-seconds {arguments.budget_seconds:g}"
        )
    date = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = pathlib.Path(arguments.output or f"qpu-check-{date}")
    if not arguments.mock and not arguments.yes and not _confirmed(name):
        print("Nothing was sent.")
        return 1
    try:  # before any QPU time is spent
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ValueError(
            "`--output` must be a folder that can be written. Nothing was "
            f"sent. Received: --output {folder} ({error.strerror})"
        ) from error
    outcomes = []
    for check, _ in plan:
        console.show_status(f"running {check.name} ...")
        outcomes.append(runner.run(check))
        console.show_status("")
        print(f"{check.name:<14} {_status(outcomes[-1])}")
        # After every check, so that an interrupted run keeps what was paid for.
        disk.write(folder / f"{check.name}.json", _record(outcomes[-1]))
        disk.write(folder / "report.md", render(outcomes, name, facts))
    failed = sum(not outcome.passed for outcome in outcomes)
    print(
        f"\nQPU access time: {runner.charged:.3f} s charged, {total:.3f} s "
        f"estimated.\n{failed} of {len(outcomes)} checks failed.\n"
        f"Page written to {folder / 'report.md'}"
    )
    return 1 if failed else 0


def _print_plan(plan, name, facts, total, arguments):
    print(f"Plan on {name}, {facts['qubits']:,} qubits\n")
    print(f"{'check':<14} {'QPU ms':>8}  what")
    print("-" * console.WIDTH)
    for check, seconds in plan:
        print(f"{check.name:<14} {1000 * seconds:>8.1f}  {check.title}")
    print(
        f"\nEstimated: {total:.3f} s of QPU access time. Budget: "
        f"{arguments.budget_seconds:g} s."
    )
    text = f"Timing data: {facts['timing data']}."
    print(textwrap.fill(text, console.WIDTH, break_on_hyphens=False), "\n")


def _confirmed(name):
    try:
        answer = input(f"Run this on {name}? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def describe(sampler):
    """Returns facts about the solver and the installed packages."""
    properties = sampler.properties
    solver = getattr(sampler, "solver", None)
    installed = {
        package.metadata["Name"]: package.version
        for package in importlib.metadata.distributions()
    }
    return {
        "solver": properties.get("chip_id") or type(sampler).__name__,
        "graph_id": getattr(solver, "graph_id", None) or "",
        "qubits": len(sampler.nodelist),
        "couplers": len(sampler.edgelist),
        "topology": properties.get("topology"),
        "timing data": timing_source(sampler),
        "Python": platform.python_version(),
        **{name: installed[name] for name in PACKAGES if name in installed},
    }


def _record(outcome):
    """Returns an outcome as JSON, which `DimodDecoder` reads."""
    values = {**vars(outcome), "check": outcome.check.name}
    return json.dumps(values, default=lambda value: value.to_serializable())


def _status(outcome):
    return "passed" if outcome.passed else "failed"


def render(outcomes, name, facts):
    """Returns the page in Markdown.

    Args:
        outcomes: List of `Outcome`.
        name: String. Name of the chip.
        facts: Dictionary. Result of `describe`.
    """
    passed = sum(outcome.passed for outcome in outcomes)
    charged = sum(outcome.charged for outcome in outcomes)
    estimated = sum(outcome.estimated for outcome in outcomes)
    now = datetime.datetime.now(datetime.timezone.utc)
    head = ["check", "status", "calls", "mean gap", "largest gap"]
    head += ["broken chains", "estimated", "charged"]
    lines = [
        f"# QPU check on {name}",
        "",
        f"{now.isoformat(timespec='seconds')}: {passed} passed, "
        f"{len(outcomes) - passed} failed. QPU access time: {charged:.3f} s "
        f"charged, {estimated:.3f} s estimated. Gaps, chain breaks and times "
        "of a simulated chip say nothing about a QPU.",
        "",
        markdown_table(head, map(_row, outcomes)),
        "",
        "The gap of a column is 0 for the optimum and about 1 for a random "
        "state. Up to 16 inputs the optimum is exact. For wider layers it is "
        "the best of 50 reads of simulated annealing, and a gap may be "
        "negative.",
        "",
        "## Findings",
        "",
    ]
    for outcome in outcomes:
        lines += [f"**{outcome.check.title}** (`{outcome.check.name}`)", ""]
        if outcome.error and not outcome.passed:
            lines.append(f"- FAILED: {_clean(outcome.error)}")
        for sentence, holds in outcome.findings:
            lines.append(f"- {'ok' if holds else 'FAILED'}: {_clean(sentence)}")
        if outcome.problem_ids:
            ids = ", ".join(f"`{name}`" for name in outcome.problem_ids)
            lines.append(f"- problem ids: {ids}")
        lines.append("")
    rows = [(name, _clean(value)) for name, value in facts.items()]
    lines += ["## Solver and versions", "", markdown_table(("", ""), rows)]
    return "\n".join(lines) + "\n"


def _row(outcome):
    figures = ("", "", "")
    if outcome.gaps:
        figures = (
            f"{np.mean(outcome.gaps):.4f}",
            f"{np.max(outcome.gaps):.4f}",
            f"{100 * np.mean(outcome.chain_breaks):.2f} %",
        )
    return (
        f"`{outcome.check.name}`",
        _status(outcome),
        str(len(outcome.calls)),
        *figures,
        f"{1000 * outcome.estimated:.1f} ms",
        f"{1000 * outcome.charged:.1f} ms",
    )


def _clean(text):
    """Keeps a text in one line and in its cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")
