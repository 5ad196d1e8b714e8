"""Train a binary graph network on Cora with Spektral's datasets and loaders.

Adam trains a real encoder, and QP-SBGD trains two graph convolutions with
weights of +1 and -1. Training stops when the validation accuracy no longer
improves.

    python -m pip install "keras_qpsbgd[spektral]"
    python examples/spektral_cora.py

Spektral downloads Cora into its own folder. The script works with Keras 3 and
with legacy Keras (`TF_USE_LEGACY_KERAS=1`).
"""

import keras_qpsbgd as kq  # before TensorFlow, which then logs less

# isort: split
from spektral.data import SingleLoader
from spektral.datasets import Citation
from tensorflow import keras

kq.spektral.enable_keras3()
dataset = Citation("cora", normalize_x=True)
dataset.apply(kq.layers.BinaryGraphConv.transform)
print(dataset)


def load(mask):
    """Loads all nodes. Only those in `mask` count, with equal weights."""
    return SingleLoader(dataset, sample_weights=mask / mask.sum()).load()


keras.utils.set_random_seed(0)
x = keras.Input((dataset.n_node_features,))
a = keras.Input((dataset.n_nodes,), sparse=True)
weight_decay = keras.regularizers.L2(2.5e-4)  # as in Kipf and Welling
hidden = keras.layers.Dense(32, "tanh", kernel_regularizer=weight_decay)(x)
hidden = keras.layers.Dropout(0.5)(hidden)
hidden = keras.layers.Dense(10, "tanh")(hidden)
hidden = kq.layers.BinaryGraphConv(16, "hard_tanh", use_bias=False)([hidden, a])
logits = kq.layers.BinaryGraphConv(dataset.n_labels, use_bias=False)(
    [hidden, a]
)
model = keras.Model([x, a], logits)

model.compile(
    optimizer=kq.QPSBGD(
        learning_rate=0.01,
        real_optimizer=keras.optimizers.Adam(0.01),
        seed=0,
    ),
    # The weights of the nodes sum to 1, so the sum is their mean.
    loss=keras.losses.CategoricalCrossentropy(
        from_logits=True, reduction="sum"
    ),
    weighted_metrics=["accuracy"],
)
best = keras.callbacks.EarlyStopping(
    "val_accuracy", mode="max", patience=50, restore_best_weights=True
)
history = model.fit(
    load(dataset.mask_tr),
    steps_per_epoch=1,
    validation_data=load(dataset.mask_va),
    validation_steps=1,
    epochs=500,
    shuffle=False,
    callbacks=[best],
    verbose=0,
)
print(f"stopped after {len(history.epoch)} epochs of one step each")
print(f"validation accuracy {best.best:.3f}")
_, accuracy = model.evaluate(load(dataset.mask_te), steps=1, verbose=0)
print(f"test accuracy       {accuracy:.3f}")
