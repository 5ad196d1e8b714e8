"""Converts exported training steps to programs that JAX can compile.

    python -m research.bench.gpu.convert FOLDER

Each step becomes two programs in StableHLO: the step itself, and a loop of 64
steps. Existing programs that are newer than the exported step are kept. The
command needs JAX, but neither TensorFlow nor a GPU. It uses internals of JAX
and was tested with JAX 0.10.
"""

import argparse
import gzip
import io
import json
import pathlib
import re
import sys

import numpy as np
from jax._src.interpreters import mlir as jax_mlir
from jax._src.lib import _jax
from jax._src.lib.mlir import ir

STEPS = 64

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


def main(arguments=None):
    """Converts the steps in the folder of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m research.bench.gpu.convert",
        description="Convert exported training steps for JAX.",
    )
    parser.add_argument("folder", metavar="FOLDER", type=pathlib.Path)
    folder = parser.parse_args(arguments).folder
    paths = sorted(folder.glob("*/*.hlo.gz"))
    if not paths:
        parser.error(
            "`FOLDER` must contain steps of `research.bench.gpu.export`. "
            f"Received: {folder}"
        )
    for path in paths:
        loop = _sibling(path, ".loop.gz")
        if not loop.exists() or loop.stat().st_mtime < path.stat().st_mtime:
            convert(path, folder / "arrays")
            print(f"{path.parent.name}, {loop.name.split('.')[0]}", flush=True)


def convert(path, arrays):
    """Writes the two programs of a step.

    Args:
        path: Path of a `.hlo.gz` file.
        arrays: Path of the folder of the arrays.
    """
    record_path = _sibling(path, ".json")
    record = json.loads(record_path.read_text())
    with gzip.open(arrays / f"{record['targets']}.npy.gz") as file:
        batches = len(np.load(file))
    with jax_mlir.make_ir_context():
        module = parsed(gzip.decompress(path.read_bytes()))
        record["updates"] = updates(module)
        _check(module, record)
        _write(module, _sibling(path, ".step.gz"))
        text = _loop_text(module, record["updates"], batches)
        _write(ir.Module.parse(text), _sibling(path, ".loop.gz"))
    record["loop_steps"] = STEPS
    record_path.write_text(json.dumps(record))


def _sibling(path, suffix):
    return path.with_name(path.name.removesuffix(".hlo.gz") + suffix)


def parsed(program):
    """Parses a program of XLA, in a context of `jax_mlir.make_ir_context`.

    Args:
        program: Bytes, the serialized HLO.

    Returns:
        The module in StableHLO, which does not have copies.
    """
    module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(program))
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


def updates(module):
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


def _check(module, record):
    """Checks that the program has the expected parameters and outputs."""
    kind = _main(module).type
    assert len(kind.inputs) == 2 + len(record["state"])
    assert len(kind.results) == record["results"] + len(record["updates"])


def _main(module):
    (function,) = [
        operation
        for operation in module.body.operations
        if operation.attributes["sym_name"].value == "main"
    ]
    return function


def bytecode(module):
    """Returns a module as bytes, which JAX can compile."""
    module.operation.verify()
    file = io.BytesIO()
    module.operation.write_bytecode(file)
    return file.getvalue()


def _write(module, path):
    path.write_bytes(gzip.compress(bytecode(module), mtime=0))


def _loop_text(module, updates, batches):
    """Returns the text of a module that takes `STEPS` steps."""
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
        steps=STEPS,
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


if __name__ == "__main__":
    sys.exit(main())
