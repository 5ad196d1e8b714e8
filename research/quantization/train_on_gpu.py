"""Trains the float networks of `cifar10` and `transformer` with JAX.

    python -m research.quantization.train_on_gpu cifar10.npz OUTPUT

needs JAX and NumPy, but neither TensorFlow nor the library, and takes some
minutes on a GPU. `cifar10.npz` has the arrays `x_train` and `y_train` of
`keras.datasets.cifar10.load_data()`. The text is that of `text.py`.

`OUTPUT/cifar10.npz` and `OUTPUT/transformer.npz` receive the weights of all
seeds. The key `3/conv_0/0` is the first weight of the layer `conv_0` of seed 3,
in the order of `layer.get_weights()` in Keras. Kernels have 16 bits.
`tasks.py` builds the same networks in Keras.
"""

import argparse
import functools
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from research.quantization import text
from research.quantization.shapes import BLOCKS
from research.quantization.shapes import CHANNELS
from research.quantization.shapes import CONTEXT
from research.quantization.shapes import EPSILON
from research.quantization.shapes import HEADS
from research.quantization.shapes import POOLED
from research.quantization.shapes import TEXT
from research.quantization.shapes import WIDTH

BATCH = 128
VALIDATION = 1_000  # images, only to see that all is well
# Settings of the convolutional network (SGD with Nesterov's momentum).
EPOCHS, RATE, MOMENTUM, DECAY, SHIFT = 100, 0.1, 0.9, 5e-4, 4
MEMORY = 0.9  # of the moving averages of batch normalization
# Settings of the transformer (AdamW).
STEPS, ADAM_RATE, ADAM_DECAY, DROPOUT, WARM_UP = 6_000, 2e-3, 0.1, 0.1, 200
CHUNK = 250  # steps in one call


