"""An exported program: a module that runs a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kiln import _core
from kiln.errors import describe, message, warn
from kiln.graph.graph import Graph
from kiln.late import later
from kiln.nn.module import Module
from kiln.nn.parameter import Parameter
from kiln.table.callables import name_constructor
from kiln.tracing.captured import Captured, Kept, State
from kiln.tracing.program import Program, above
from kiln.tracing.trees import build, flatten

_settled = later("kiln.tracing.settled", "settled")
_save = later("kiln.export.files", "save")
_to_native = later("kiln.standalone.native", "to_native")
_to_wasm = later("kiln.standalone.wasm", "to_wasm")
_copy, _deep_copy = later("copy", "copy"), later("copy", "deepcopy")
above["converted"] = later("kiln.export.converted", "converted")


class _Part(Module):
    """What holds the tensors of one module of the model."""


class ExportedProgram(Module):
    """A program with its tensors: a module, whose parameters and buffers have the names they had in the
    model.

    Arguments are checked at each call, in the names of the inputs, and results come in the containers the
    model gave them in. Buffers that the model wrote are written here too; random numbers are drawn anew at
    each call, the same as the model would draw.
    """

    def __init__(
        self, captured: Captured, source: Callable[..., Any] | None = None, example: Any = None
    ) -> None:
        super().__init__()
        self._source = source, example  # what it was made of; not in a file
        self._constants: dict[str, Any] = {}
        homes: list[tuple[dict[str, Any], str]] = []
        for state in captured.state:
            homes.append(_home(self, state, state.name not in captured.unsaved))
        self._homes = homes
        self._program = Program(captured, homes)

    @property
    def _captured(self) -> Captured:
        """What it computes, with the tensors it has now: one may have been exchanged."""
        found = self._program.current()
        now = [held[key] for held, key in self._homes]
        if any(x is not own.tensor for x, own in zip(now, found.state)):
            found = _copy(found)
            found.state = [own._replace(tensor=x) for own, x in zip(found.state, now)]
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._program.fast(*args, **kwargs)

    def run(self, inputs: list[Any]) -> list[Any]:
        """The tensors of the results, of the inputs' tensors in the order of the program's inputs."""
        found = self._captured
        args, kwargs = build(found.in_tree, iter([inputs[found.distinct.index(k)] for k in found.aliases]))
        results: list[Any] = []
        flatten(self(*args, **kwargs), results)
        return results

    def save(self, f: Any, *, extra_files: dict[str, Any] | None = None) -> None:
        """Writes the program into a file, as `kiln.export.save`."""
        _save(self, f, extra_files=extra_files)

    def to_onnx(
        self,
        f: Any = None,
        *,
        opset: int | None = None,
        input_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        verify: bool = False,
    ) -> Any:
        """The program as an ONNX model, written into a file if `f` says where; `opset` is the version of the
        operators, 18 to 26. `verify`: runs it by ONNX Runtime and prints how far its outputs are away. See
        `kiln.onnx.export`.
        """
        from kiln.onnx.exporting import export

        return export(
            self,
            f=f,
            opset_version=opset,
            input_names=input_names,
            output_names=output_names,
            verify=verify,
        )

    def to_native(
        self,
        folder: Any,
        *,
        name: str = "model",
        target: str | None = None,
        weights: str | None = None,
        verify: bool = False,
    ) -> str:
        """Writes the program as a native library into a folder, and gives its path, `libNAME.so`: an ELF file
        that needs nothing at run time. Beside it are an object for other linkers, a C header that says how it
        is called, and examples in C and Python.

        `name`: an identifier, with which the functions begin. `target`: "x86-64-v3", "x86-64-v4" or
        "aarch64", this machine's unless given; results have the bits of kiln on that level. Of
        "x86_64-windows", "x86_64-macos" and "aarch64-macos" an object for that system's linker and the header
        are written, and the path is the object's, NAME.obj or NAME.o; nobody has run one there. `weights`:
        "inside", or "beside" in NAME.safetensors, which callers read; inside up to 1 GiB unless given.
        `verify`: runs the library at the sizes that `verify` takes and prints how far its outputs are away.

        ValueError for a name that is no identifier or a target that is not known, OSError where the folder
        cannot be written.
        """
        path: str = _to_native(self, folder, name, target, weights, verify)
        return path

    def to_wasm(
        self, folder: Any, *, name: str = "model", verify: bool = False, relaxed: bool = False
    ) -> str:
        """Writes the program as a WebAssembly module into a folder, and gives its path, `NAME.wasm`: it needs
        simd128 and imports nothing. Beside it are an ES module that runs it, with TypeScript types, and a
        page that does so in a browser, also from the file system (of a module of up to 64 MiB).

        WebAssembly has no fused multiply-add: results agree with those here within rounding, and are the same
        on every engine. `name`: an identifier, ValueError for another one. `verify`: runs the module by
        Node.js at the sizes that `verify` takes and prints how far its outputs are away. `relaxed`: products
        of matrices use the instructions of relaxed SIMD, half as long where the processor fuses; the engine
        must have it (Chrome 114 and Node.js 21 do, Node.js 20 by `--experimental-wasm-relaxed-simd`), and
        results differ between processors, within the same bounds.
        """
        path: str = _to_wasm(self, folder, name, verify, relaxed)
        return path

    def module(self, check_guards: bool = True) -> Module:
        """The program as a module: itself. It always checks its arguments."""
        return self

    @property
    def graph_module(self) -> Any:
        """The calls it is made of as a `kiln.fx.GraphModule` of parameters, buffers, constants and arguments,
        in the order of `graph_signature`; made anew each time.
        """
        return self._lifted()[0]

    @property
    def graph_signature(self) -> Any:
        """What the inputs and outputs of `graph_module` are."""
        return self._lifted()[1]

    def _lifted(self) -> Any:
        from kiln.export.graph_module import lifted

        return lifted(self._captured)

    @property
    def module_call_graph(self) -> Any:
        """The program and every module of the model, as a list of `ModuleCallEntry`: a name `fqn`, and the
        `signature` of the call where `preserve_module_call_signature` named it (else None), in the nodes of
        `graph_module`.
        """
        from kiln.export.call_graph import module_calls

        return module_calls(self._captured)

    @property
    def call_spec(self) -> Any:
        """How arguments and results are built of tensors: `in_spec` and `out_spec`, as of
        `kiln.utils._pytree`.
        """
        from kiln.export.call_graph import call_spec

        return call_spec(self._captured)

    @property
    def state_dict(self) -> Any:
        """The parameters and buffers by name, as a dict; called, what a module's `state_dict()` gives."""
        return _States(self)

    def run_decompositions(self, decomp_table: Any = None, decompose_custom_triton_ops: bool = False) -> Any:
        """A program that computes the same of primitives alone: `linear` is a product and a sum there. It has
        the tensors of this one. `decomp_table`: ops by what they are to be made of is not known here.
        """
        if decomp_table:
            raise NotImplementedError(
                "run_decompositions: every composite is decomposed as kiln has it; leave decomp_table out"
            )
        from kiln.export.reading import decomposed

        tensors = [held[key] for held, key in self._homes]
        made = ExportedProgram(decomposed(self._captured, tensors), *self._source)
        made.train(self.training)
        return made

    def validate(self) -> None:
        """Checks every rule of the graph; VerifyError at the first that it breaks."""
        from kiln.graph.verify import verify

        verify(self.graph)

    @property
    def graph(self) -> Graph:
        """The graph: inputs, then parameters, buffers and constants, then numbers; composites are nodes."""
        return self._captured.graph

    @property
    def range_constraints(self) -> dict[str, tuple[int, int | None]]:
        """The least and the largest of every size that varies, by name; None: any."""
        return {name: (dim.min, dim.max) for name, dim in self._captured.dims.items()}

    @property
    def constants(self) -> dict[str, Any]:
        """Tensors that are neither parameters nor buffers, by name."""
        return dict(self._constants)

    tensor_constants = constants

    @property
    def example_inputs(self) -> Any:
        """The arguments (args, kwargs) that the program was made with; None of one that was loaded."""
        return self._source[1]

    def verify(self, cases: int = 8, *, against: Callable[..., Any] | None = None, seed: int = 0) -> Any:
        """Runs the program and the model it was made of at the corners of the declared sizes (0 or 1 where
        allowed, odd ones, the largest) and at `cases` random ones: a report with the largest difference of
        every output in units in the last place, 0 if the bits are equal. `against`: the model, of a program
        that was loaded.
        """
        from kiln.export.verification import verified

        return verified(self, cases, against, seed)

    def __deepcopy__(self, memo: dict[int, Any]) -> ExportedProgram:
        state = [
            own._replace(tensor=_deep_copy(held[key], memo))
            for own, (held, key) in zip(self._captured.state, self._homes)
        ]
        captured = _copy(self._captured)
        captured.state = state
        made = memo[id(self)] = ExportedProgram(captured, *self._source)
        made.train(self.training)
        return made

    def _get_name(self) -> str:
        return "ExportedProgram"

    def __str__(self) -> str:
        from kiln.export.shown import described

        return described(self)


