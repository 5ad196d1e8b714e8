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


def record_states(reference, step, names, layers, states):
    """Records the states that a backend found in the graph.

    Args:
        reference: Weak reference to the recorder.
        step: Scalar int tensor. Number of updates before this one.
        names: List of strings. Names of the layers.
        layers: List of `ops.LayerProblems`.
        states: For each layer, a list of tensors of shape (n, m), one for each
            of its problems. 0 for weights that are held.
    """
    wanted = _wanted(reference(), step, names)
    all_names = [
        name
        for index in wanted
        for name in block_names(names[index], len(states[index]))
    ]

    def record():
        # Computed inside the branch, so that other steps do not pay for it.
        arrays, unpack = transfer.pack(
            [
                problem
                for index in wanted
                for problem in layers[index].problems()
            ]
        )

        def callback(step, *arrays):
            recorder = reference()
            count = len(all_names)
            found, qubos = arrays[:count], unpack(iter(arrays[count:]))
            for name, qubo, state in zip(all_names, qubos, found):
                if recorder is not None and recorder.wants(int(step), name):
                    recorder.record(int(step), name, qubo, state)
            return []

        found = [state for index in wanted for state in states[index]]
        tf.numpy_function(callback, [step, *found, *arrays], [])

    tf.cond(tf.reduce_any(list(wanted.values())), record, lambda: None)


def block_names(name, count):
    """Returns the names of the blocks of a layer: `dense[0]`, `dense[1]`."""
    return [name] if count == 1 else [f"{name}[{i}]" for i in range(count)]


def layer_name(name):
    """Returns the name of the layer of a block."""
    head, bracket, tail = name.rpartition("[")
    return head if bracket and tail[:-1].isdigit() else name


def _wanted(recorder, step, layers):
    """Maps the index of each layer that may be recorded to a Boolean tensor."""
    wanted = {
        index: recorder.wants(step, layer) for index, layer in enumerate(layers)
    }
    return {index: flag for index, flag in wanted.items() if flag is not False}
