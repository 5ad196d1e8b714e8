"""Small complete graphs whose chains have one or two qubits."""

import heapq


def short_copies(graph, n, at_most=None, taken=frozenset()):
    """Finds copies of K_n whose chains are single qubits or coupled pairs.

    A copy consists of a core of a few mutually coupled qubits and of pairs that
    are coupled to the whole core and to each other. Starting from the qubit
    with the fewest free neighbors leaves few qubits that no copy can use.

    Args:
        graph: Graph. The working graph of a chip.
        n: Integer. Number of variables.
        at_most: Integer (optional). Stops after this many copies, which are
            the first of those found without it. Defaults to `None`.
        taken: Set of qubits that must not be used. Defaults to none.

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