class _States(dict[str, Any]):
    """A program's parameters, then its buffers, by name."""

    def __init__(self, program: ExportedProgram) -> None:
        self._program = program
        held = Module.state_dict(program, keep_vars=True)
        super().__init__({name: held[name] for name, _ in program.named_parameters()} | held)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Module.state_dict(self._program, *args, **kwargs)


def _home(root: Module, state: State, saved: bool) -> tuple[dict[str, Any], str]:
    """Puts a tensor where its name says, and gives the dict and key that hold it."""
    name, kind, tensor = state
    if kind == "constant":
        constants = root._constants
        constants[name] = tensor
        return constants, name
    *path, key = name.split(".")
    module = root
    for part in path:
        found = module._modules.get(part)
        if found is None:
            check_free(module, part, name)
            found = module._modules[part] = _Part()
        module = found
    check_free(module, key, name)
    if kind == "parameter":
        own = (
            tensor if isinstance(tensor, Parameter) else Parameter(tensor, requires_grad=tensor.requires_grad)
        )
        module._parameters[key] = own
        return module._parameters, key
    module._buffers[key] = tensor
    module._keep(key, saved)
    return module._buffers, key


def check_free(module: Module, key: str, name: str, what: str = "tensor") -> None:
    """ValueError where a module has something of a name already, its own tables among that."""
    if key in vars(module) or any(key in x for x in (module._parameters, module._buffers, module._modules)):
        raise ValueError(
            f"export: a program holds no {what} called {name!r:.80}: it has something else as {key!r:.40}"
        )


