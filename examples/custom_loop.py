"""Train a binary network in a custom loop with micro-batches.

The data consists of two blobs of points. One `tf.function` computes the
gradients of each micro-batch, and another one applies their sum. Between
micro-batches, the loop also computes a saliency map.
"""

import keras_qpsbgd as kq  # before TensorFlow, which then logs less

# isort: split
import numpy as np
import tensorflow as tf
from tensorflow import keras

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
# Different functions compute the gradients and apply them, so build the
# optimizer before TensorFlow traces them.
optimizer.build(variables)


@tf.function
def gradients_of(x, y):
    with tf.GradientTape() as tape:
        loss = loss_function(y, model(x, training=True))
    return tape.gradient(loss, variables)


@tf.function
def update(gradients):
    optimizer.apply_gradients(zip(gradients, variables))


@tf.function
def saliency(x, y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        # This is not a training pass, so the couplings must not change.
        loss = loss_function(y, model(x, training=False))
    return tf.abs(tape.gradient(loss, x))


def accuracy(x, y):
    predicted = tf.argmax(model(x, training=False), axis=1)
    return float(tf.reduce_mean(tf.cast(predicted == y, tf.float32)))


print(f"accuracy before training: {accuracy(x[-1, 0], y[-1, 0]):.2f}")
for step in range(STEPS - 1):
    total = gradients_of(x[step, 0], y[step, 0])
    for part in range(1, MICRO_BATCHES):
        saliency_map = saliency(x[step, part], y[step, part])
        more = gradients_of(x[step, part], y[step, part])
        total = [a + b for a, b in zip(total, more)]
    update(total)
held_out = [accuracy(x[-1, i], y[-1, i]) for i in range(MICRO_BATCHES)]
print(f"accuracy on {MICRO_BATCHES * ROWS} new points: {np.mean(held_out):.2f}")
mean_saliency = np.round(tf.reduce_mean(saliency_map, 0), 3)
print("mean saliency of the inputs:", mean_saliency)
