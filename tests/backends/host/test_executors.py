"""Solving columns and layers in parallel with executors."""

import concurrent.futures
import multiprocessing
import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tools

import keras_qpsbgd as kq

pytestmark = pytest.mark.once

ROOT = pathlib.Path(__file__).parents[3]
ANNEALING = {"name": "simulated_annealing", "num_reads": 3, "num_sweeps": 50}


def qubo(n=6, m=20):
    return kq.Qubo.from_rows(*tools.rows_and_gradients(0, 12, n, m))


class ReportsWorker(kq.backends.Backend):
    """Reports the process, the thread and the copy in which it runs."""

    name = "reports_worker"

    def sample(self, qubo, seed):
        if self._handle is None:
            self._handle = object()
        shape = (qubo.num_columns,)
        info = {
            "process": np.full(shape, os.getpid()),
            "thread": np.full(shape, threading.get_ident()),
            "copy": np.full(shape, id(self)),
        }
        return np.ones((1, qubo.num_variables, qubo.num_columns)), info


@pytest.fixture(
    scope="module",
    params=["threads", pytest.param("processes", marks=pytest.mark.exhaustive)],
)
def executor(request):
    if request.param == "threads":
        pool = concurrent.futures.ThreadPoolExecutor(2)
    else:
        pool = kq.backends.process_pool(2)
    with pool:
        yield pool


@pytest.mark.parametrize("config", [ANNEALING, {"name": "gurobi"}], ids=str)
def test_executors_give_the_same_answers(config, executor):
    problem = qubo()
    serial = kq.backends.get(config).solve(problem, 3)
    backend = kq.backends.get(
        {**config, "executor_tasks": 3}, executor=executor
    )
    pooled = backend.solve(problem, 3)
    np.testing.assert_array_equal(serial.states, pooled.states)
    assert pooled.info["calls"] == serial.info["calls"] == 20
    if "proven_optimal" in serial.info:
        assert pooled.info["proven_optimal"].shape == (20,)


def test_training_with_an_executor(executor):
    seed = tools.CLEAR_CUT["averaged"]
    kernels = [
        tools.fit(
            tools.small_model(seed),
            tools.optimizer(backend={**ANNEALING, "executor": one}),
            *tools.data(seed),
            run_eagerly=True,
        )
        for one in (None, executor)
    ]
    tools.assert_equal(*kernels)


def test_workers_have_their_own_handles(executor):
    backend = ReportsWorker(executor=executor)
    info = backend.solve(qubo(m=40)).info
    workers = set(zip(info["process"], info["thread"], info["copy"]))
    threads = set(zip(info["process"], info["thread"]))
    assert 1 <= len(workers) == len(threads) <= 2
    assert id(backend) not in info["copy"] or os.getpid() not in info["process"]
    assert backend._handle is None


@pytest.mark.exhaustive  # its workers import TensorFlow
def test_dask_example():
    pytest.importorskip("distributed")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "cluster.py")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "workers: 2" in done.stdout
    accuracy = re.search(r"^accuracy: ([\d.]+)", done.stdout, re.M)
    assert float(accuracy[1]) > 0.75
    total = re.search(r"^total +(\d+) .* (\d+) +(\d+) +-$", done.stdout, re.M)
    calls_made, failures, fallbacks = map(int, total.groups())
    assert calls_made == 5 * 8 * (16 + 2)  # one per column and step
    assert failures == fallbacks == 0


def test_layers_are_solved_in_parallel():
    """The call of each layer waits for the call of the other layer."""
    both = threading.Barrier(2, timeout=60)

    class Meets(kq.backends.Backend):
        name = "meets"

        def sample(self, qubo, seed):
            barriers[0].wait()
            return np.ones((1, qubo.num_variables, qubo.num_columns)), {}

        def __reduce__(self):
            return Meets, ()

    barriers = [both]
    globals()["Meets"] = Meets
    Meets.__qualname__ = "Meets"
    x, y = tools.data()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        backend = Meets(executor=threads, executor_tasks=1)
        tools.fit(tools.small_model(), tools.optimizer(backend=backend), x, y)
    assert both.n_waiting == 0 and not both.broken


def test_executor_is_not_saved(tmp_path):
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        backend = kq.backends.get({**ANNEALING, "executor": threads})
        assert backend.executor is threads
        assert "executor" not in kq.backends.serialize(backend)
        assert "executor" not in repr(backend)
        assert pickle.loads(pickle.dumps(backend)).executor is None
        model = tools.small_model()
        model.compile(tools.optimizer(backend=backend), tools.loss())
        model.save(tmp_path / "model.keras")


def test_any_sampler_accepts_an_executor():
    from dwave.samplers import SteepestDescentSampler

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        backend = kq.backends.get(SteepestDescentSampler(), executor=threads)
        serial = kq.backends.get(SteepestDescentSampler())
        np.testing.assert_array_equal(
            backend.solve(qubo(), 1).states, serial.solve(qubo(), 1).states
        )


class Slow(kq.backends.Backend):
    name = "slow"

    def sample(self, qubo, seed):
        time.sleep(1.0)
        raise AssertionError("the call should have timed out")


class Dies(kq.backends.Backend):
    name = "dies"

    def sample(self, qubo, seed):
        os._exit(1)


def test_workers_that_do_not_answer():
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        backend = Slow(executor=threads, timeout_seconds=0.1, retries=0)
        with pytest.raises(
            kq.backends.TransientError, match="0.1 s .`timeout_seconds`"
        ):
            backend.solve(qubo(m=1))


def test_backends_that_cannot_be_pickled():
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        backend = ReportsWorker(executor=threads)
        backend.connection = threading.Lock()
        with pytest.raises(
            kq.backends.BackendUnavailable, match="sent to the workers.*Recei"
        ):
            backend.check(3, 3)


@pytest.mark.slow  # starts a process that imports TensorFlow
def test_workers_that_die():
    with kq.backends.process_pool(1) as pool:
        with pytest.raises(kq.backends.SolverError, match="workers died"):
            Dies(executor=pool).solve(qubo(m=1))


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: 3, TypeError, "`executor`.*Received: executor=3"),
        (
            lambda: concurrent.futures.ProcessPoolExecutor(
                1, mp_context=multiprocessing.get_context("fork")
            ),
            ValueError,
            "process_pool.*Received: a ProcessPoolExecutor that forks",
        ),
    ],
)
def test_invalid_executors(make, error, message):
    with pytest.raises(error, match=message):
        kq.backends.get("tabu", executor=make())


@pytest.mark.parametrize(
    "config, message",
    [
        ({"name": "native"}, "in the training graph.*ThreadPoolExecutor"),
        ({"name": "dwave", "mock": True}, "shared calls.*ThreadPoolExecutor"),
    ],
)
def test_backends_without_an_executor(config, message):
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        with pytest.raises(ValueError, match=message):
            kq.backends.get({**config, "executor": threads})
