"""`kiln.onnx.export`, as PyTorch's callers write it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

from kiln import _core
from kiln.errors import describe, message
from kiln.export.program import ExportedProgram
from kiln.export.program import export as export_program
from kiln.late import later
from kiln.nn import Module
from kiln.tracing.dims import Dim

_model_of = later("kiln.onnx.model", "model_of")
_verified = later("kiln.onnx.running", "verified")
_write_atomically = later("kiln.files", "write_atomically")

FileLike = str | os.PathLike[str] | IO[bytes]
Axes = Mapping[str, Mapping[int, str] | Sequence[int]]


class ONNXProgram:
    """A program and the ONNX model it is written as."""

    def __init__(self, program: ExportedProgram, data: bytes, inputs: Sequence[str] = ()) -> None:
        self.exported_program = program
        self.data = data  # the file
        self._inputs = inputs  # what it calls the first ones

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program, by kiln."""
        return self.exported_program(*args, **kwargs)

    def save(self, destination: FileLike) -> None:
        """Writes the file."""
        write(self.data, destination)

    def verify(self, cases: int = 8, *, seed: int = 0) -> Any:
        """Runs the program and, by ONNX Runtime, the model, at the sizes and on the numbers that
        `ExportedProgram.verify` takes: a report with the largest difference of every output, in ULP of its
        largest element, and what may be expected of other orders of rounding; `holds` says whether all are
        within that. ImportError where ONNX Runtime is not installed.
        """
        program = self.exported_program
        names = [*self._inputs, *(x.name for x in program._captured.inputs[len(self._inputs) :])]
        return _verified(program, self.data, names, cases, seed)

    def __repr__(self) -> str:
        return f"ONNXProgram({len(self.data)} bytes)"


@_core.Function
def export(
    model: Any,
    args: Any = (),
    f: FileLike | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    verbose: bool | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    dynamo: bool = True,
    external_data: bool = True,
    dynamic_shapes: Any = None,
    dynamic_axes: Axes | None = None,
    export_params: bool = True,
    keep_initializers_as_inputs: bool = False,
    do_constant_folding: bool = True,
    optimize: bool = True,
    verify: bool = False,
) -> ONNXProgram:
    """Writes a model as an ONNX file, if `f` says where: a module or a function, traced with example
    arguments, a module as in evaluation; or an ExportedProgram. Parameters and buffers are in the file.

    `input_names`, `output_names`: of the first ones, by their order. `dynamic_axes`: which dims of which
    input vary, {"x": {0: "batch"}} or {"x": [0]}; or `dynamic_shapes`, as of `kiln.export.export`.
    `opset_version`: of the operators, 18 to 26, the largest unless given, or 21 of a program that draws
    random numbers, as ONNX Runtime has them up to there. What `verbose`, `dynamo`, `external_data`,
    `do_constant_folding` and `optimize` choose in PyTorch changes nothing here.

    `verify`: runs the model by ONNX Runtime beside the program and prints how far each output is away, at the
    sizes that `ExportedProgram.verify` takes: `ONNXProgram.verify`.

    ValueError for an op without ONNX form, with its line, for names that are twice.

    >>> import io
    >>> made = kiln.onnx.export(kiln.nn.Linear(2, 1), kiln.ones(3, 2), io.BytesIO())
    >>> made.data[:2]
    b'\\x08\\r'
    """
    if not export_params or keep_initializers_as_inputs:
        raise NotImplementedError("onnx.export: parameters are in the file, and are no inputs of the model")
    program = model
    if not isinstance(model, ExportedProgram):
        args = tuple(args) if isinstance(args, (tuple, list)) else (args,)
        if dynamic_axes is not None and dynamic_shapes is None:
            dynamic_shapes = _shapes(model, args, dict(kwargs or {}), input_names, dynamic_axes)
        program = _exported(model, args, kwargs, dynamic_shapes)
    data = _model_of(program._captured, opset_version, input_names, output_names)
    made = ONNXProgram(program, data, input_names or ())
    if f is not None:
        write(data, f)
    if verify:
        print(f"{program._captured.name} by ONNX Runtime: {made.verify()}")
    return made


def _exported(model: Any, args: tuple[Any, ...], kwargs: Any, shapes: Any) -> ExportedProgram:
    """The program, of a module that is in training as if it were not."""
    training = [m for m in model.modules() if m.training] if isinstance(model, Module) else []
    for m in training:
        m.training = False
    try:
        return export_program(model, args, kwargs, dynamic_shapes=shapes)
    finally:
        for m in training:
            m.training = True


def _shapes(model: Any, args: tuple[Any, ...], kwargs: Any, names: Sequence[str] | None, axes: Axes) -> Any:
    """What `dynamic_axes` says of tensors, for each argument; names of results say nothing."""
    given = [*args, *kwargs.values()]
    if any(not isinstance(x, _core.Tensor) for x in given):
        raise NotImplementedError(
            "onnx.export: dynamic_axes of arguments that are no tensors: give dynamic_shapes"
        )
    known = list(names or ())[: len(given)]
    parameters: list[str] = []
    if kwargs or len(known) < len(given):  # which have the names that the program gives them
        made = export_program(model, args, kwargs)._captured
        known += [x.name for x in made.inputs][len(known) :]
        parameters = made.parameters
    shapes: list[Any] = []
    for name in known:
        own = axes.get(name, {})
        dims = (
            {d: Dim(n) for d, n in own.items()} if isinstance(own, Mapping) else dict.fromkeys(own, Dim.AUTO)
        )
        shapes.append(dims or None)
    return dict(zip([*parameters[: len(args)], *kwargs], shapes)) if kwargs else tuple(shapes)


def write(data: bytes, destination: FileLike) -> None:
    """Writes a file in one move, or into one that is open."""
    if isinstance(destination, (str, os.PathLike)):
        _write_atomically(os.fspath(destination), [data])
    elif hasattr(destination, "write"):
        destination.write(data)
    else:
        raise TypeError(
            message("onnx.export", "a path or an open file", describe(destination), "give either")
        )
