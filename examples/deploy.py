"""Train a small binary network and export it for deployment.

The packed file stores one bit per weight, and `Predictor` computes with these
bits. The other file is a Keras model that does not need this package. The
script takes a few seconds.

    python examples/deploy.py
"""

import keras_qpsbgd as kq  # before TensorFlow, which then logs less

# isort: split
import pathlib
import tempfile

import numpy as np
from tensorflow import keras

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(512, 64)).astype("float32")
y = (x @ rng.choice([-1.0, 1.0], size=(64, 4))).argmax(axis=1)

model = keras.Sequential(
    [
        keras.layers.InputLayer((64,)),
        kq.layers.BinaryDense(256, activation="binary"),
        kq.layers.BinaryDense(4),
    ]
)
model.compile(
    optimizer=kq.QPSBGD(learning_rate=0.01, backend="ridge"),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(x, y, epochs=3, verbose=2)

with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder)
    model.save(path / "model.keras")
    kq.export.packed(model, path / "model.kq")
    kq.export.inference_model(model).save(path / "stock.keras")
    for file in sorted(path.iterdir()):
        print(f"{file.name:<12}{file.stat().st_size:>8,} bytes")

    expected = model.predict_on_batch(x)
    loaded = kq.export.load_packed(path / "model.kq")
    same = np.array_equal(loaded.predict_on_batch(x), expected)
    print(f"The packed model predicts exactly the same: {same}")

    predictor = kq.inference.Predictor(path / "model.kq")
    same = (predictor.predict(x).argmax(1) == expected.argmax(1)).mean()
    print(f"Predictor: {predictor.weight_bytes:,} bytes, same classes: {same}")
