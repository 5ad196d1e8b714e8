"""Compiles and executes programs of `lowering` with JAX.

The module needs JAX and NumPy. It uses internals of JAX and was tested with JAX
0.10 and 0.11.
"""

import io
import lzma
import re

import jax
from jax._src.interpreters import mlir as jax_mlir
from jax._src.lib import _jax
from jax._src.lib.mlir import ir

jax.config.update("jax_enable_x64", True)  # some variables have 64 bits

# `@step` is the program of one step. The loop carries the number of the step,
# all batches and the state.
LOOP = """
  func.func public @main({parameters}) -> ({state_types}) {{
    %first = stablehlo.constant dense<0> : tensor<i32>
    %end:{size} = stablehlo.while({assignments}) : {types}
    cond {{
      %steps = stablehlo.constant dense<{steps}> : tensor<i32>
      %goes_on = stablehlo.compare LT, %i, %steps
        : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %goes_on : tensor<i1>
    }} do {{
      %batches = stablehlo.constant dense<{batches}> : tensor<i32>
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %batch = stablehlo.remainder %i, %batches : tensor<i32>
{slices}
      %new:{outputs} = func.call @step({step_inputs})
        : ({input_types}) -> ({output_types})
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return {next_values} : {types}
    }}
    return {results} : {state_types}
  }}
}}
"""
SLICE = """
      %{name}_slice = stablehlo.dynamic_slice %{name}_all, {indices},
        sizes = [{sizes}] : ({all}, {index_types}) -> {slice}
      %{name} = stablehlo.reshape %{name}_slice : ({slice}) -> {type}"""


def compiled(content):
    """Compiles a program for the first device.

    Args:
        content: Bytes, see `lowering.lower`.

    Returns:
        The program, and pairs of a position in the state and the output that
        updates it.
    """
    with jax_mlir.make_ir_context():
        module = _parsed(content)
        return _compiled(module), _updates(module)


def compiled_loop(content, steps, batches):
    """Compiles a program that takes several training steps.

    Args:
        content: Bytes, see `lowering.lower`. The program of one step, whose
            inputs are a batch of inputs and targets.
        steps: Integer. Number of steps.
        batches: Integer. Number of batches, which are stacked and take turns.

    Returns:
        The program. Its outputs are the whole state.
    """
    with jax_mlir.make_ir_context():
        module = _parsed(content)
        text = _loop_text(module, _updates(module), steps, batches)
        return _compiled(ir.Module.parse(text))


def execute(program, arrays):
    """Starts a compiled program and returns its outputs."""
    results = program.execute_sharded(arrays)
    return [a for (a,) in results.disassemble_into_single_device_arrays()]


def _parsed(content):
    """Returns the module in StableHLO, which does not have copies."""
    hlo = lzma.decompress(content)
    module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))
    copies = []

    def collect(operation):
        if operation.name == "mhlo.copy":
            copies.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(collect)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
    for copy in copies:
        copy.operation.erase()
    return module


def _updates(module):
    """Returns pairs of a position in the state and the output that updates it.

    TensorFlow writes the new value of a variable into the memory of the old
    one. The module lists which output belongs to which parameter. A prediction
    updates nothing.
    """
    attributes, name = module.operation.attributes, "mhlo.input_output_alias"
    pairs = []
    for alias in attributes[name] if name in attributes else ():
        (parameter,) = re.findall(r"parameter_number = (\d+)", str(alias))
        (output,) = re.findall(r"output_index = array<i64: (\d+)>", str(alias))
        pairs.append((int(parameter) - 2, int(output)))  # after the batch
    return sorted(pairs)


def _compiled(module):
    """Compiles a module for the first device."""
    module.operation.verify()
    file = io.BytesIO()
    module.operation.write_bytecode(file)
    device = jax.devices()[0]
    devices = _jax.DeviceList((device,))
    return device.client.compile_and_load(
        file.getvalue(), devices, _jax.CompileOptions()
    )


def _main(module):
    (function,) = [
        operation
        for operation in module.body.operations
        if operation.attributes["sym_name"].value == "main"
    ]
    return function


def _loop_text(module, updates, steps, batches):
    """Returns the text of a module that takes several steps."""
    # The attributes describe the parameters of the step, not of the loop.
    for name in list(module.operation.attributes):
        if name != "sym_name":
            del module.operation.attributes[name]
    main = _main(module)
    inputs, outputs = list(main.type.inputs), list(main.type.results)
    main.attributes["sym_name"] = ir.StringAttr.get("step")
    main.attributes["sym_visibility"] = ir.StringAttr.get("private")
    text = module.operation.get_asm(large_elements_limit=None).rstrip()
    state = list(map(str, inputs[2:]))
    stacked = [_tensor(kind, batches) for kind in inputs[:2]]
    types = ["tensor<i32>", *stacked, *state]
    names = ["x_all", "y_all", *(f"s{i}" for i in range(len(state)))]
    new = [f"%s{i}" for i in range(len(state))]
    for index, output in updates:
        new[index] = f"%new#{output}"
    initial = ["%first", *(f"%{name}_0" for name in names)]
    carried = ["%i", *(f"%{name}" for name in names)]
    loop = LOOP.format(
        parameters=", ".join(map("{}: {}".format, initial[1:], types[1:])),
        state_types=", ".join(state),
        size=len(types),
        assignments=", ".join(map("{} = {}".format, carried, initial)),
        types=", ".join(types),
        steps=steps,
        batches=batches,
        slices="".join(map(_slice, "xy", inputs, stacked)),
        outputs=len(outputs),
        step_inputs=", ".join(["%x", "%y", *carried[3:]]),
        input_types=", ".join(map(str, inputs)),
        output_types=", ".join(map(str, outputs)),
        next_values=", ".join(["%next", "%x_all", "%y_all", *new]),
        results=", ".join(f"%end#{i + 3}" for i in range(len(state))),
    )
    return text.removesuffix("}") + loop


def _tensor(kind, first):
    """Returns the type of `first` stacked tensors."""
    sizes = "x".join(map(str, [first, *ir.RankedTensorType(kind).shape]))
    return f"tensor<{sizes}x{ir.RankedTensorType(kind).element_type}>"


def _slice(name, kind, stacked):
    """Returns the operations that select a batch."""
    shape = ir.RankedTensorType(kind).shape
    return SLICE.format(
        name=name,
        indices=", ".join(["%batch"] + ["%zero"] * len(shape)),
        sizes=", ".join(map(str, [1, *shape])),
        all=stacked,
        index_types=", ".join(["tensor<i32>"] * (1 + len(shape))),
        slice=_tensor(kind, 1),
        type=kind,
    )
