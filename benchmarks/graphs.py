"""QP-SBGD on citation graphs, against what else trains a binary network.

    python benchmarks/graphs.py cora
    python benchmarks/graphs.py pubmed

An encoder of real weights (features-32-10, tanh, dropout, Adam, the weight
decay of Kipf and Welling) feeds a graph network of binary weights
(10-16-classes, hard tanh). All methods train the same network on the public
split, in batches of a quarter of the training nodes, and every one of them is
tuned alike: six configurations, the encoder's learning rate among them, judged
by their validation accuracy over three seeds. Then come fresh seeds. A run's
accuracy is that on the test nodes after the epoch with the best validation
accuracy. Initial weights, batches and dropout are the same for all methods of
one seed, so the differences are paired. The graph is downloaded unless
`--data-dir` or `KERAS_QPSBGD_DATA` names a folder that has it.

Every run is a line of a file; a run that is there is not made again, so a
killed benchmark goes on where it was.
"""

import argparse
import concurrent.futures
import itertools
import json
import multiprocessing
import os
import pathlib
import time

import numpy as np

PROTOCOL = 1  # to be raised where runs are not what they were before
EPOCHS = {"cora": 100, "pubmed": 50}
BATCHES = 4  # an epoch
WEIGHT_DECAY = 5e-4  # of the encoder's first layer
TUNING_SEEDS = (1000, 1001, 1002)

REAL_RATES = (0.01, 0.03)
FROZEN_REAL_RATES = (0.003, 0.005, 0.01, 0.02, 0.03, 0.1)
# What trains the binary layers, and its three learning rates.
METHODS = {
    "QP-SBGD": ("native", (0.005, 0.01, 0.02)),
    "QP-SBGD, ridge": ("ridge", (0.005, 0.01, 0.02)),
    "QP-SBGD, sign": ("sign", (0.0003, 0.001, 0.003)),
    "Adam": ("adam", (0.0003, 0.001, 0.003)),
    "SGD": ("sgd", (0.03, 0.1, 0.3)),
    "signSGD": ("signsgd", (0.0003, 0.001, 0.003)),
    "frozen": ("frozen", (None,)),
    "real weights": ("real", (0.0003, 0.001, 0.003)),
}
QPSBGD = "QP-SBGD"
BACKENDS = ("native", "ridge", "sign")


def configurations(method):
    """The six configurations of a method: (rate, encoder's rate)."""
    kind, rates = METHODS[method]
    real_rates = FROZEN_REAL_RATES if kind == "frozen" else REAL_RATES
    return list(itertools.product(rates, real_rates))


class Part:
    """The part of a graph that two layers need to label some nodes.

    The rows of all neighbours are whole, so logits and gradients are those of
    the whole graph.
    """

    def __init__(self, graph, a, nodes):
        import tensorflow as tf

        reached = np.zeros(graph.num_nodes, bool)
        reached[nodes] = True
        for _ in range(2):
            reached = reached | (a @ reached > 0)
        kept = np.flatnonzero(reached)
        position = np.cumsum(reached) - 1
        x, a = graph.x[kept], a[kept][:, kept]
        self.inputs = [
            _sparse_tensor(x) if is_sparse(graph) else tf.constant(x.toarray()),
            _sparse_tensor(a),
        ]
        self.nodes = position[nodes]
        self.y = tf.constant(graph.y[kept], tf.int32)


def is_sparse(graph):
    """Whether sparse features are the faster ones: Cora's, not PubMed's."""
    return graph.x.nnz < 0.05 * graph.num_nodes * graph.num_features


def _sparse_tensor(matrix):
    import tensorflow as tf

    matrix = matrix.tocoo()
    indices = np.stack([matrix.row, matrix.col], axis=1)
    tensor = tf.SparseTensor(indices, matrix.data, matrix.shape)
    return tf.sparse.reorder(tensor)


_parts = {}


def load(name, data_dir):
    """The graph and its parts, made once a process."""
    import keras_qpsbgd as kq

    if name not in _parts:
        graph = kq.datasets.citation(name, data_dir, normalize_x=True)
        a = kq.layers.BinaryGraphConv.preprocess(graph.a)
        masks = graph.train_mask, graph.val_mask, graph.test_mask
        _parts[name] = (
            graph,
            *(Part(graph, a, np.flatnonzero(mask)) for mask in masks),
        )
    return _parts[name]


