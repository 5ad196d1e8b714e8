"""Says once that the first step is being compiled, if that takes long.

A search in the graph is compiled when it first runs, which takes seconds for
each shape of a layer, and nothing is to be seen of it. So a thread
looks, once, after `SECONDS`: has the optimizer taken a step?
"""

import logging
import sys
import threading
import time

SECONDS = 5.0
THREAD = "keras_qpsbgd first step"
_LIBRARIES = ("keras", "tensorflow", "tf_keras")

_logger = logging.getLogger("keras_qpsbgd")


def announce_if_slow(steps_taken):
    """Called where the first step is traced, or begins.

    It keeps neither the optimizer nor the process alive.

    Args:
        steps_taken: weak reference to a function whose value changes with the
            first step.
    """
    threading.Thread(
        target=_look,
        args=(steps_taken, threading.get_ident()),
        name=THREAD,
        daemon=True,
    ).start()


def _look(steps_taken, caller):
    before = _value(steps_taken)
    time.sleep(SECONDS)
    if before is None or _value(steps_taken) != before:
        return
    # Replicas are traced in threads of their own, for the main one.
    threads = {caller, threading.main_thread().ident}
    if any(_in_library(thread) for thread in threads):
        # Whether there is a progress bar an optimizer cannot know, so this is
        # left to a logger, which can be silenced.
        _logger.warning(
            "The first training step has not ended after %g s; it is probably "
            "being compiled. This is done once for each shape of a layer.",
            SECONDS,
        )


def _value(steps_taken):
    function = steps_taken()
    return None if function is None else function()


def _in_library(thread):
    """Whether a thread is in a call of Keras or TensorFlow.

    It is not if the step has failed, or was only traced, for export perhaps.
    """
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_globals.get("__name__", "").split(".")[0] in _LIBRARIES:
            return True
        frame = frame.f_back
    return False
