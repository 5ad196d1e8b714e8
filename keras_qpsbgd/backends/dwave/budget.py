"""QPU seconds: reserved before a call, charged after it."""

import threading

from keras_qpsbgd.backends.errors import BudgetExceeded


class Budget:
    """Keeps the sum of charged seconds below a limit.

    A call reserves what it is estimated to take. A reservation that could
    exceed the limit, with everything else that is reserved or charged, is
    refused. So several threads together stay below it, too.

    Args:
        seconds: the limit, or `None`: count only.
    """

    def __init__(self, seconds=None):
        self.seconds = seconds
        self.charged = 0.0
        self._reserved = 0.0
        self._lock = threading.Lock()

    def reserve(self, seconds):
        with self._lock:
            committed = self.charged + self._reserved
            if self.seconds is not None and committed + seconds > self.seconds:
                raise BudgetExceeded(
                    f"The QPU budget is used up: {committed:.4g} s are spent "
                    f"or reserved, the next call would take {seconds:.4g} s. "
                    f"Received: qpu_budget_seconds={self.seconds:g}"
                )
            self._reserved += seconds
        return seconds

    def settle(self, reserved, charged):
        with self._lock:
            self._reserved -= reserved
            self.charged += charged
