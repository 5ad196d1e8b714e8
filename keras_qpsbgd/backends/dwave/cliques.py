"""Finds complete graphs that share no qubit on a chip.

A column of a layer with n inputs is a complete graph K_n. There are two ways to
find copies of it:

- Up to K_10, `short_copies` maps variables to single qubits and to coupled
  pairs of qubits. It finds more copies than busclique, and tolerates dead
  qubits because it assumes nothing about the lattice.
- busclique from minorminer repeatedly finds the copy with the shortest chains
  on the remaining qubits.
"""

import functools
import heapq
import math
import threading

# Lattices and the graph attributes that define their size.
FAMILIES = {
    "chimera": ("rows", "columns", "tile"),
    "pegasus": ("rows",),
    "zephyr": ("rows", "tile"),
}
# Pairs of qubits hold no larger K_n on Pegasus. On Zephyr they do, but finding
# them takes a minute.
MAX_SHORT = 10
# On Zephyr, busclique does not terminate for smaller K_n.
MIN_BUSCLIQUE = 9


class Cliques:
    """Disjoint complete graphs on one chip.

    Results are kept in memory. The same chip always gives the same results,
    regardless of the number and order of the requests. Threads may share one
    object.

    Args:
        graph: Graph. The working graph of a Chimera, Pegasus or Zephyr chip, as
            returned by `DWaveSampler.to_networkx_graph`.

    Attributes:
        graph: The graph with sorted qubits and couplers.
    """

    def __init__(self, graph):
        family = graph.graph.get("family")
        if family not in FAMILIES:
            raise ValueError(
                "`graph` must be a Chimera, Pegasus or Zephyr graph of "
                f"dwave-graphs. Received: graph with family={family!r}"
            )
        # The results depend on the order of qubits and couplers.
        couplers = sorted(tuple(sorted(edge)) for edge in graph.edges)
        self.graph = type(graph)(**graph.graph)
        self.graph.add_nodes_from(sorted(graph))
        self.graph.add_edges_from(couplers)
        self._largest = None
        self._copies = {}
        self._lock = threading.RLock()

    @functools.cached_property
    def regular(self):
        """The graph for `busclique`."""
        return without_gaps(self.graph)

    def largest(self):
        """Returns the number of variables of the largest K_n found."""
        with self._lock:
            if self._largest is None:
                self._largest = len(largest_copy(self))
            return self._largest

    def copies(self, n, at_most=None):
        """Returns embeddings of K_n that share no qubit, shortest chains first.

        Args:
            n: Integer. Number of variables.
            at_most: Integer (optional). Maximum number of embeddings. A smaller
                number returns the first embeddings of a larger one. Defaults to
                `None`, which returns all that are found on the whole chip.

        Returns:
            A list of dictionaries from 0..n-1 to tuples of qubits. Empty if the
            chip holds no K_n.
        """
        with self._lock:
            limit = math.inf if at_most is None else at_most
            copies, searched = self._copies.get(n, ([], 0))
            if searched < limit:
                copies = FreeQubits(self).place(n, at_most)
                # If fewer were found, the chip holds no more.
                searched = limit if len(copies) == limit else math.inf
                self._copies[n] = copies, searched
            return [dict(copy) for copy in copies[:at_most]]


class FreeQubits:
    """The qubits of a chip that no copy occupies yet.

    Args:
        chip: The `Cliques` of the chip.
        copies: List of dictionaries of chains that occupy their qubits.
            Defaults to `()`.
    """

    def __init__(self, chip, copies=()):
        self._chip = chip
        self._taken = set(qubits_of(copies))
        self._left = None  # for busclique, copied on first use

    def place(self, n, at_most=None, bound=None):
        """Finds and occupies copies of K_n.

        The same free qubits always give the same copies. A smaller `at_most`
        returns the first of them.

        Args:
            n: Integer. Number of variables.
            at_most: Integer (optional). Maximum number of copies. Defaults to
                `None`, which places as many as are found.
            bound: Integer (optional). Maximum number of qubits of a chain.
                Defaults to `None`, which is twice the longest chain of the
                first copy.

        Returns:
            A list of dictionaries from 0..n-1 to tuples of qubits.
        """
        copies = []
        if n <= MAX_SHORT:
            copies = short_copies(self._chip.graph, n, at_most, self._taken)
            self._occupy(copies)
        while at_most is None or len(copies) < at_most:
            if self._left is None:
                self._left = self._chip.regular.copy()
                self._left.remove_nodes_from(self._taken)
            copy = busclique(self._left, n)
            # A second call costs less than broken chains.
            longest = bound or 2 * longest_chain(copies[:1])
            if not copy or 0 < longest < longest_chain([copy]):
                break
            copies.append(copy)
            self._occupy([copy])
        return copies

    def _occupy(self, copies):
        self._taken.update(qubits_of(copies))
        if self._left is not None:
            self._left.remove_nodes_from(qubits_of(copies))


def largest_copy(chip):
    """Finds the largest K_n by bisection."""
    best, low, high = None, MAX_SHORT, len(chip.graph) + 1
    while high - low > 1:
        # Chips hold a K_n of about 200, so do not start in the thousands.
        n = min(low + 64, (low + high) // 2)
        copy = busclique(chip.regular, n)
        if copy:
            best, low = copy, n
        else:
            high = n
    if best:
        return best
    short = (FreeQubits(chip).place(n, 1) for n in range(low, 0, -1))
    return next(copies[0] for copies in short if copies)


def busclique(graph, n):
    """Returns the K_n with the shortest chains, or `None`."""
    from minorminer.busclique import find_clique_embedding

    size = max(n, MIN_BUSCLIQUE)
    # The cache of busclique would store a file for every set of free qubits.
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


def without_gaps(graph):
    """Removes qubits until no coupler between the remaining ones is missing.

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


# Chains of one or two qubits


def short_copies(graph, n, at_most=None, taken=frozenset()):
    """Finds copies of K_n whose chains are single qubits or coupled pairs.

    A copy consists of a core of a few mutually coupled qubits and of pairs that
    are coupled to the whole core and to each other. Starting from the qubit
    with the fewest free neighbors leaves few qubits that no copy can use.

    Args:
        graph: Graph. The working graph of a chip.
        n: Integer. Number of variables.
        at_most: Integer (optional). Maximum number of copies. A smaller number
            returns the first copies of a larger one. Defaults to `None`, which
            returns all copies that are found.
        taken: Set of qubits that must not be used. Defaults to the empty set.

    Returns:
        A list of dictionaries from 0..n-1 to tuples of qubits.
    """
    free = {q: set(graph.adj[q]) - taken for q in graph if q not in taken}
    copies = []
    # No lattice has five mutually coupled qubits.
    for size in range(min(n, 4), min(n, 2) - 1, -1):
        starts = set(free)
        queue = sorted((len(free[q]), q) for q in starts)
        while queue and len(copies) != at_most:
            degree, start = heapq.heappop(queue)
            if start not in starts or degree != len(free[start]):
                continue
            found = (_extend(free, c, n) for c in _cores(free, start, size))
            chains = next(filter(None, found), None)
            if chains is None:
                starts.remove(start)
                continue
            copies.append(dict(enumerate(chains)))
            for q in (q for chain in chains for q in chain):
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


# Properties of embeddings


def qubits_of(copies):
    """Returns the qubits of all chains."""
    return [q for copy in copies for chain in copy.values() for q in chain]


def longest_chain(embeddings):
    """Returns the number of qubits of the longest chain, 0 if there is none."""
    return max((len(c) for e in embeddings for c in e.values()), default=0)
