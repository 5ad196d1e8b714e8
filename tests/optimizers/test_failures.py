"""Tests that `on_failure` determines the state after a failed solve."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import tools

import keras_qpsbgd as kq


class Failing(kq.backends.Backend):
    """Raises on some calls, or returns invalid samples."""

    name = "failing"

    def __init__(self, how, on=(2,)):
        self.how = how
        self.on = on
        self.calls = 0
        self.inner = tools.GapBackend()

    def sample(self, qubo, seed):
        call = self.calls
        self.calls += 1
        samples, info = self.inner.sample(qubo, seed)
        if call not in self.on:
            return samples, info
        if self.how == "raises":
            raise OSError("the solver is offline \ud800")  # not valid text
        if self.how == "shape":
            return samples[:, :-1], info
        return 0.5 * samples, info


def state(opt):
    """Returns all variables except the couplings.

    The forward pass changes the couplings, like the moving statistics of batch
    normalization.
    """
    couplings = list(opt.update_rule.couplings.values())
    assert len(couplings) == 2
    return [
        tf.convert_to_tensor(variable).numpy()
        for variable in opt.variables
        if not any(variable is other for other in couplings)
    ]


EAGER = {"run_eagerly": True}
MESSAGES = {
    "raises": "the solver is offline",
    "shape": "samples of shape",
    "values": "states of .1 and -1",
}


@pytest.mark.parametrize(
    "how, mode",
    [("raises", {}), *((how, EAGER) for how in MESSAGES)],
    ids=str,
)
def test_raise(how, mode):
    x, y = tools.data()
    model = tools.small_model()
    opt = tools.optimizer(backend=Failing(how), real_optimizer="adam")
    model.compile(opt, tools.loss(), **mode)
    model.train_on_batch(x[:6], y[:6])
    before = model.get_weights()
    before_state = state(opt)
    with pytest.raises(Exception, match=f"(?s)SolverError.*{MESSAGES[how]}"):
        model.fit(x[6:12], y[6:12], batch_size=6, verbose=0)
    # Kernels, biases and averages are unchanged.
    tools.assert_equal(model.get_weights(), before)
    tools.assert_equal(state(opt), before_state)
    kind = OSError if how == "raises" else kq.backends.SolverError
    assert isinstance(opt.last_error, kind)
    # Training can continue.
    model.fit(x[6:12], y[6:12], batch_size=6, verbose=0)
    assert not np.array_equal(model.get_weights()[0], before[0])


@pytest.mark.parametrize("mode", [{}, EAGER], ids=str)
def test_paper_couplings_of_a_failed_batch_are_dropped(mode):
    """The next update has only its own rows."""
    x, y = tools.data()
    found = []
    for fails in (False, True):
        model = tools.small_model()
        backend = Failing("raises", on=(0,) if fails else ())
        opt = tools.optimizer(backend=backend, rule="paper")
        opt.build(model.trainable_variables)
        model.compile(opt, tools.loss(), **mode)
        if fails:
            with pytest.raises(Exception, match="SolverError"):
                model.train_on_batch(x[6:12], y[6:12])
        for couplings in opt.update_rule.couplings.values():
            assert not np.any(couplings)
        model.train_on_batch(x[:6], y[:6])
        found.append(model.get_weights())
    tools.assert_equal(*found)


def test_raise_on_two_replicas(mirrored):
    """All replicas stop. None of them waits for the others.

    Without `fit`: TensorFlow may wait forever when the garbage collector frees
    the distributed iterator of an interrupted `fit`.
    """
    x, y = map(tf.constant, tools.data())
    with mirrored.scope():
        model = tools.small_model()
        opt = tools.optimizer(backend=Failing("raises"))
        opt.build(model.trainable_variables)

    def update(rows, labels):
        # Losses of legacy Keras do not work in a custom loop on replicas.
        with tf.GradientTape() as tape:
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, model(rows, training=True)
            )
        grads = tape.gradient(loss, model.trainable_variables)
        opt.apply_gradients(zip(grads, model.trainable_variables))

    step = tf.function(lambda *batch: mirrored.run(update, batch))
    start = model.get_weights()
    step(x[:6], y[:6])
    before = model.get_weights()
    assert not np.array_equal(before[0], start[0])
    with pytest.raises(Exception, match="SolverError"):
        step(x[6:12], y[6:12])
    tools.assert_equal(model.get_weights(), before)
    assert isinstance(opt.last_error, OSError)


def test_hold():
    """One warning names the policy, the backend, the layer, and the error."""
    x, y = tools.data()
    model = tools.small_model()
    opt = tools.optimizer(backend=Failing("raises", on=(0,)), on_failure="hold")
    before = tools.kernels(model)
    message = (
        "on_failure='hold'.*backend `failing` failed on layer "
        f"`({'|'.join(layer.name for layer in model.layers)})`: OSError: "
        "the solver is offline"
    )
    with pytest.warns(UserWarning, match=message) as caught:
        found = tools.fit(model, opt, x[:6], y[:6], **EAGER)
    assert len([w for w in caught if "failed" in str(w.message)]) == 1
    still = [np.array_equal(a, b) for a, b in zip(before, found)]
    assert sorted(still) == [False, True]  # only one layer has moved
    assert isinstance(opt.last_error, OSError)


def test_fallback():
    x, y = tools.data()
    opt = tools.optimizer(
        backend=Failing("raises", on=range(100)), on_failure="exact"
    )
    with pytest.warns(UserWarning, match="on_failure='exact'"):
        found = tools.fit(tools.small_model(), opt, x, y, **EAGER)
    expected = tools.clear_cut_fit(tools.CLEAR_CUT["averaged"])
    tools.assert_equal(found, expected)


@pytest.mark.parametrize("kind", ["raises", "shape"])
def test_failing_fallback(kind):
    """Training ends as with "raise", and the message names both errors."""
    x, y = tools.data()
    opt = tools.optimizer(
        backend=Failing(kind, on=(2,)), on_failure=Failing("shape", on=(0,))
    )
    first = "the solver is offline" if kind == "raises" else "samples of shape"
    model = tools.small_model()
    model.compile(opt, tools.loss(), **EAGER)
    model.train_on_batch(x[:6], y[:6])
    before = model.get_weights()
    before_state = state(opt)
    with (
        pytest.warns(UserWarning, match="on_failure=Failing"),
        pytest.raises(
            Exception, match=f"(?s){first}.*samples of shape"
        ) as caught,
    ):
        model.fit(x[6:12], y[6:12], batch_size=6, verbose=0)
    assert str(caught.value).count("Received") == 1
    tools.assert_equal(model.get_weights(), before)
    tools.assert_equal(state(opt), before_state)
    total = opt.solver_report().total
    assert (total.failures, total.fallbacks) == (1, 0)


class Edits(tools.GapBackend):
    """Modifies the problem that it receives."""

    def __init__(self, fails):
        super().__init__()
        self.fails = fails

    def sample(self, qubo, seed):
        answer = super().sample(qubo, seed)
        for array in (qubo.fields, qubo.couplings, qubo.offset):
            array[...] = -array
        if self.fails:
            raise OSError("the solver is offline")
        return answer


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.filterwarnings("ignore:A solve failed")
def test_backends_may_edit_the_problem(fails):
    """The edit affects neither the choice of a sample nor the fallback."""
    x, y = tools.data()
    opt = tools.optimizer(backend=Edits(fails), on_failure="exact")
    found = tools.fit(tools.small_model(), opt, x, y, **EAGER)
    expected = tools.clear_cut_fit(tools.CLEAR_CUT["averaged"])
    tools.assert_equal(found, expected)
    rng = np.random.default_rng(0)
    qubo = kq.Qubo.from_rows(rng.normal(size=(6, 4)), rng.normal(size=(6, 2)))
    before = qubo.fields.copy(), qubo.couplings.copy()
    Edits(False).solve(qubo)
    tools.assert_equal((qubo.fields, qubo.couplings), before)


@pytest.mark.parametrize("policy", ["raise", "fallback", "hold"])
def test_no_layer_is_solved_after_a_failure(policy):
    x, y = tools.data()
    backend = Failing("raises", on=range(100))
    other = Failing("raises", on=range(100))
    on_failure = other if policy == "fallback" else policy
    model = tools.small_model()
    opt = tools.optimizer(backend=backend, on_failure=on_failure)
    model.compile(opt, tools.loss(), **EAGER)
    if policy == "hold":
        with pytest.warns(UserWarning):
            model.train_on_batch(x[:6], y[:6])
        assert backend.calls == 2
        return
    with warnings.catch_warnings(), pytest.raises(Exception, match="offline"):
        warnings.simplefilter("ignore")
        model.train_on_batch(x[:6], y[:6])
    assert (backend.calls, other.calls) == (1, int(policy == "fallback"))
    # The report contains only layers that were solved.
    assert len(opt.solver_report().layers) == 1
