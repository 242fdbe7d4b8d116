"""`kiln.onnx.load`: an ONNX model as an exported program; `kiln.onnx.read`: as a module."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from kiln import _core, ops
from kiln.errors import describe, message
from kiln.export.program import ExportedProgram, export
from kiln.late import later
from kiln.onnx.reading.refusal import WRONG, LoadError, UnsupportedError, identifier
from kiln.serialization.source import Damaged, opened
from kiln.tracing.dims import Dim
from kiln.tracing.recorder import TracingError

if TYPE_CHECKING:
    from kiln.onnx.reading.models import Graph, Input
    from kiln.onnx.reading.module import ONNXModule

_module, _read_model = (
    later("kiln.onnx.reading.module", "ONNXModule"),
    later("kiln.onnx.reading.models", "read"),
)
_known_of = later("kiln.onnx.reading.weights", "known_of")

Source = str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes]
NO_TENSOR = ("", "sequence", "map", "optional", "sparse")  # what an input is said to be
SIZES = (8, 224, 2)  # of dims that vary, in examples that are tried one after the other


@_core.Function
def read(f: Source, *, values: Mapping[str, Any] | None = None) -> ONNXModule:
    """An ONNX model as a module that runs its nodes one after the other: floats are its parameters.

    `f`: a path, the bytes of a file, or an open one. Shapes, branches and loops may go by values. Weights in
    files of their own are read where they lie in the folder of the path. `values`: tensors that inputs always
    are, by name; these are no inputs of the module. LoadError, a ValueError, for what is no whole model;
    UnsupportedError, one of those, for what kiln has not.

    >>> import kiln
    >>> data = kiln.onnx.export(kiln.nn.ReLU(), kiln.ones(2)).data
    >>> kiln.onnx.read(data)(kiln.tensor([-1.0, 3.0]))
    tensor([0., 3.])
    """
    folder = None
    if isinstance(f, (bytes, bytearray, memoryview)):
        data = memoryview(f).cast("B")
    else:
        if isinstance(f, (str, os.PathLike)):
            folder = os.path.dirname(os.path.abspath(os.fspath(f)))
        elif not hasattr(f, "read"):
            raise TypeError(message("onnx.read", "a path, bytes or an open file", describe(f)))
        with opened(f) as source:
            try:
                data = memoryview(source.part(0, source.size))
            except Damaged as error:
                raise LoadError(f"the file cannot be read: {error}") from None
    model = _read_model(data, folder)
    module: ONNXModule = _module(model._replace(graph=_settled(model.graph, dict(values or {}))))
    module.train(False)
    return module


def _settled(graph: Graph, values: dict[str, Any]) -> Graph:
    """A graph some of whose inputs are tensors of its own."""
    unknown = set(values) - {x.name for x in graph.inputs}
    if unknown:
        raise ValueError(f"onnx.read: the model has no input called {min(unknown)!r}")
    for name, x in values.items():
        if not isinstance(x, _core.Tensor):
            raise TypeError(message("onnx.read", f"a tensor as the value of {name}", describe(x)))
    own = {name: _known_of(x) or x for name, x in values.items()}
    inputs = [x for x in graph.inputs if x.name not in values]
    return graph._replace(inputs=inputs, tensors={**graph.tensors, **own})


@_core.Function
def load(
    f: Source,
    args: Sequence[Any] | None = None,
    *,
    dims: Mapping[str, Dim | int] | None = None,
    values: Mapping[str, Any] | None = None,
) -> ExportedProgram:
    """An ONNX model as a program: it runs, has gradients, is saved and written as ONNX again.

    `args`: example inputs; made up as the model says its inputs are, unless given. Sizes that have a name in
    the model, or none, vary; `dims` says by name between which bounds, or which number one is. `values` and
    errors as of `kiln.onnx.read`, which makes a module of what is no program: of a model whose shapes go by
    values.

    >>> import kiln
    >>> data = kiln.onnx.export(kiln.nn.Linear(3, 2), kiln.ones(4, 3), dynamic_axes={"input": {0: "n"}}).data
    >>> program = kiln.onnx.load(data)
    >>> program(kiln.ones(5, 3)).shape
    kiln.Size([5, 2])
    """
    module = read(f, values=values)
    wanted = dict(dims or {})
    inputs = module._model.graph.inputs
    known = {n for x in inputs for n in x.shape or () if isinstance(n, str)}
    unknown = set(wanted) - known
    if unknown:
        raise ValueError(f"onnx.load: the model has no size called {min(unknown)!r}, but {sorted(known)}")
    refusal: LoadError | None = None
    for size in SIZES if args is None else SIZES[:1]:
        shapes = [_shape(x, wanted) for x in inputs]
        given = (
            tuple(args) if args is not None else tuple([_example(x, s, size) for x, s in zip(inputs, shapes)])
        )
        specs = tuple([_spec(x, s) for x, s in zip(given, shapes)])
        try:
            return _exported(module, given, specs)
        except LoadError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def _exported(module: ONNXModule, given: tuple[Any, ...], specs: tuple[Any, ...]) -> ExportedProgram:
    module.followed = True
    try:
        return export(module, given, dynamic_shapes=specs if given else None)
    except LoadError:
        raise
    except TracingError as error:
        raise UnsupportedError(f"no program is made of the model: {error}") from error
    except WRONG as error:
        raise LoadError(f"no program is made of the model: {error}") from error
    finally:
        module.followed = False


def _shape(x: Input, wanted: Mapping[str, Dim | int]) -> list[Any]:
    """The sizes of an input: numbers, and a Dim where one varies."""
    if x.shape is None:
        return []
    shape: list[Any] = []
    for d, n in enumerate(x.shape):
        if isinstance(n, str):
            n = wanted.get(n) or Dim(identifier(n))
        shape.append(Dim(identifier(f"{x.name}_{d}")) if n is None else n)
    return shape


def _example(x: Input, shape: list[Any], size: int) -> Any:
    """Ones of a shape whose sizes that vary are such."""
    if x.dtype in NO_TENSOR:
        raise UnsupportedError(f"input {x.name!r:.80} is no tensor of a known dtype: give args")
    if x.shape is None:
        raise LoadError(f"the model does not say how many dims its input {x.name!r:.80} has: give args")
    sizes = [_within(n, size) if isinstance(n, Dim) else n for n in shape]
    return ops.ones(tuple(sizes), dtype=getattr(_core, x.dtype))


def _within(dim: Dim, size: int) -> int:
    """A size that a Dim admits, near one."""
    base = max(dim.min or 0, size)
    base = base if dim.max is None else min(base, dim.max)
    return base * dim.times + dim.plus


def _spec(example: Any, shape: list[Any]) -> dict[int, Any] | None:
    return {d: n for d, n in enumerate(shape) if isinstance(n, Dim)} or None
