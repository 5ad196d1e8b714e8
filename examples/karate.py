"""Train a graph network without any real-valued weights on the karate club.

Two graph convolutions with weights of +1 and -1 (6-8-4) learn four groups from
five members of each. The QUBOs have 6 or 8 variables and are solved exactly.
This example is an illustration and not a benchmark. The features of a member
are only the bits of its number, and the accuracy on the other 14 members is
hardly better than always predicting the largest group.

    python -m pip install "keras_qpsbgd[analysis]"
    python examples/karate.py
"""

import keras_qpsbgd as kq  # before TensorFlow, which then logs less

# isort: split
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
from tensorflow import keras

EPOCHS = 150
# The groups with maximum modularity, one digit per member.
GROUPS = "1111333100311100310101022202200200"

club = nx.karate_club_graph()
print(club)
y = np.array([int(digit) for digit in GROUPS])
members = np.arange(len(y))
features = np.float32(2 * (members[:, None] >> np.arange(5, -1, -1) & 1) - 1)
adjacency = nx.to_numpy_array(club, weight=None, dtype="float32")
adjacency = kq.layers.BinaryGraphConv.preprocess(adjacency)

random = np.random.default_rng(0)
chosen = [random.choice(members[y == k], 5, replace=False) for k in range(4)]
is_training = np.isin(members, chosen)

keras.utils.set_random_seed(0)
x, a = keras.Input((6,)), keras.Input((len(y),))
hidden = kq.layers.BinaryGraphConv(8, "hard_tanh", use_bias=False)([x, a])
logits = kq.layers.BinaryGraphConv(4, use_bias=False)([hidden, a])
model = keras.Model([x, a], logits)
rate = keras.optimizers.schedules.CosineDecay(0.1, EPOCHS)
model.compile(
    optimizer=kq.QPSBGD(rate, backend="exact"),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=["accuracy"],
)
# Binary weights change abruptly, so keep the ones with the lowest loss.
best = keras.callbacks.EarlyStopping(
    "loss", patience=EPOCHS, restore_best_weights=True
)
model.fit(
    [features, adjacency],
    y,
    sample_weight=is_training.astype("float32"),
    batch_size=len(y),
    epochs=EPOCHS,
    shuffle=False,
    callbacks=[best],
    verbose=0,
)
predicted = np.argmax(model.predict_on_batch([features, adjacency]), axis=1)
for part, mask in (("training", is_training), ("test", ~is_training)):
    correct = (predicted == y)[mask]
    print(f"{part}: {correct.sum()} of {correct.size} members correct")

layout = nx.kamada_kawai_layout(club)
figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
nx.draw_networkx_edges(club, layout, ax=axes, edge_color="lightgray")
style = {"node_size": 260, "linewidths": 2.5, "cmap": "Set2", "vmin": 0}
for mask, shape in ((is_training, "s"), (~is_training, "o")):
    nodes = members[mask]
    rims = np.where(predicted == y, "white", "red")[nodes]
    nx.draw_networkx_nodes(
        club, layout, nodes, node_color=predicted[nodes], vmax=7, ax=axes,
        node_shape=shape, edgecolors=rims, **style,
    )  # fmt: skip
nx.draw_networkx_labels(club, layout, font_size=8, ax=axes)
axes.set_title("Color: predicted group. Square: training. Red rim: wrong")
axes.axis("off")
figure.savefig("karate.png", dpi=120)
print("saved karate.png")
