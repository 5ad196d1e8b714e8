"""Train a small network with weights of +1 and -1 on handwritten digits."""

import keras_qpsbgd as kq  # before TensorFlow, which then logs less

# isort: split
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tensorflow import keras

x, y = load_digits(return_X_y=True)
x = (x / 8 - 1).astype("float32")  # pixels in [-1, 1]
x_train, x_test, y_train, y_test = train_test_split(x, y, random_state=0)

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.layers.InputLayer((64,)),
        kq.layers.BinaryDense(32, use_bias=False),
        keras.layers.BatchNormalization(),
        keras.layers.Activation("hard_tanh"),
        kq.layers.BinaryDense(10),
    ]
)
decay = keras.optimizers.schedules.CosineDecay
model.compile(
    # QP-SBGD trains the binary kernels, and Adam trains all other variables.
    # The learning rate decays to zero over 20 epochs of 43 batches.
    optimizer=kq.QPSBGD(decay(0.01, 20 * 43), backend="native", seed=0),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(x_train, y_train, epochs=20, verbose=2)

_, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"test accuracy: {accuracy:.3f}")
print("weights of the last layer:", model.layers[-1].binary_kernel[:, 0])
