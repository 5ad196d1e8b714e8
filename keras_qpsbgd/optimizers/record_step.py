"""Passes the QUBOs and states of an update to a recorder.

A recorder is any object with two methods.

- `wants(step, layer)` returns whether to record a layer in an update. While a
  graph is traced, `step` is a tensor and so is the result, unless the layer is
  never recorded.
- `record(step, layer, qubo, states, samples, sample_energies, info)` receives a
  `Qubo` and arrays, on the host. It may not keep the arrays of the `Qubo`.

`HostCall` records the solvers on the host, which return more than states.
"""

import weakref

import tensorflow as tf

from keras_qpsbgd import _keras
from keras_qpsbgd import ops
from keras_qpsbgd.backends.host import transfer


def reference_if_wanted(recorder, step, layers):
    """Returns a weak reference to the recorder if it records any layer.

    TensorFlow keeps callbacks alive, and a strong reference would keep the
    recorder and its model alive with them.

    Args:
        recorder: The recorder, or `None`.
        step: Scalar int tensor.
        layers: List of strings. Names of the layers.

    Returns:
        A `weakref.ref`, or `None`.

    Raises:
        ValueError: If XLA compiles the step.
    """
    if recorder is None or not _wanted(recorder, step, layers):
        return None
    if _keras.inside_xla():
        raise ValueError(
            "`QuboRecorder` records on the host, and XLA cannot call the host. "
            "Pass `jit_compile=False` to `compile` or to your `tf.function`. "
            "On a GPU, Keras 3 uses XLA by default. Received: jit_compile=True"
        )
    return weakref.ref(recorder)


def record_states(reference, step, layers, problems, factors, states):
    """Records the states that a backend found in the graph.

    Args:
        reference: Weak reference to the recorder.
        step: Scalar int tensor. Number of updates before this one.
        layers: List of strings. Names of the layers.
        problems: List of `ops.Problem`, before scaling.
        factors: List of scalars. The scales of the gradients.
        states: List of tensors of shape (n, m), 0 for weights that are held.
    """
    wanted = _wanted(reference(), step, layers)
    names = [layers[index] for index in wanted]

    def record():
        # Scaled inside the branch, so that other steps do not pay for it.
        arrays, unpack = transfer.pack(
            [ops.scale_problem(problems[i], factors[i]) for i in wanted]
        )

        def callback(step, *arrays):
            recorder = reference()
            found, arrays = arrays[: len(names)], arrays[len(names) :]
            for name, qubo, state in zip(names, unpack(iter(arrays)), found):
                if recorder is not None and recorder.wants(int(step), name):
                    recorder.record(int(step), name, qubo, state)
            return []

        found = [states[index] for index in wanted]
        tf.numpy_function(callback, [step, *found, *arrays], [])

    tf.cond(tf.reduce_any(list(wanted.values())), record, lambda: None)


def _wanted(recorder, step, layers):
    """Maps the index of each layer that may be recorded to a Boolean tensor."""
    wanted = {
        index: recorder.wants(step, layer) for index, layer in enumerate(layers)
    }
    return {index: flag for index, flag in wanted.items() if flag is not False}
