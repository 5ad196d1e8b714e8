"""Batches of flipped and shifted images, which the device prepares."""

import jax
import jax.numpy as jnp
import numpy as np

from research.cifar10 import pack

PREPARED = 26  # batches that are prepared in one call
SHIFT = 4  # pixels
ORDER = 1  # keeps the random numbers apart from those of the kernels


class DeviceImages:
    """Images and labels on the device."""

    def __init__(self, x, y):
        self.x, self.y = jax.device_put(x), jax.device_put(y)
        self.labels = y
        self._parts = {}

    def parts(self, size):
        """Returns the images in parts of the same size, with zeros at the end.

        They have the values that the network expects.
        """
        if size not in self._parts:
            missing = -len(self.labels) % size
            padded = jnp.pad(scaled(self.x), [(0, missing)] + [(0, 0)] * 3)
            self._parts[size] = jnp.split(padded, len(padded) // size)
        return self._parts[size]


def scaled(x):
    """Returns pixels as values from -1 to 1."""
    return x.astype(jnp.float32) / 127.5 - 1


@jax.jit
def prepare(x, y, seed, count, indices, rates):
    """Selects the batches of several steps, and flips and shifts the images.

    Args:
        x: Images. Array of uint8.
        y: Labels.
        seed: Integer.
        count: Integer. Number of steps before.
        indices: Array of integers with shape (steps, batch).
        rates: Array with shape (steps, rates).

    Returns:
        A list with images, labels and the list of the rates for each step.
    """
    key = jax.random.fold_in(jax.random.key(seed), count)
    flip_key, shift_key = jax.random.split(key)
    images = scaled(x[indices.ravel()])
    flips = jax.random.bernoulli(flip_key, 0.5, (len(images), 1, 1, 1))
    images = jnp.where(flips, images[:, :, ::-1], images)
    padding = (0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)
    padded = jnp.pad(images, padding)
    offsets = jax.random.randint(
        shift_key, (len(images), 2), 0, 2 * SHIFT + 1, jnp.int32
    )
    images = jax.vmap(_window)(padded, offsets)
    images = images.reshape(*indices.shape, *pack.IMAGE)
    labels = y[indices]
    return [(images[i], labels[i], list(rates[i])) for i in range(len(indices))]


def _window(image, offset):
    start = offset[0], offset[1], jnp.int32(0)
    return jax.lax.dynamic_slice(image, start, pack.IMAGE)


def of_epoch(images, size, epoch, epochs, seed, rates):
    """Yields images, labels and rates for each step of an epoch.

    Args:
        images: `DeviceImages`.
        size: Integer. Images per step.
        epoch: Integer. Number of epochs before.
        epochs: Integer. Number of epochs of the training.
        seed: Integer.
        rates: The first rates.
    """
    steps = len(images.labels) // size
    random = np.random.default_rng([ORDER, seed, epoch])
    order = random.permutation(len(images.labels))
    indices = np.zeros((-(-steps // PREPARED) * PREPARED, size), np.int32)
    indices[:steps] = order[: steps * size].reshape(steps, size)
    counts = epoch * steps + np.arange(len(indices))
    decay = 0.5 * (1 + np.cos(np.pi * counts / (epochs * steps)))
    rates = np.outer(decay, rates).astype(np.float32)
    for first in range(0, steps, PREPARED):
        part = slice(first, first + PREPARED)
        prepared = prepare(
            images.x,
            images.y,
            np.uint32(seed),
            np.uint32(counts[first]),
            indices[part],
            rates[part],
        )
        yield from prepared[: steps - first]
