"""Environments of processes with a given number of threads."""

import os


def environment(threads):
    """Returns an environment with this many threads and no GPU."""
    values = dict(os.environ)
    for name in (
        "OMP_NUM_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "TF_NUM_INTEROP_THREADS",
    ):
        values[name] = str(threads)
    if threads == 1:
        # XLA has its own thread pool, which only this flag controls.
        flags = values.get("XLA_FLAGS", "")
        flags += " --xla_cpu_multi_thread_eigen=false"
        values["XLA_FLAGS"] = flags.strip()
    values["CUDA_VISIBLE_DEVICES"] = "-1"
    values.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return values


def cores():
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
