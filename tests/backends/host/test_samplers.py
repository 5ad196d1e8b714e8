"""dimod samplers as backends, and backends as dimod samplers."""

import dimod
import dimod.testing
import numpy as np
import pytest
import tools

import keras_qpsbgd as kq

pytestmark = pytest.mark.once

AS_SAMPLERS = [
    "native",
    "exact",
    "ridge",
    "sign",
    {"name": "simulated_annealing", "num_reads": 2, "num_sweeps": 50},
    {"name": "tabu", "num_restarts": 0},
]


def qubo(n=6, m=4):
    rows, v = tools.rows_and_gradients(0, 12, n, m)
    return kq.Qubo.from_rows(rows, v)


def lowest_energies(problem):
    solver = dimod.ExactSolver()
    return [
        solver.sample(problem.to_bqm(column)).first.energy
        for column in range(problem.num_columns)
    ]


class Sampler(dimod.Sampler):
    """Returns `answer(bqm)`."""

    properties = {}
    parameters = {}

    def __init__(self, answer):
        self.answer = answer

    def sample(self, bqm):
        return self.answer(bqm)


def exact(bqm):
    return dimod.ExactSolver().sample(bqm)


# Samplers as backends


def test_samplers_may_modify_their_model():
    def edit(bqm):
        found = exact(bqm)
        bqm.scale(-3.0)
        bqm.add_linear(0, 7.0)
        bqm.remove_variable(1)
        return found

    problem = qubo()
    solution = kq.backends.get(Sampler(edit)).solve(problem)
    np.testing.assert_allclose(solution.energies, lowest_energies(problem))


def test_each_column_has_its_own_offset():
    seen = []

    def spy(bqm):
        seen.append(exact(bqm).first.energy)
        return exact(bqm)

    problem = qubo()
    solution = kq.backends.get(Sampler(spy)).solve(problem)
    np.testing.assert_allclose(seen, solution.energies)


def relabeled(bqm):
    labels = {label: f"x{label}" for label in bqm.variables}
    return exact(bqm).relabel_variables(labels, inplace=False)


def without_one(bqm):
    bqm = bqm.copy()
    bqm.fix_variable(2, 1)
    return exact(bqm)


def empty(bqm):
    shape = (0, bqm.num_variables)
    return dimod.SampleSet.from_samples_bqm(
        (np.empty(shape, np.int8), list(bqm.variables)), bqm
    )


INVALID_ANSWERS = {
    "labels": (relabeled, "same labels.*6 of 6 are missing, such as 0"),
    "missing": (without_one, "1 of 6 are missing, such as 2"),
    "empty": (empty, "at least one sample.*Received: an empty"),
    "none": (lambda bqm: None, "`dimod.SampleSet`. Received: None"),
    "a dict": (lambda bqm: exact(bqm).first.sample, "Received: dict {0:"),
    "an array": (lambda bqm: np.ones(6), "Received: ndarray array"),
}


@pytest.mark.parametrize("kind", INVALID_ANSWERS)
def test_invalid_sample_sets(kind):
    answer, message = INVALID_ANSWERS[kind]
    with pytest.raises(kq.backends.SolverError, match=message) as raised:
        kq.backends.get(Sampler(answer)).solve(qubo())
    assert "The sampler `Sampler`" in str(raised.value)
    assert "Received: " in str(raised.value)


def test_sample_sets_without_info():
    def answer(bqm):
        found = exact(bqm)
        found._info = None
        return found

    problem = qubo()
    solution = kq.backends.get(Sampler(answer)).solve(problem)
    np.testing.assert_allclose(solution.energies, lowest_energies(problem))


class Returns(kq.backends.Backend):
    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def sample(self, qubo, seed):
        return self.answer


ONES = np.ones((1, 6, 4))


@pytest.mark.parametrize(
    "answer",
    [None, ONES, np.ones((2, 6, 4)), [ONES], (ONES, {}, 1), (ONES, 3), "ab"],
    ids=["none", "array", "pair", "list", "triple", "number", "text"],
)
def test_backends_must_return_samples_and_info(answer):
    message = "`sample` of the backend `Returns` must return a tuple"
    with pytest.raises(kq.backends.SolverError, match=f"{message}.*Received: "):
        Returns(answer).solve(qubo())


@pytest.mark.parametrize(
    "samples, message",
    [
        (np.ones((1, 5, 4)), "shape"),
        (np.ones((6, 4)), "shape"),
        (np.ones((0, 6, 4)), "shape"),
        (np.zeros((1, 6, 4)), r"\+1 and -1"),
        (np.full((1, 6, 4), np.nan), r"\+1 and -1"),
        (np.full((1, 6, 4), None), r"\+1 and -1"),
        ([[1, 2], [3]], "shape"),
        ([["a"] * 4] * 6, "shape"),
    ],
)
def test_invalid_samples(samples, message):
    message = f"`Returns`.*{message}.*Received: "
    with pytest.raises(kq.backends.SolverError, match=message):
        Returns((samples, {})).solve(qubo())


