"""Histogram and similarity of reads, on samples with known answers."""

import dimod
import numpy as np
import pytest

import keras_qpsbgd as kq

pytestmark = pytest.mark.once

# Four variables, five reads; +1 in {0, 1}, {0, 1}, {0}, {1, 2, 3} and nowhere.
SAMPLES = np.array(
    [
        [-1, 1, 1, 1],
        [1, 1, -1, -1],
        [-1, -1, -1, -1],
        [1, 1, -1, -1],
        [1, -1, -1, -1],
    ]
)
ENERGIES = np.array([3.0, 1.0, 5.0, 1.0, 2.0])


def solution():
    """Two columns: the second has the reads in another order."""
    samples = np.stack([SAMPLES[::-1], SAMPLES], axis=2).astype(np.int8)
    energies = np.stack([ENERGIES[::-1], ENERGIES], axis=1)
    return kq.backends.Solution(
        states=SAMPLES[[1, 1]].T,
        energies=np.array([1.0, 1.0]),
        samples=samples,
        sample_energies=energies,
    )


def one_read():
    found = solution()
    found.samples = found.sample_energies = None
    return found


def sample_set(vartype="SPIN"):
    samples = SAMPLES if vartype == "SPIN" else (SAMPLES + 1) // 2
    return dimod.SampleSet.from_samples(
        samples, vartype, energy=ENERGIES, aggregate_samples=True
    )


def update():
    found = solution()
    qubo = kq.Qubo(np.zeros((4, 4)), np.zeros((4, 2)))
    return kq.analysis.Update(
        0, "dense", qubo, found.states, found.samples, found.sample_energies
    )


SOURCES = {
    "update": update,
    "solution": solution,
    "spins": sample_set,
    "bits": lambda: sample_set("BINARY"),
}
each_source = pytest.mark.parametrize("source", SOURCES)


# Histogram


@each_source
def test_histogram(source):
    """Energies above the best: 2, 0, 4, 0, 1."""
    found = kq.analysis.energy_histogram(SOURCES[source](), bins=4)
    np.testing.assert_array_equal(found.counts, [2, 1, 1, 1])
    np.testing.assert_array_equal(found.edges, [0, 1, 2, 3, 4])
    assert (found.best, found.hits, found.num_reads) == (1.0, 0.4, 5)
    assert found.mean == pytest.approx(1.4)


def test_histogram_relative_to_the_optimum():
    found = kq.analysis.energy_histogram(solution(), 1, bins=5, best=0.0)
    np.testing.assert_array_equal(found.counts, [0, 2, 1, 1, 1])
    assert found.hits == 0.0
    with pytest.raises(ValueError, match="`best` must be at most.*Received"):
        kq.analysis.energy_histogram(solution(), best=1.5)


def test_histogram_of_one_energy():
    """A backend with one state per column has one read."""
    histogram = kq.analysis.energy_histogram(one_read(), bins=3)
    np.testing.assert_array_equal(histogram.counts, [1, 0, 0])
    assert histogram.hits == 1.0


# Similarity


@each_source
def test_similarity(source):
    """Of {0, 1}, {0, 1}, {0}, {1, 2, 3} and the empty set."""
    found = kq.analysis.sample_similarity(SOURCES[source]())
    expected = [
        [1, 1, 1 / 2, 1 / 4, 0],
        [1, 1, 1 / 2, 1 / 4, 0],
        [1 / 2, 1 / 2, 1, 0, 0],
        [1 / 4, 1 / 4, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    np.testing.assert_allclose(found.matrix, expected)
    assert found.mean == pytest.approx(0.25)  # 2.5 over ten pairs
    np.testing.assert_array_equal(found.energies, np.sort(ENERGIES))


def test_similarity_of_the_best():
    found = kq.analysis.sample_similarity(solution(), k=3, column=1)
    np.testing.assert_allclose(
        found.matrix, [[1, 1, 0.5], [1, 1, 0.5], [0.5, 0.5, 1]]
    )
    assert found.mean == pytest.approx(2 / 3)
    np.testing.assert_array_equal(found.samples, SAMPLES[[1, 3, 4]])


# Errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kq.analysis.energy_histogram(solution(), 2), "`column` must"),
        (lambda: kq.analysis.energy_histogram([1.0]), "`source` must be an"),
        (lambda: kq.analysis.sample_similarity(solution(), k=1), "`k` must"),
        (lambda: kq.analysis.sample_similarity(one_read()), "at least two"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "Received: " in str(error.value)


# Plots


def test_plots():
    pytest.importorskip("matplotlib")
    histogram = kq.analysis.energy_histogram(solution(), bins=4)
    ax = kq.analysis.plot_energy_histogram(histogram)
    assert ax.get_title() == "40 % of 5 reads have the best energy"
    again = kq.analysis.sample_similarity(solution())
    ax = kq.analysis.plot_sample_similarity(again, ax.figure.add_subplot())
    (image,) = ax.get_images()
    np.testing.assert_allclose(image.get_array(), again.matrix)
    assert "0.25" in ax.get_title()
