"""Runs jobs in one or several processes and stores their records.

A job is a dictionary of plain values, such as a task, a method, settings and a
seed. Its record is stored as soon as it has finished, and a job that has a
record is not repeated, so an interrupted command can be resumed.

The processes come from `joblib` and accept functions of a file that is not a
module. They return results to this process, which alone writes files.
"""

import contextlib
import os
import pathlib
import pickle
import signal
import sys
import tempfile
import threading
import time
import warnings

from tensorflow import keras

from keras_qpsbgd._messages import reason


def perform(waves, work, store, processes=1, total=None, verbose=1, together=1):
    """Performs all jobs that have no record.

    Args:
        waves: Iterable of lists of jobs. It may be a generator: a list is
            requested after the records of all lists before it are stored.
        work: Function that takes a job and returns its result, a dictionary.
            It may cache what several jobs need, such as compiled graphs, and
            must accept jobs in any order. Other processes get a pickled copy.
        store: A `records.Store`.
        processes: Integer (optional). Number of processes, each with one thread
            and without a GPU. 1 means this process, and `None` means one
            process per core.
        total: Integer (optional). Number of jobs without a record in all waves.
            `None` counts them, which requests all waves at once.
        verbose: 1 shows a progress bar, 0 shows nothing.
        together: Integer. Number of consecutive jobs that one process performs.
            Defaults to `1`, so that all processes end at about the same time.

    Raises:
        ValueError: If `work` cannot be pickled.
        Exception: Any error of a job. The other processes are killed, because
            their jobs may take an hour.
    """
    if total is None:
        waves = list(waves)
        total = sum(job not in store for jobs in waves for job in jobs)
    if not total:
        return
    bar = _bar(total) if verbose else None
    done = 0
    with _open(work, processes, together) as perform_all:
        for jobs in waves:
            missing = [job for job in jobs if job not in store]
            for job, result, seconds in perform_all(missing):
                store.add({**job, **result}, seconds)
                done += 1
                if bar is not None:
                    bar.add(1)
    if bar is not None and 0 < done < total:
        # Jobs of later waves already had records, which is known only now.
        bar.target = done
        bar.update(done)


def _bar(total):
    # A log file gets one line per minute. A notebook is not a terminal, but
    # shows the bar.
    is_shown = sys.stdout.isatty() or "ipykernel" in sys.modules
    interval = 0.05 if is_shown else 60.0
    return keras.utils.Progbar(total, interval=interval, unit_name="run")


@contextlib.contextmanager
def _open(work, processes, together):
    """Yields a function that runs jobs and yields their results and times."""
    if processes != 1:
        import joblib

        processes = processes or joblib.cpu_count()
    if processes == 1:
        yield lambda jobs: (_timed(work, job) for job in jobs)
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        _set(environment(1)),
        warnings.catch_warnings(),
    ):
        # Pickled once for all jobs, because the data may be large.
        path = pathlib.Path(folder, "work")
        path.write_bytes(_pickled(work))
        call = joblib.delayed(_perform)
        # joblib replaces processes whose memory has grown.
        warnings.filterwarnings("ignore", "A worker stopped while", UserWarning)
        with (
            joblib.parallel_config("loky", inner_max_num_threads=1),
            joblib.Parallel(
                processes,
                batch_size=together,
                pre_dispatch="all",
                return_as="generator_unordered",
            ) as parallel,
        ):
            yield lambda jobs: parallel(
                call(path, os.getpid(), job) for job in jobs
            )
        # Otherwise idle processes keep their memory for minutes.
        joblib.externals.loky.get_reusable_executor().shutdown()


def _timed(work, job):
    start = time.process_time()
    result = work(job)
    return job, result, time.process_time() - start


def _pickled(work):
    import cloudpickle

    try:
        return cloudpickle.dumps(work)
    except (TypeError, pickle.PicklingError, AttributeError) as error:
        raise ValueError(
            "`processes` must be 1 if `build_model` or an object that it uses "
            "cannot be pickled. Create such objects inside `build_model`. "
            f"Received: {reason(error)}"
        ) from error


def environment(threads):
    """Returns an environment with this many threads and no GPU."""
    values = dict(os.environ)
    for name in (
        "OMP_NUM_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "TF_NUM_INTEROP_THREADS",
    ):
        values[name] = str(threads)
    flag = "--xla_cpu_multi_thread_eigen=false"
    if threads == 1 and flag not in values.get("XLA_FLAGS", ""):
        # XLA has its own thread pool, which only this flag controls.
        values["XLA_FLAGS"] = f"{values.get('XLA_FLAGS', '')} {flag}".strip()
    values["CUDA_VISIBLE_DEVICES"] = "-1"
    values.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return values


@contextlib.contextmanager
def _set(values):
    """Sets the environment that new processes inherit."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# In the processes

_loaded: dict = {}


def _perform(path, parent, job):
    # Inside another joblib worker, joblib may run jobs in the same process.
    if not _loaded and os.getpid() != parent:
        # Ctrl-C reaches all processes. The parent kills this one, so a
        # traceback is not needed here.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        watch = threading.Thread(target=_end_with, args=(parent,), daemon=True)
        watch.start()
    if path not in _loaded:
        _loaded.clear()
        keras.backend.clear_session()
        _loaded[path] = pickle.loads(path.read_bytes())
    return _timed(_loaded[path], job)


def _end_with(parent):
    # If the command was killed, finishing the job would be a waste of time.
    while os.name == "posix" and os.getppid() == parent:
        time.sleep(1.0)
    if os.name == "posix":
        os._exit(1)
