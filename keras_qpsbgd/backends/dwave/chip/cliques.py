"""Disjoint complete graphs on one annealer chip.

A column of a layer with n inputs is a complete graph K_n. One call can anneal
many columns if the chip holds many copies of K_n that share no qubit. Two
searches find such copies:

- Up to K_10, `_short_copies` maps variables to single qubits and to coupled
  pairs of qubits. It packs more copies than the second search, and tolerates
  dead qubits because it assumes nothing about the lattice.
- busclique from minorminer repeatedly finds the copy with the shortest chains
  on the remaining qubits.
"""

import hashlib
import heapq
import json
import pathlib
import threading

from keras_qpsbgd import disk

# Lattices and the graph attributes that define their size.
FAMILIES = {
    "chimera": ("rows", "columns", "tile"),
    "pegasus": ("rows",),
    "zephyr": ("rows", "tile"),
}
# Variables of the largest K_n on chips without defects (`Cliques.largest`).
LARGEST = {"Pegasus P16": 180, "Zephyr Z12": 184, "Zephyr Z15": 232}
# Part of the key in every file name. Increment it when the searches change.
VERSION = 1
# Pairs of qubits hold no larger K_n on Pegasus. On Zephyr they do, but the
# search takes a minute.
MAX_SHORT = 10
# busclique does not return from searches for smaller graphs on Zephyr.
MIN_BUSCLIQUE = 9


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
        if family not in FAMILIES:
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
                known = [_largest_copy(self.graph)], True
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
                copies, complete = _search(self.graph, n, copies, at_most)
                validate(copies, self.graph)
                self._store(n, copies, complete)
            self._known[n] = copies, complete
            return [dict(copy) for copy in copies[:at_most]]

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
            stored = json.loads(content)
            copies = [
                {
                    i: tuple(self.qubits[k] for k in c)
                    for i, c in enumerate(copy)
                }
                for copy in stored["copies"]
            ]
            validate(copies, self.graph)
        except (ValueError, LookupError, RecursionError, TypeError):
            return None
        sizes = {len(copy) for copy in copies}
        if not copies or name != "largest" and sizes != {name}:
            return None
        return copies, stored.get("complete") is True

    def _store(self, name, copies, complete):
        # Positions, because JSON may not support the labels of the qubits.
        position = {qubit: k for k, qubit in enumerate(self.qubits)}
        rows = [
            [[position[qubit] for qubit in chain] for chain in copy.values()]
            for copy in copies
        ]
        text = json.dumps({"copies": rows, "complete": complete})
        try:
            disk.write_with_checksum(self._path(name), text.encode())
        except OSError:
            pass  # the next process searches again


def is_disjoint(embeddings):
    """Returns whether no qubit is in two chains."""
    qubits = [q for e in embeddings for chain in e.values() for q in chain]
    return len(qubits) == len(set(qubits))


def longest_chain(embeddings):
    """Returns the number of qubits of the longest chain, 0 if there is none."""
    return max((len(c) for e in embeddings for c in e.values()), default=0)


def validate(embeddings, graph):
    """Raises a `ValueError` unless these are disjoint complete graphs."""
    if not is_disjoint(embeddings):
        raise ValueError(
            "`embeddings` must not share qubits. Received: "
            f"{len(embeddings)} embeddings that do"
        )
    for embedding in embeddings:
        owner = {q: i for i, chain in embedding.items() for q in chain}
        for i, chain in embedding.items():
            coupled = {owner.get(r) for q in chain for r in graph.adj[q]}
            coupled -= {None, i}
            complete = len(coupled) >= len(embedding) - 1
            if not complete or not _is_connected(chain, graph):
                raise ValueError(
                    "`embeddings` must have connected chains, each coupled to "
                    f"all others. Received: {i}: {chain} in {embedding}"
                )


def _is_connected(chain, graph):
    reached = set(chain[:1])
    frontier = list(reached)
    while frontier:
        new = set(chain) & set(graph.adj[frontier.pop()]) - reached
        reached |= new
        frontier.extend(new)
    return len(reached) == len(chain) > 0


def _search(graph, n, copies, at_most):
    """Extends the copies of K_n. Returns them and whether they are complete.

    The next copy depends only on the remaining qubits, so a search can continue
    from a stored list. For the same reason, the short copies are all searched
    at once.
    """
    copies = list(copies)
    if n <= MAX_SHORT and not copies:
        copies = _short_copies(graph, n)
    left = _without_gaps(graph)
    left.remove_nodes_from(_qubits(copies))
    while at_most is None or len(copies) < at_most:
        copy = _busclique(left, n)
        # A second call costs less than broken chains.
        bound = 2 * longest_chain(copies[:1])
        if not copy or copies and longest_chain([copy]) > bound:
            return copies, True
        copies.append(copy)
        left.remove_nodes_from(_qubits([copy]))
    return copies, False


