"""An open connection to a chip, and what is built for its graph."""

import threading

from keras_qpsbgd.backends.dwave.chip.cliques import Cliques
from keras_qpsbgd.backends.dwave.chip.columns import EmbeddedCall
from keras_qpsbgd.backends.dwave.chip.layout import Layout

# Layouts that are kept. A network needs a few, because most of its calls use
# the same qubits. One layout takes about 1 MB.
MAX_LAYOUTS = 32


class OpenChip:
    """A sampler and the embeddings on its graph. Threads may share it.

    Args:
        sampler: A `DWaveSampler`, or a compatible sampler.
    """

    def __init__(self, sampler):
        self.sampler = sampler
        self.cliques = Cliques(sampler.to_networkx_graph())
        self._layouts = {}
        self._lock = threading.Lock()

    def embedded(self, packed):
        """Returns the `EmbeddedCall` of a `PackedCall`."""
        return EmbeddedCall(packed, self._layout(packed.chains))

    def _layout(self, chains):
        with self._lock:
            found = self._layouts.pop(chains, None)
            if found is None:
                found = Layout(chains, self.sampler)
            # The most recently used one is last.
            self._layouts[chains] = found
            if len(self._layouts) > MAX_LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
            return found