def build_model(graph, kind):
    from tensorflow import keras

    import keras_qpsbgd as kq

    class RealGraphConv(kq.layers.BinaryGraphConv):
        """With the real kernel, unscaled: Kipf and Welling's layer."""

        def binary_product(self, inputs, training=None):
            return self.binary_call(inputs, self.kernel)

    conv = RealGraphConv if kind == "real" else kq.layers.BinaryGraphConv
    x = keras.Input((graph.num_features,), sparse=is_sparse(graph))
    a = keras.Input((None,), sparse=True)
    hidden = keras.layers.Dense(32, activation="tanh", name="encoder")(x)
    hidden = keras.layers.Dropout(0.5)(hidden)
    hidden = keras.layers.Dense(10, activation="tanh")(hidden)
    hidden = conv(16, activation="hard_tanh", use_bias=False)([hidden, a])
    logits = conv(graph.num_classes, use_bias=False)([hidden, a])
    return keras.Model([x, a], logits)


def make_update(model, kind, rate, real_rate, seed):
    """A function that applies the gradients of all variables."""
    import tensorflow as tf
    from tensorflow import keras

    import keras_qpsbgd as kq

    variables = model.trainable_variables
    encoder = keras.optimizers.Adam(real_rate)
    if kind in BACKENDS:
        optimizer = kq.QPSBGD(
            rate, backend=kind, real_optimizer=encoder, seed=seed
        )
        optimizer.build(variables)
        return lambda gradients: optimizer.apply(gradients, variables)

    # The binary kernels are the last two variables.
    encoder.build(variables[:-2])
    optimizer = {
        "adam": keras.optimizers.Adam,
        "real": keras.optimizers.Adam,
        "sgd": keras.optimizers.SGD,
        "signsgd": keras.optimizers.SGD,
        "frozen": lambda rate: None,
    }[kind](rate)
    if optimizer is not None:
        optimizer.build(variables[-2:])

    def update(gradients):
        encoder.apply_gradients(zip(gradients[:-2], variables[:-2]))
        gradients = gradients[-2:]
        if kind == "signsgd":
            gradients = [tf.sign(gradient) for gradient in gradients]
        if optimizer is not None:
            optimizer.apply_gradients(zip(gradients, variables[-2:]))

    return update


def run(name, data_dir, method, rate, real_rate, seed):
    """Trains one network; accuracies at the best validation epoch."""
    import tensorflow as tf
    from tensorflow import keras

    graph, train, validation, test = load(name, data_dir)
    kind = METHODS[method][0]
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    model = build_model(graph, kind)
    update = make_update(model, kind, rate, real_rate, seed)
    decayed = model.get_layer("encoder").kernel

    @tf.function
    def step(nodes):
        with tf.GradientTape() as tape:
            logits = tf.gather(model(train.inputs, training=True), nodes)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                tf.gather(train.y, nodes), logits
            )
            loss = tf.reduce_mean(losses)
            total = loss + WEIGHT_DECAY * tf.nn.l2_loss(decayed)
        update(tape.gradient(total, model.trainable_variables))
        return loss

    @tf.function
    def accuracy(part):
        logits = tf.gather(model(part.inputs, training=False), part.nodes)
        found = tf.argmax(logits, axis=1, output_type=tf.int32)
        right = found == tf.gather(part.y, part.nodes)
        return tf.reduce_mean(tf.cast(right, tf.float32))

    rng = np.random.default_rng(seed)
    best = {"validation": -1.0}
    for epoch in range(EPOCHS[name]):
        batches = np.array_split(rng.permutation(train.nodes), BATCHES)
        loss = np.mean([float(step(tf.constant(nodes))) for nodes in batches])
        reached = float(accuracy(validation))
        if reached > best["validation"]:
            best = {
                "validation": reached,
                "test": float(accuracy(test)),
                "epoch": epoch,
            }
    return {**best, "loss": float(loss)}


