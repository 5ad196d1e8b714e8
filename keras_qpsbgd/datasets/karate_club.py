"""Zachary's karate club, with 34 members and 78 friendships.

W. W. Zachary, An Information Flow Model for Conflict and Fission in Small
Groups, Journal of Anthropological Research 33(4), 1977.
"""

import numpy as np

from keras_qpsbgd.datasets import graph_data
from keras_qpsbgd.datasets.graph_data import GraphData

NUM_NODES = 34

# Friends of each member. Each edge is listed once, under its smaller number.
_FRIENDS = {
    0: (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 31),
    1: (2, 3, 7, 13, 17, 19, 21, 30),
    2: (3, 7, 8, 9, 13, 27, 28, 32),
    3: (7, 12, 13),
    4: (6, 10),
    5: (6, 10, 16),
    6: (16,),
    8: (30, 32, 33),
    9: (33,),
    13: (33,),
    14: (32, 33),
    15: (32, 33),
    18: (32, 33),
    19: (33,),
    20: (32, 33),
    22: (32, 33),
    23: (25, 27, 29, 32, 33),
    24: (25, 27, 31),
    25: (31,),
    26: (29, 33),
    27: (33,),
    28: (31, 33),
    29: (32, 33),
    30: (32, 33),
    31: (32, 33),
    32: (33,),
}

# The class of each member, one digit per member.
LABELS = {
    "max_modularity": "1111333100311100310101022202200200",
    "pyg": "1111333101311100310101002200200200",
    "club": "0000000001000011001010111111111111",
}


def karate(
    labels: str = "max_modularity", train_per_class: int = 5, seed: int = 0
) -> GraphData:
    """Loads Zachary's karate club with a random split.

    Every class gets the same number of training nodes. All other nodes are
    test nodes. There are no validation nodes.

    Each node has six features, as the network of the paper expects: the node
    number in binary with the highest bit first, +1 for a set bit and -1 for an
    unset bit.

    Args:
        labels: String. The classes to use. Defaults to `"max_modularity"`.

            - `"max_modularity"`: The four groups of the partition with maximum
              modularity, with 12, 11, 6 and 5 nodes.
            - `"pyg"`: The four groups of PyTorch Geometric, with 13, 12, 4 and
              5 nodes. Nodes 9, 23 and 27 differ from `"max_modularity"`. The
              smallest group has fewer nodes than the default
              `train_per_class`.
            - `"club"`: The two clubs into which the members split.
        train_per_class: Integer. Number of training nodes in each class.
            Defaults to `5`, as in the paper, which uses four classes without
            specifying them. With `"max_modularity"`, the smallest class then
            has no test nodes.
        seed: Integer. Seed of the random split. Defaults to `0`.

    Returns:
        A `GraphData`.

    Raises:
        ValueError: If `labels` is unknown, or if `train_per_class` is larger
            than the smallest class.

    Example:
        ```python
        keras_qpsbgd.datasets.karate("club", train_per_class=2)
        # GraphData('karate', 34 nodes, 78 edges, 6 features, 2 classes, 4/0/30)
        ```

    Reference:
        - W. W. Zachary, An Information Flow Model for Conflict and Fission in
          Small Groups, Journal of Anthropological Research 33(4), 1977.
    """
    if labels not in LABELS:
        raise ValueError(
            f"`labels` must be one of {', '.join(map(repr, LABELS))}. "
            f"Received: labels={labels!r}"
        )
    y = np.array([int(digit) for digit in LABELS[labels]], "int32")
    sizes = np.bincount(y)
    if not 1 <= train_per_class <= sizes.min():
        raise ValueError(
            "`train_per_class` must be at least 1 and at most the size of the "
            f"smallest class, which is {sizes.min()} for class "
            f"{sizes.argmin()} of {labels!r}. Use fewer nodes or different "
            f"`labels`. Received: train_per_class={train_per_class}"
        )
    rng = np.random.default_rng(seed)
    train_mask = np.zeros(NUM_NODES, bool)
    for k in range(len(sizes)):
        members = np.flatnonzero(y == k)
        train_mask[rng.choice(members, train_per_class, replace=False)] = True
    bits = np.arange(NUM_NODES)[:, None] >> np.arange(5, -1, -1) & 1
    pairs = [(i, j) for i, friends in _FRIENDS.items() for j in friends]
    first, second = zip(*pairs)
    return graph_data.GraphData(
        name="karate",
        x=(2 * bits - 1).astype("float32"),
        a=graph_data.adjacency(first, second, NUM_NODES),
        y=y,
        train_mask=train_mask,
        val_mask=np.zeros(NUM_NODES, bool),
        test_mask=~train_mask,
    )
