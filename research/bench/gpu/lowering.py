"""Lowers functions of TensorFlow to programs of XLA."""

import lzma


def lower(function, *inputs):
    """Lowers a function that is compiled with `jit_compile=True`.

    Args:
        function: `tf.function`.
        inputs: Tensors. Its arguments.

    Returns:
        The program as compressed bytes, which `programs.parsed` reads, and the
        graph of the function. The parameters of the program are the inputs,
        then the captured inputs of the graph.
    """
    lowered = function.experimental_get_compiler_ir(*inputs)
    program = lzma.compress(lowered(stage="hlo_serialized"))
    return program, function.get_concrete_function(*inputs)


class State:
    """The parameters of a program after its inputs.

    They are the captured inputs of the graph, in their order.

    Args:
        graph: The graph of a function, see `lower`.
    """

    def __init__(self, graph):
        self._tensors = graph.captured_inputs
        self._variables = {id(v.handle): v for v in graph.graph.variables}

    def captured(self, tensor):
        """Returns the position of a captured tensor."""
        return [id(t) for t in self._tensors].index(id(tensor))

    def position(self, variable):
        """Returns the position of a Keras variable."""
        return self.captured(variable.value.handle)

    def paths(self, variables):
        """Returns the path of each variable, and `None` for constants."""
        names = {id(v.value.handle): v.path for v in variables}
        return [names.get(id(tensor)) for tensor in self._tensors]

    def values(self):
        """Returns the values as arrays."""
        return [
            self._variables.get(id(tensor), tensor).numpy()
            for tensor in self._tensors
        ]
