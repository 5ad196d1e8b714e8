"""`qpu-check`: runs small problems on a QPU and writes a page about it."""

import argparse
import datetime
import math
import os
import sys
import textwrap

from keras_qpsbgd import backends
from keras_qpsbgd.cli import console


def add(commands):
    """Adds the command `qpu-check`."""
    parser = commands.add_parser(
        "qpu-check",
        help="check this package on a D-Wave QPU with small problems",
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
        "--out",
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
        sampler = backend.open().sampler
    except (ValueError, backends.BackendUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    try:
        return _check(arguments, sampler)
    except backends.BackendUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        backend.close()


def _check(arguments, sampler):
    # Imports Ocean, which other commands do not need.
    from keras_qpsbgd import qpu_check
    from keras_qpsbgd.qpu_check import storage

    runner = qpu_check.Runner(sampler, arguments.budget_seconds)
    facts = storage.describe(sampler)
    plan = []
    for check in qpu_check.CHECKS:
        console.show_status(f"embedding {check.name} ...")
        plan.append((check, runner.missing(check), runner.estimate(check)))
    console.show_status("")
    total = sum(seconds for _, _, seconds in plan)
    _print_plan(plan, facts, total, arguments)
    if total > arguments.budget_seconds:
        print(
            f"The plan needs {total:.3f} s of QPU time, more than "
            "`--budget-seconds`. Nothing was sent. Received: "
            f"--budget-seconds {arguments.budget_seconds:g}",
            file=sys.stderr,
        )
        return 1
    if not arguments.mock and not arguments.yes and not _confirmed(facts):
        print("Nothing was sent.")
        return 1
    date = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = arguments.out or f"qpu-check-{date}"
    try:  # before any QPU time is spent
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        print(
            f"`--out` must be a folder that can be written. Nothing was sent. "
            f"Received: --out {folder} ({error.strerror})",
            file=sys.stderr,
        )
        return 1
    outcomes = []
    for check, _, _ in plan:
        console.show_status(f"running {check.name} ...")
        outcomes.append(runner.run(check))
        console.show_status("")
        print(f"{check.name:<14} {outcomes[-1].status}")
        # After every check, so that an interrupted run keeps what was paid for.
        path = qpu_check.save(folder, outcomes, facts, arguments.mock)
    failed = [o for o in outcomes if o.status == "failed"]
    print(
        f"\nQPU access time: {runner.charged:.3f} s charged, {total:.3f} s "
        f"estimated.\n{len(failed)} of {len(outcomes)} checks failed.\n"
        f"Page written to {path}"
    )
    return 1 if failed else 0


def _print_plan(plan, facts, total, arguments):
    chip = "simulated chip" if arguments.mock else facts["solver"]
    print(f"Plan on {chip}, {facts['num_qubits']:,} qubits\n")
    print(f"{'check':<14} {'QPU ms':>8}  what")
    print("-" * console.WIDTH)
    for check, missing, seconds in plan:
        text = check.title + (f" (skipped: {missing})" if missing else "")
        first, *rest = textwrap.wrap(text, console.WIDTH - 25)
        print(f"{check.name:<14} {1000 * seconds:>8.1f}  {first}")
        for line in rest:
            print(" " * 25 + line)
    print(
        f"\nEstimated: {total:.3f} s of QPU access time. Budget: "
        f"{arguments.budget_seconds:g} s."
    )
    text = f"Timing data: {facts['timing_data']}."
    print(textwrap.fill(text, console.WIDTH, break_on_hyphens=False), "\n")


def _confirmed(facts):
    try:
        answer = input(f"Run this on {facts['solver']}? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")
