"""A record of a run, for tests of records and tables."""


def make_run(
    seed=0, test=0.8, validation=0.7, method="QP-SBGD", stage="fresh", rate=0.02
):
    """Returns the record of a run, as the engine stores it."""
    measured = {"validation_accuracy": validation}
    if stage == "fresh":
        measured |= {"test_accuracy": test, "test_loss": 1 - test}
    return {
        "task": "a",
        "method": method,
        "stage": stage,
        "configuration": {"rate": rate, "real_rate": 0.01},
        "seed": seed,
        "curves": {
            "epoch": [0, 1],
            **{key: [value / 2, value] for key, value in measured.items()},
        },
        "result": {"epoch": 1, **measured},
    }