@_core.Function
def export(
    mod: Module | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    strict: bool = False,
    preserve_module_call_signature: tuple[str, ...] = (),
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> ExportedProgram:
    """What a module or function computes of arguments like these, as a program.

    `dynamic_shapes` says which sizes may vary, by input (`{"x": {0: Dim("batch")}}`), one entry for each
    argument, a `ShapesCollection` or `AdditionalInputs`; the others are those of `args`. The model is traced
    in the mode it is in, `train()` or `eval()`.
    What depends on the value of a tensor is refused with its line, by a RuntimeError. The model's parameters
    and buffers are the program's too, not copies.

    >>> import kiln
    >>> program = kiln.export.export(kiln.nn.Linear(3, 2), (kiln.ones(4, 3),))
    >>> program(kiln.ones(4, 3)).shape
    kiln.Size([4, 2])
    """
    return _exported("export", mod, args, kwargs, dynamic_shapes, "refuse", preserve_module_call_signature)


@_core.Function
def draft_export(
    mod: Module | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    preserve_module_call_signature: tuple[str, ...] = (),
    strict: bool = False,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> ExportedProgram:
    """As `export`, of a model that goes by the values of tensors too: it goes by those of the example, and a
    call with others raises. A UserWarning lists the lines that read them.

    >>> import kiln
    >>> program = kiln.export.draft_export(lambda x: x * 2 if x.sum() > 0 else -x, (kiln.ones(2),))
    >>> program(kiln.tensor([3.0, 1.0]))
    tensor([6., 2.])
    >>> program(kiln.tensor([-3.0, 1.0]))
    Traceback (most recent call last):
        ...
    RuntimeError: ... read True when the program was made, which goes by that value; here it is False
    """
    made = _exported(
        "draft_export", mod, args, kwargs, dynamic_shapes, "check", preserve_module_call_signature
    )
    lines = dict.fromkeys(check.line for check in made._captured.checks if isinstance(check, Kept))
    if lines:
        warn(
            f"draft_export: {made._captured.name} goes by values of the example, which every call checks: "
            f"{'; '.join(lines)}",
            UserWarning,
        )
    return made


def _exported(
    asked: str,
    mod: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    on_data: str,
    preserved: Sequence[str],
) -> ExportedProgram:
    if not isinstance(args, tuple):
        raise TypeError(message(asked, "a tuple of example arguments", describe(args), "(x,) holds one"))
    if not callable(mod):
        raise TypeError(message(asked, "a module or a function", describe(mod)))
    kwargs = dict(kwargs or {})
    shapes = dynamic_shapes
    if hasattr(shapes, "dynamic_shapes"):  # a ShapesCollection, or AdditionalInputs
        shapes = shapes.dynamic_shapes(mod, args, kwargs)
    made = ExportedProgram(
        _settled(mod, args, kwargs, shapes, on_data, True, tuple(preserved)), mod, (args, kwargs)
    )
    made.train(getattr(mod, "training", False))
    if hasattr(dynamic_shapes, "verify"):
        dynamic_shapes.verify(made)
    return made


name_constructor(ExportedProgram)