def main(arguments=None):
    """Trains all networks. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m research.quantization.train_on_gpu",
        description="Train the float networks of two tasks.",
    )
    parser.add_argument("images", metavar="CIFAR10_NPZ", type=pathlib.Path)
    parser.add_argument("output", metavar="OUTPUT", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--epochs", type=int, default=EPOCHS, metavar="N")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N")
    given = parser.parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    print(jax.devices()[0].device_kind, flush=True)
    found, tokens = {}, text.load(TEXT)
    for seed in range(given.seeds):
        layers = train_transformer(tokens, seed, given.steps)
        _save(found, given.output / "transformer.npz", seed, layers)
    with np.load(given.images) as file:
        x, y = file["x_train"], file["y_train"].reshape(-1).astype(np.int32)
    found = {}
    for seed in range(given.seeds):
        layers = train_images(x, y, seed, given.epochs)
        _save(found, given.output / "cifar10.npz", seed, layers)
    return 0


def _save(found, path, seed, layers):
    """Adds the weights of a seed and writes all weights so far."""
    for name, weights in layers.items():
        for index, weight in enumerate(weights):
            kind = np.float16 if weight.ndim > 1 else np.float32
            found[f"{seed}/{name}/{index}"] = np.asarray(weight).astype(kind)
    np.savez_compressed(path, **found)


# The convolutional network


def new_images(key):
    """Returns new weights, by the names of layers."""
    layers, channels = {}, 3
    for index, count in enumerate(CHANNELS):
        key, now = jax.random.split(key)
        shape = (3, 3, channels, count)
        scale = (2 / (9 * channels)) ** 0.5
        layers[f"conv_{index}"] = [scale * jax.random.normal(now, shape)]
        zeros, ones = jnp.zeros(count), jnp.ones(count)
        layers[f"norm_{index}"] = [ones, zeros, zeros, ones]
        channels = count
    layers["logits"] = _dense(key, channels, 10)
    return layers


def _dense(key, inputs, outputs):
    limit = (6 / (inputs + outputs)) ** 0.5
    kernel = jax.random.uniform(key, (inputs, outputs), float, -limit, limit)
    return [kernel, jnp.zeros(outputs)]


def apply_images(layers, x, training=False):
    """Returns the logits and the layers with new moving averages."""
    layers = dict(layers)
    for index in range(len(CHANNELS)):
        x = jax.lax.conv_general_dilated(
            x,
            layers[f"conv_{index}"][0],
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        gamma, beta, mean, variance = layers[f"norm_{index}"]
        if training:
            now = x.mean((0, 1, 2)), x.var((0, 1, 2))
            moved = [
                MEMORY * old + (1 - MEMORY) * jax.lax.stop_gradient(new)
                for old, new in zip((mean, variance), now)
            ]
            layers[f"norm_{index}"] = [gamma, beta, *moved]
            mean, variance = now
        x = (x - mean) * gamma / jnp.sqrt(variance + EPSILON) + beta
        x = jax.nn.relu(x)
        if index in POOLED:
            window = (1, 2, 2, 1)
            x = jax.lax.reduce_window(
                x, -jnp.inf, jax.lax.max, window, window, "VALID"
            )
    kernel, bias = layers["logits"]
    return x.mean((1, 2)) @ kernel + bias, layers


def _augmented(images, key):
    """Flips and shifts images at random."""
    flip, shift = jax.random.split(key)
    count = len(images)
    flipped = jax.random.bernoulli(flip, 0.5, (count, 1, 1, 1))
    images = jnp.where(flipped, images[:, :, ::-1], images)
    border = (SHIFT, SHIFT)
    padded = jnp.pad(images, ((0, 0), border, border, (0, 0)))
    places = jax.random.randint(shift, (count, 2), 0, 2 * SHIFT + 1)

    def cut(image, place):
        return jax.lax.dynamic_slice(image, (*place, 0), (32, 32, 3))

    return jax.vmap(cut)(padded, places)


def _cross_entropy(logits, labels):
    found = jnp.take_along_axis(
        jax.nn.log_softmax(logits), labels[..., None], -1
    )
    return -found.mean()


def train_images(x, y, seed, epochs):
    """Trains the convolutional network and returns its layers."""
    x = jnp.asarray(x.astype(np.float32) / 127.5 - 1.0)
    y = jnp.asarray(y)
    used = len(x) - VALIDATION
    per_epoch = used // BATCH
    total = epochs * per_epoch

    def loss(layers, images, labels):
        logits, layers = apply_images(layers, images, training=True)
        squares = sum(
            (weight**2).sum()
            for weights in layers.values()
            for weight in weights
            if weight.ndim > 1
        )
        return _cross_entropy(logits, labels) + 0.5 * DECAY * squares, layers

    # The data are arguments, because XLA would compile them as constants.
    @jax.jit
    def epoch(x, y, layers, velocity, key, count):
        order, key = jax.random.split(key)
        order = jax.random.permutation(order, used)[: per_epoch * BATCH]

        def step(state, rows):
            layers, velocity, key, count = state
            key, now = jax.random.split(key)
            images = _augmented(x[rows], now)
            (value, moved), gradients = jax.value_and_grad(loss, has_aux=True)(
                layers, images, y[rows]
            )
            rate = RATE * 0.5 * (1 + jnp.cos(jnp.pi * count / total))
            rate = rate * jnp.minimum(1.0, (count + 1) / per_epoch)
            velocity = jax.tree.map(
                lambda v, g: MOMENTUM * v + g, velocity, gradients
            )
            # The gradients of moving averages are zero.
            layers = jax.tree.map(
                lambda w, v, g: w - rate * (MOMENTUM * v + g),
                moved,
                velocity,
                gradients,
            )
            return (layers, velocity, key, count + 1), value

        rows = order.reshape(per_epoch, BATCH)
        state = (layers, velocity, key, count)
        state, losses = jax.lax.scan(step, state, rows)
        return *state, losses.mean()

    @jax.jit
    def accuracy(x, y, layers):
        logits, _ = apply_images(layers, x)
        return (logits.argmax(-1) == y).mean()

    begin = time.perf_counter()
    key, now = jax.random.split(jax.random.key(seed))
    layers = new_images(now)
    velocity, count = jax.tree.map(jnp.zeros_like, layers), jnp.zeros(())
    for number in range(epochs):
        layers, velocity, key, count, value = epoch(
            x, y, layers, velocity, key, count
        )
        if number % 10 == 9 or number == epochs - 1:
            measured = accuracy(x[used:], y[used:], layers)
            seconds = time.perf_counter() - begin
            print(
                f"cifar10 seed {seed} epoch {number + 1} loss {value:.4f} "
                f"validation {measured:.4f} {seconds:.0f} s",
                flush=True,
            )
    return layers


# The transformer


def new_transformer(key):
    """Returns new weights, by the names of layers."""
    keys = iter(jax.random.split(key, 3 + 6 * BLOCKS))
    size = WIDTH // HEADS
    layers = {
        "tokens": [
            0.02 * jax.random.normal(next(keys), (text.NUM_TOKENS, WIDTH))
        ],
        "positions": [0.02 * jax.random.normal(next(keys), (CONTEXT, WIDTH))],
    }
    norm = [jnp.ones(WIDTH), jnp.zeros(WIDTH)]
    for block in range(BLOCKS):
        attention = []
        for _ in range(3):
            kernel, bias = _dense(next(keys), WIDTH, WIDTH)
            attention.append(kernel.reshape(WIDTH, HEADS, size))
            attention.append(bias.reshape(HEADS, size))
        kernel, bias = _dense(next(keys), WIDTH, WIDTH)
        attention += [kernel.reshape(HEADS, size, WIDTH), bias]
        layers[f"norm_{block}a"] = norm
        layers[f"attention_{block}"] = attention
        layers[f"norm_{block}b"] = norm
        layers[f"hidden_{block}"] = _dense(next(keys), WIDTH, 4 * WIDTH)
        layers[f"output_{block}"] = _dense(next(keys), 4 * WIDTH, WIDTH)
    layers["norm"] = norm
    layers["logits"] = _dense(next(keys), WIDTH, text.NUM_TOKENS)
    return layers


def apply_transformer(layers, tokens, key=None):
    """Returns the logits of the next tokens, with dropout if there is a key."""

    def norm(x, name):
        gamma, beta = layers[name]
        centered = x - x.mean(-1, keepdims=True)
        deviation = jnp.sqrt(x.var(-1, keepdims=True) + EPSILON)
        return centered / deviation * gamma + beta

    def dropped(x, number):
        if key is None:
            return x
        kept = jax.random.bernoulli(
            jax.random.fold_in(key, number), 1 - DROPOUT, x.shape
        )
        return jnp.where(kept, x / (1 - DROPOUT), 0.0)

    length = tokens.shape[1]
    x = layers["tokens"][0][tokens] + layers["positions"][0][:length]
    mask = jnp.tril(jnp.ones((length, length), bool))
    for block in range(BLOCKS):
        y = norm(x, f"norm_{block}a")
        wq, bq, wk, bk, wv, bv, wo, bo = layers[f"attention_{block}"]
        query = (jnp.einsum("btd,dhk->bthk", y, wq) + bq) / wq.shape[-1] ** 0.5
        keys = jnp.einsum("btd,dhk->bthk", y, wk) + bk
        values = jnp.einsum("btd,dhk->bthk", y, wv) + bv
        scores = jnp.einsum("bqhk,bthk->bhqt", query, keys)
        scores = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        y = jnp.einsum("bhqt,bthk->bqhk", scores, values)
        y = jnp.einsum("bqhk,hkd->bqd", y, wo) + bo
        x = x + dropped(y, 2 * block)
        kernel, bias = layers[f"hidden_{block}"]
        y = jax.nn.relu(norm(x, f"norm_{block}b") @ kernel + bias)
        kernel, bias = layers[f"output_{block}"]
        x = x + dropped(y @ kernel + bias, 2 * block + 1)
    kernel, bias = layers["logits"]
    return norm(x, "norm") @ kernel + bias


def train_transformer(tokens, seed, steps):
    """Trains the transformer and returns its layers."""
    train = jnp.asarray(tokens[0].astype(np.int32))
    validation = jnp.asarray(text.windows(tokens[1], CONTEXT))

    def loss(layers, parts, key=None):
        logits = apply_transformer(layers, parts[:, :-1], key)
        return _cross_entropy(logits, parts[:, 1:])

    @functools.partial(jax.jit, static_argnums=5)
    def many(train, layers, moments, key, count, number):
        def step(state, _):
            layers, (first, second), key, count = state
            key, begin, drop = jax.random.split(key, 3)
            last = len(train) - CONTEXT - 1
            begin = jax.random.randint(begin, (BATCH, 1), 0, last)
            parts = train[begin + jnp.arange(CONTEXT + 1)]
            value, gradients = jax.value_and_grad(loss)(layers, parts, drop)
            count = count + 1
            rate = ADAM_RATE * 0.5 * (1 + jnp.cos(jnp.pi * count / steps))
            rate = rate * jnp.minimum(1.0, count / WARM_UP)
            first = jax.tree.map(
                lambda m, g: 0.9 * m + 0.1 * g, first, gradients
            )
            second = jax.tree.map(
                lambda m, g: 0.98 * m + 0.02 * g**2, second, gradients
            )

            def update(weight, m, v):
                move = m / (1 - 0.9**count)
                move = move / (jnp.sqrt(v / (1 - 0.98**count)) + 1e-8)
                decay = ADAM_DECAY if weight.ndim > 1 else 0.0
                return weight - rate * (move + decay * weight)

            layers = jax.tree.map(update, layers, first, second)
            return (layers, (first, second), key, count), value

        state = (layers, moments, key, count)
        state, losses = jax.lax.scan(step, state, None, number)
        return *state, losses.mean()

    begin = time.perf_counter()
    key, now = jax.random.split(jax.random.key(seed))
    layers = new_transformer(now)
    zeros = jax.tree.map(jnp.zeros_like, layers)
    moments, count = (zeros, zeros), jnp.zeros(())
    for done in range(0, steps, CHUNK):
        number = min(CHUNK, steps - done)
        layers, moments, key, count, value = many(
            train, layers, moments, key, count, number
        )
        if (done // CHUNK) % 4 == 3 or done + number == steps:
            measured = jax.jit(loss)(layers, validation) / np.log(2)
            seconds = time.perf_counter() - begin
            print(
                f"transformer seed {seed} step {done + number} "
                f"loss {value / np.log(2):.4f} validation {measured:.4f} bits "
                f"{seconds:.0f} s",
                flush=True,
            )
    return layers


if __name__ == "__main__":
    sys.exit(main())
