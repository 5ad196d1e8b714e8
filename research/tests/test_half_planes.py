"""Tests half-plane bits on drawn shapes with known bits."""

import numpy as np
import pytest

from research.experiments.tasks import half_planes

# These tests do not use Keras.
pytestmark = pytest.mark.once


def ones(bits):
    return set(np.flatnonzero(bits > 0))


def stroke(rows, columns):
    image = np.zeros((28, 28), "uint8")
    image[rows, columns] = 255
    return image


def test_points_on_one_side():
    # Directions within less than 90 degrees of most points, seen from the
    # centroid. For 4 and 12 (0 and 8) they are on the line, where rounding must
    # not decide.
    right = half_planes.half_plane_bits([(5, 0), (5, 0), (-10, 0)])
    assert ones(right) == {0, 1, 2, 3, 13, 14, 15}
    above = half_planes.half_plane_bits([(0, -5), (0, -5), (0, 10)])
    assert ones(above) == {1, 2, 3, 4, 5, 6, 7}


def test_counts_decide_not_distances():
    # An L: four points on the left, two to the right. The centroid is (1, 4):
    # 4 points are left of it and 2 right; 2 above, 3 below and 1 level with it.
    shape = [(0, 0), (0, 2), (0, 4), (0, 6), (2, 6), (4, 6)]
    bits = half_planes.half_plane_bits(shape)
    assert bits[[0, 4, 8, 12]].tolist() == [-1, -1, 1, 1]
    # Moving and scaling do not change the bits.
    moved = 3 * np.array(shape) + [7, -2]
    np.testing.assert_array_equal(half_planes.half_plane_bits(moved), bits)


def test_drawn_l():
    # A vertical stroke on the left and a foot at the lower right: most key
    # points are to the left of their centroid (bit 8) and below it (bit 12).
    image = stroke(slice(2, 24), slice(6, 9))
    image[22:25, 6:18] = 255
    first, mirrored = half_planes.features(np.stack([image, image[:, ::-1]]))
    assert first.dtype == np.float32
    assert first[[0, 4, 8, 12]].tolist() == [-1, -1, 1, 1]
    assert mirrored[[0, 8]].tolist() == [1, -1]
