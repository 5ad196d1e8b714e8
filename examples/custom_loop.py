"""A custom training loop: micro-batches, a saliency map between two steps.

Two blobs of points, a network of +1 and -1 weights. The gradients of each
micro-batch are computed in one `tf.function` and applied, added up, in another,
so they carry their rows (`with_rows`). In a loop that computes and applies
gradients in the same function nothing of the kind is needed.
"""

import numpy as np
import tensorflow as tf
from tensorflow import keras

import keras_qpsbgd as kq

STEPS, MICRO_BATCHES, ROWS = 40, 4, 16

rng = np.random.default_rng(0)
y = rng.integers(2, size=(STEPS, MICRO_BATCHES, ROWS))
x = rng.normal(size=(*y.shape, 8)) + np.where(y, 1.0, -1.0)[..., None] / 2
x = tf.constant(x, tf.float32)

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.layers.InputLayer((8,)),
        kq.layers.BinaryDense(8, activation="hard_tanh"),
        kq.layers.BinaryDense(2),
    ]
)
variables = model.trainable_variables
loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = kq.QPSBGD(
    keras.optimizers.schedules.CosineDecay(0.05, STEPS), seed=0
)


@tf.function
def gradients_of(x, y):
    with tf.GradientTape() as tape:
        loss = loss_function(y, model(x, training=True))
    return kq.with_rows(tape.gradient(loss, variables), variables)


@tf.function
def update(gradients):
    optimizer.apply_gradients(zip(gradients, variables))


@tf.function
def saliency(x, y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = loss_function(y, model(x, training=True))
    return tf.abs(tape.gradient(loss, x))


def accuracy(x, y):
    predicted = tf.argmax(model(x, training=False), axis=1)
    return float(tf.reduce_mean(tf.cast(predicted == y, tf.float32)))


print(f"accuracy before training: {accuracy(x[-1, 0], y[-1, 0]):.2f}")
for step in range(STEPS - 1):
    total = gradients_of(x[step, 0], y[step, 0])
    for part in range(1, MICRO_BATCHES):
        # Looking at the inputs in between leaves the update as it is.
        seen = saliency(x[step, part], y[step, part])
        more = gradients_of(x[step, part], y[step, part])
        total = [a + b for a, b in zip(total, more)]
    update(total)
held_out = [accuracy(x[-1, i], y[-1, i]) for i in range(MICRO_BATCHES)]
print(f"accuracy on {MICRO_BATCHES * ROWS} new points: {np.mean(held_out):.2f}")
print("mean saliency of the inputs:", np.round(tf.reduce_mean(seen, 0), 3))
