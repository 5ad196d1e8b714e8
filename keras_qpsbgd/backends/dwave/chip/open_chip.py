"""An open connection to a chip, and what is built for its graph."""

import threading

from keras_qpsbgd.backends.dwave.chip.cliques import Cliques
from keras_qpsbgd.backends.dwave.chip.columns import EmbeddedCall

# Calls whose index arrays are kept. A network needs one per distinct layout.
MAX_CALLS = 64


class OpenChip:
    """A sampler and the embeddings on its graph. Threads may share it.

    Args:
        sampler: A `DWaveSampler`, or a compatible sampler.
    """

    def __init__(self, sampler):
        self.sampler = sampler
        self.cliques = Cliques(sampler.to_networkx_graph())
        self._embedded = {}
        self._lock = threading.Lock()

    def embedded(self, packed):
        """Returns the `EmbeddedCall` of a `PackedCall`."""
        with self._lock:
            found = self._embedded.pop(packed, None)
            if found is None:
                found = EmbeddedCall(packed, self.sampler)
            # The most recently used one is last.
            self._embedded[packed] = found
            if len(self._embedded) > MAX_CALLS:
                del self._embedded[next(iter(self._embedded))]
            return found
