"""Disjoint complete graphs on one chip, cached in memory and on disk."""

import hashlib
import json
import pathlib
import threading

from keras_qpsbgd import disk
from keras_qpsbgd.backends.dwave.chip import packing
from keras_qpsbgd.backends.dwave.chip import search

# Variables of the largest K_n on chips without defects (`Cliques.largest`).
LARGEST = {"Pegasus P16": 180, "Zephyr Z12": 184, "Zephyr Z15": 232}
# Part of the key in every file name. Increment it when the searches change.
VERSION = 2


class Cliques:
    """Disjoint embeddings of complete graphs on one chip.

    The embeddings are cached in memory and on disk. The same chip always gives
    the same embeddings, independent of the number and order of the requests.
    Threads may share one object.

    Args:
        graph: Graph. The working graph of a Chimera, Pegasus or Zephyr chip, as
            returned by `DWaveSampler.to_networkx_graph`.
        directory: String or path (optional). Directory of the files. Defaults
            to the environment variable `KERAS_QPSBGD_CACHE` if it is set, else
            to the user's cache directory.
    """

    def __init__(self, graph, directory=None):
        family = graph.graph.get("family")
        if family not in search.FAMILIES:
            raise ValueError(
                "`graph` must be a Chimera, Pegasus or Zephyr graph of "
                f"dwave-graphs. Received: graph with family={family!r}"
            )
        # Searches depend on the order of qubits and couplers.
        self.qubits = sorted(graph)
        couplers = sorted(tuple(sorted(edge)) for edge in graph.edges)
        self.graph = type(graph)(**graph.graph)
        self.graph.add_nodes_from(self.qubits)
        self.graph.add_edges_from(couplers)
        self.lattice = search.Lattice(self.graph)
        text = repr((VERSION, family, self.qubits, couplers))
        self.chip = hashlib.sha256(text.encode()).hexdigest()[:20]
        self.directory = pathlib.Path(directory or disk.cache_folder())
        self._known = {}
        self._lock = threading.RLock()

    def largest(self):
        """Returns the number of variables of the largest K_n found."""
        with self._lock:
            known = self._known.get("largest") or self._load("largest")
            if known is None:
                known = [search.largest_copy(self.lattice)], True
                self._store("largest", *known)
            self._known["largest"] = known
            return len(known[0][0])

    def copies(self, n, at_most=None):
        """Returns embeddings of K_n that share no qubit, shortest chains first.

        Args:
            n: Integer. Number of variables.
            at_most: Integer (optional). Maximum number of embeddings. A larger
                number extends the list. Defaults to `None`, which returns all
                that are found on the whole chip.

        Returns:
            A list of dictionaries from 0..n-1 to tuples of qubits. Empty if the
            chip holds no K_n.
        """
        if n < 1:
            raise ValueError(f"`n` must be at least 1. Received: n={n}")
        with self._lock:
            known = self._known.get(n) or self._load(n) or ([], False)
            copies, complete = known
            if not complete and (at_most is None or len(copies) < at_most):
                copies, complete = search.extend(
                    self.lattice, n, copies, at_most
                )
                search.validate(copies, self.graph)
                self._store(n, copies, complete)
            self._known[n] = copies, complete
            return [dict(copy) for copy in copies[:at_most]]

    def pack(self, sizes):
        """Returns the calls that anneal all columns of all layers.

        Args:
            sizes: Sequence of tuples `(num_variables, num_columns)`, one per
                layer. No layer may be wider than `largest()`.

        Returns:
            A `Packing`.
        """
        sizes = packing.check_sizes(sizes)
        with self._lock:
            if sizes not in self._known:
                self._known[sizes] = packing.pack(self, sizes)
            return self._known[sizes]

    def _path(self, name):
        return self.directory / f"cliques-{self.chip}-{name}.json"

    def _load(self, name):
        """Returns the stored copies, or `None` if missing or damaged."""
        try:
            # The checksum is needed because damaged positions may still form a
            # valid embedding.
            content = disk.read_with_checksum(self._path(name))
            if content is None:
                return None
            found = json.loads(content)
            copies = [
                {
                    i: tuple(self.qubits[k] for k in c)
                    for i, c in enumerate(copy)
                }
                for copy in found["copies"]
            ]
            search.validate(copies, self.graph)
        except (ValueError, LookupError, RecursionError, TypeError):
            return None
        sizes = {len(copy) for copy in copies}
        if not copies or name != "largest" and sizes != {name}:
            return None
        return copies, found.get("complete") is True

    def _store(self, name, copies, complete):
        # Positions, because JSON may not support the labels of the qubits.
        position = {qubit: k for k, qubit in enumerate(self.qubits)}
        rows = [
            [[position[qubit] for qubit in chain] for chain in copy.values()]
            for copy in copies
        ]
        content = json.dumps({"copies": rows, "complete": complete})
        try:
            disk.write_with_checksum(self._path(name), content.encode())
        except OSError:
            pass  # the next process searches again
