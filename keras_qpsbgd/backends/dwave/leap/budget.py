"""A budget of QPU seconds, reserved before a call and charged after it."""

import threading

from keras_qpsbgd.backends.errors import BudgetExceeded


class Budget:
    """Keeps the sum of charged seconds below a limit.

    Each call reserves its estimated time. A reservation is rejected if it could
    exceed the limit, together with everything else that is reserved or charged.
    The limit therefore also holds for several threads.

    Args:
        seconds: Float (optional). The limit. Defaults to `None`, which counts
            seconds without a limit.
    """

    def __init__(self, seconds=None):
        self.seconds = seconds
        self.charged = 0.0
        self._reserved = 0.0
        self._lock = threading.Lock()

    def remaining(self):
        """Returns the seconds that are not spent or reserved, or `None`."""
        if self.seconds is None:
            return None
        with self._lock:
            return self.seconds - self.charged - self._reserved

    def reserve(self, seconds):
        """Reserves seconds, or raises `BudgetExceeded`."""
        with self._lock:
            committed = self.charged + self._reserved
            if self.seconds is not None and committed + seconds > self.seconds:
                raise BudgetExceeded(
                    "The next call could exceed `qpu_budget_seconds`: "
                    f"{committed:.4g} s are spent or reserved, and the call "
                    f"would take {seconds:.4g} s. "
                    f"Received: qpu_budget_seconds={self.seconds:g}"
                )
            self._reserved += seconds
        return seconds

    def settle(self, reserved, charged):
        """Replaces a reservation with the seconds that were charged."""
        with self._lock:
            self._reserved -= reserved
            self.charged += charged