def test_ascending_answer_is_negated():
    problem = qubo()
    ascent = np.sign(problem.fields)[None]
    solution = Returns((ascent, {})).solve(problem)
    np.testing.assert_array_equal(solution.states, -ascent[0])


@pytest.mark.parametrize(
    "answer", [(ONES, None), [ONES, {}], (ONES.tolist(), {})]
)
def test_accepted_answers(answer):
    assert Returns(answer).solve(qubo()).states.shape == (6, 4)


# Backends as samplers


MODEL = dimod.BinaryQuadraticModel({"a": 1.0, "b": -2.0}, {"ab": 0.5}, "BINARY")


@pytest.mark.parametrize("backend", AS_SAMPLERS, ids=str)
def test_sampler_api(backend):
    sampler = kq.backends.as_sampler(backend)
    dimod.testing.assert_sampler_api(sampler)
    found = sampler.sample(MODEL, num_reads=2)
    dimod.testing.assert_response_energies(found, MODEL)
    assert len(found) == 2


class Unregistered(kq.backends.Backend):
    def sample(self, qubo, seed):
        return np.ones((1, qubo.num_variables, qubo.num_columns)), {}


@pytest.mark.parametrize(
    "make, name",
    [(dimod.ExactSolver, "ExactSolver"), (Unregistered, "Unregistered")],
)
def test_backends_that_cannot_be_saved_can_be_samplers(make, name):
    sampler = kq.backends.as_sampler(make())
    assert sampler.properties == {"backend": {"name": name}}
    dimod.testing.assert_sampler_api(sampler)
    assert name in repr(sampler)
    assert len(sampler.sample(MODEL)) == 1


def test_seeds():
    class Seeds(Unregistered):
        def sample(self, qubo, seed):
            return super().sample(qubo, seed)[0], {"level": np.array([seed])}

    sampler = kq.backends.as_sampler(Seeds())
    info = sampler.sample(MODEL, num_reads=3, seed=5).info
    assert info["level"] == [5, 6, 7] and info["seed"] == 5
    drawn = [sampler.sample(MODEL, seed=None).info for _ in range(2)]
    assert drawn[0]["seed"] != drawn[1]["seed"]
    assert drawn[0]["level"] == [drawn[0]["seed"]]
    last = 2**31 - 1  # the next seed wraps around
    assert len(kq.backends.as_sampler("native").sample(MODEL, 2, last)) == 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_reads": 0}, "`num_reads`.*at least 1.*Received: num_reads=0"),
        ({"num_reads": 2.5}, "`num_reads`.*Received: num_reads=2.5"),
        ({"seed": -1}, "`seed`.*Received: seed=-1"),
        ({"seed": "one"}, "`seed`.*Received: seed='one'"),
    ],
)
def test_invalid_arguments(arguments, message):
    sampler = kq.backends.as_sampler("native")
    for bqm in (MODEL, dimod.BinaryQuadraticModel("SPIN")):
        with pytest.raises(ValueError, match=message):
            sampler.sample(bqm, **arguments)


@pytest.mark.parametrize(
    "where, bias",
    [("linear", np.nan), ("quadratic", np.inf), ("offset", -np.inf)],
)
def test_biases_must_be_finite(where, bias):
    bqm = MODEL.copy()
    if where == "linear":
        bqm.set_linear("a", bias)
    elif where == "quadratic":
        bqm.set_quadratic("a", "b", bias)
    else:
        bqm.offset = bias
    with pytest.raises(ValueError, match="`bqm` must have finite.*Received: "):
        kq.backends.as_sampler("native").sample(bqm)


def test_info_of_a_sample_set():
    class WithInfo(Unregistered):
        def sample(self, qubo, seed):
            samples, _ = super().sample(qubo, seed)
            return samples, {
                "calls": 2,
                "qpu_access_time": 30.0,
                "chain_break_fraction": np.array([0.25]),
                "problem_id": "p",
            }

    found = kq.backends.as_sampler(WithInfo()).sample(MODEL, num_reads=2)
    info = dict(found.info)
    assert info.pop("timing")["sampling_ns"] > 0
    assert info == {
        "calls": 4,
        "qpu_access_time": 60.0,
        "chain_break_fraction": [0.25, 0.25],
        "problem_id": ["p", "p"],
        "reads": 2,
        "retries": 0,
        "seed": 0,
    }
    again = dimod.SampleSet.from_serializable(found.to_serializable())
    assert again.info["calls"] == 4