def _start_worker():
    """One thread a process: the networks are small."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


class Results:
    """The runs that were made, in a file of JSON lines."""

    def __init__(self, path, name):
        self.path = path
        self.settings = {
            "protocol": PROTOCOL,
            "graph": name,
            "epochs": EPOCHS[name],
            "batches": BATCHES,
            "weight_decay": WEIGHT_DECAY,
        }
        self.runs = {}
        text = path.read_text() if path.exists() else ""
        if text and not text.endswith("\n"):  # killed while it wrote
            text = text[: text.rfind("\n") + 1]
            path.write_text(text)
        for line in text.splitlines():
            record = json.loads(line)
            if record["settings"] == self.settings:
                self.runs[tuple(record["job"])] = record["result"]

    def add(self, job, result):
        self.runs[job] = result
        record = {"settings": self.settings, "job": job, "result": result}
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def values(self, method, configuration, seeds, key):
        return np.array(
            [self.runs[(method, *configuration, seed)][key] for seed in seeds]
        )


def make_runs(title, jobs, results, arguments):
    """Makes the runs that are missing, with a progress bar."""
    from tensorflow import keras

    missing = [job for job in jobs if job not in results.runs]
    print(f"{title}: {len(jobs)} runs, {len(jobs) - len(missing)} there")
    if not missing:
        return
    bar = keras.utils.Progbar(len(missing), unit_name="run")
    with concurrent.futures.ProcessPoolExecutor(
        arguments.processes,
        multiprocessing.get_context("spawn"),
        _start_worker,
    ) as pool:
        jobs_of = {
            pool.submit(run, arguments.graph, arguments.data_dir, *job): job
            for job in missing
        }
        try:
            for future in concurrent.futures.as_completed(jobs_of):
                results.add(jobs_of[future], future.result())
                bar.add(1)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def choose(results):
    """The configuration with the best mean validation accuracy, by method."""
    return {
        method: max(
            configurations(method),
            key=lambda configuration: results.values(
                method, configuration, TUNING_SEEDS, "validation"
            ).mean(),
        )
        for method in METHODS
    }


def print_tuning(results):
    print("\nValidation accuracy in percent, mean of the tuning seeds")
    for method in METHODS:
        cells = []
        for configuration in configurations(method):
            mean = results.values(
                method, configuration, TUNING_SEEDS, "validation"
            ).mean()
            rates = "/".join(
                f"{rate:g}".lstrip("0") for rate in configuration if rate
            )
            cells.append(f"{rates} {100 * mean:.1f}")
        print(f"  {method}")
        print("    " + "  ".join(cells[:3]))
        print("    " + "  ".join(cells[3:]))


def print_table(results, chosen, seeds):
    from scipy import stats

    def test(method):
        values = results.values(method, chosen[method], seeds, "test")
        return 100 * values

    print(f"\nTest accuracy in percent, {len(seeds)} seeds, mean +- standard")
    print("error (standard deviation); loss of the last epoch; paired t-test")
    print(
        f"{'method':<15}{'rate':>7}{'encoder':>8}{'test':>20}{'loss':>6}"
        f"{'QP-SBGD minus it':>21}"
    )
    for method in METHODS:
        rate, real_rate = chosen[method]
        values = test(method)
        loss = results.values(method, chosen[method], seeds, "loss").mean()
        deviation = values.std(ddof=1)
        error = deviation / np.sqrt(len(values))
        cell = f"{values.mean():.2f} +- {error:.2f} ({deviation:.1f})"
        row = (
            f"{method:<15}{rate or '-':>7}{real_rate:>8}{cell:>20}{loss:>6.3f}"
        )
        if method != QPSBGD:
            difference = test(QPSBGD) - values
            p = stats.ttest_rel(test(QPSBGD), values).pvalue
            row += f"{difference.mean():>+8.2f} (p = {p:.0e})"
        print(row)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("graph", choices=sorted(EPOCHS))
    parser.add_argument("--data-dir", help="see keras_qpsbgd.datasets")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument(
        "--out", type=pathlib.Path, help="default: graphs-NAME.jsonl"
    )
    arguments = parser.parse_args()
    import keras_qpsbgd as kq

    # Before the processes, of which each would download it.
    kq.datasets.citation(arguments.graph, arguments.data_dir, download=True)
    begin = time.perf_counter()
    path = arguments.out or pathlib.Path(f"graphs-{arguments.graph}.jsonl")
    results = Results(path, arguments.graph)
    tuning = [
        (method, *configuration, seed)
        for method in METHODS
        for configuration in configurations(method)
        for seed in TUNING_SEEDS
    ]
    make_runs("Tuning", tuning, results, arguments)
    chosen = choose(results)
    seeds = range(arguments.seeds)
    final = [
        (method, *chosen[method], seed) for method in METHODS for seed in seeds
    ]
    make_runs("Fresh seeds", final, results, arguments)
    print_tuning(results)
    print_table(results, chosen, seeds)
    minutes = (time.perf_counter() - begin) / 60
    print(f"{minutes:.0f} minutes, {arguments.processes} processes")


if __name__ == "__main__":
    main()
