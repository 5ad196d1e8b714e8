"""A thread that makes one call after the other, each with a timeout."""

import queue
import threading

from keras_qpsbgd.backends.errors import TransientError


class Worker:
    """Runs functions in one thread that stays alive between calls.

    A new thread for each call would cost more than small problems take. After a
    timeout the thread cannot be stopped: it is abandoned and ends with its
    function or with the process, and the next call starts another one.
    """

    def __init__(self):
        self._tasks = None

    def call(self, seconds, function):
        """Returns `function()`, or raises a `TransientError` if it is late."""
        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            threading.Thread(
                target=_work, args=(self._tasks,), daemon=True
            ).start()
        answers = queue.SimpleQueue()
        self._tasks.put((function, answers))
        try:
            value, error = answers.get(timeout=seconds)
        except BaseException as reason:
            # After a timeout or an interrupt, the thread is still busy.
            self.close()
            if isinstance(reason, queue.Empty):
                raise TransientError(
                    f"No answer within {seconds:g} s (`timeout_seconds`)"
                ) from None
            raise
        if error is not None:
            raise error
        return value

    def close(self):
        """Ends the thread after its current call."""
        if self._tasks is not None:
            self._tasks.put(None)
            self._tasks = None

    def __del__(self):
        self.close()


def _work(tasks):
    while True:
        task = tasks.get()
        if task is None:
            return
        function, answers = task
        try:
            answers.put((function(), None))
        except BaseException as error:
            answers.put((None, error))
        del task, function, answers  # do not keep results until the next call