def _qubits(copies):
    return [q for copy in copies for chain in copy.values() for q in chain]


def _busclique(graph, n):
    """Returns the K_n with the shortest chains, or `None`."""
    from minorminer.busclique import find_clique_embedding

    size = max(n, MIN_BUSCLIQUE)
    # Its own cache would store a file for every set of remaining qubits.
    found = find_clique_embedding(size, graph, use_cache=False, seed=0)
    if len(found) < size:
        return None
    chains = sorted(map(tuple, found.values()), key=len)
    return dict(enumerate(chains[:n]))


def lattices():
    """Returns Ocean's module of chip graphs, which newer releases renamed."""
    try:
        import dwave.graphs as module
    except ImportError:
        import dwave_networkx as module
    return module


def _without_gaps(graph):
    """Removes qubits until no coupler between the others is missing.

    busclique tries exponentially many ways around missing couplers. With sixty
    of them on a Pegasus chip, single calls take many seconds.
    """
    family = graph.graph["family"]
    whole = getattr(lattices(), f"{family}_graph")(
        *(graph.graph[key] for key in FAMILIES[family]),
        coordinates=graph.graph["labels"] == "coordinate",
    )
    whole.remove_nodes_from(set(whole) - set(graph))
    whole.remove_edges_from(list(graph.edges))
    regular = graph.copy()
    for p, q in sorted(map(sorted, whole.edges)):
        if p in regular and q in regular:
            regular.remove_node(max(p, q, key=whole.degree))
    return regular


def _largest_copy(graph):
    """Finds the largest K_n by bisection."""
    regular = _without_gaps(graph)
    best, low, high = None, MAX_SHORT, len(graph) + 1
    while high - low > 1:
        # Chips hold a K_n of about 200, so do not start in the thousands.
        n = min(low + 64, (low + high) // 2)
        copy = _busclique(regular, n)
        if copy:
            best, low = copy, n
        else:
            high = n
    if best:
        return best
    short = (_search(graph, n, [], 1)[0] for n in range(low, 0, -1))
    return next(copies[0] for copies in short if copies)


def _short_copies(graph, n):
    """Finds copies of K_n whose chains are single qubits or coupled pairs.

    A copy consists of a core of a few mutually coupled qubits and of pairs that
    are coupled to the whole core and to each other. Starting from the qubit
    with the fewest free neighbors leaves few qubits that no copy can use.
    """
    free = {q: set(graph.adj[q]) for q in graph}
    copies = []
    # No lattice has five mutually coupled qubits.
    for size in range(min(n, 4), min(n, 2) - 1, -1):
        starts = set(free)
        queue = sorted((len(free[q]), q) for q in starts)
        while queue:
            degree, start = heapq.heappop(queue)
            if start not in starts or degree != len(free[start]):
                continue
            found = (_extend(free, c, n) for c in _cores(free, start, size))
            chains = next(filter(None, found), None)
            if chains is None:
                starts.remove(start)
                continue
            copies.append(dict(enumerate(chains)))
            for q in _qubits(copies[-1:]):
                starts.discard(q)
                for r in free.pop(q):
                    free[r].remove(q)
                    heapq.heappush(queue, (len(free[r]), r))
    return copies


def _cores(free, start, size):
    """Yields all sets of `size` mutually coupled qubits with `start`.

    Qubits with few free neighbors come first.
    """

    def grow(core, common):
        if len(core) == size:
            yield core
            return
        for k, q in enumerate(common):
            rest = [r for r in common[k + 1 :] if r in free[q]]
            yield from grow([*core, q], rest)

    return grow([start], _by_free_neighbors(free, free[start]))


def _extend(free, core, n):
    """Adds pairs to the core to form the chains of K_n, or returns `None`."""
    chains = [(q,) for q in core]
    near = set().union(*(free[q] for q in core)) - {*core}
    near = _by_free_neighbors(free, near)
    reach = {q: free[q].intersection(core) for q in near}
    for p in near:
        if len(chains) == n:
            break
        if any(p in chain for chain in chains):
            continue
        for r in near:
            if r not in free[p] or len(reach[p] | reach[r]) < len(core):
                continue
            both = free[p] | free[r]
            if all(both.intersection(c) and r not in c for c in chains):
                chains.append((p, r))
                break
    return chains if len(chains) == n else None


def _by_free_neighbors(free, qubits):
    """Sorts qubits by their number of free neighbors."""
    return sorted(qubits, key=lambda q: (len(free[q]), q))
