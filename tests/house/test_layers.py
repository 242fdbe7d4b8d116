"""The shape of the house: who imports whom, how long files are, and what `import kiln` costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
KILN = ROOT / "kiln"
NATIVE = ROOT / "native"

# part -> the parts it may import, for types too. Anything may import errors, late, tuples and absent; a part
# may import itself. `_typed`, which the build writes from ops, is of ops.
ALLOWED = {
    "errors": set(),
    "late": set(),
    "tuples": set(),
    "absent": {"_core", "absent_names"},
    "absent_names": set(),
    "files": set(),
    "_core": set(),
    "graph": {"_core"},
    "scalars": set(),
    "table": {"_core", "graph", "scalars"},
    "ops": {"_core", "graph", "table", "scalars", "device", "layout"},
    "random": {"ops"},
    "device": {"_core", "table"},
    "layout": set(),
    "bars": set(),
    "backends": {"_core", "codegen", "table"},
    # devices that are not here, and the one that is
    "cuda": {"_core", "device", "amp", "no_device", "storage", "table"},
    "no_device": {"_core", "device", "table"},
    "xpu": {"no_device"},
    "mtia": {"no_device"},
    "mps": {"device"},
    "accelerator": {"device", "table"},
    "cpu": {"_core", "amp", "table"},
    "switches": {"_core", "backends", "table"},
    "version": set(),
    "quasirandom": {"_core", "ops", "random", "table"},
    "return_types": {"ops"},
    "types": {"_core", "device", "ops", "table"},
    "foreach": {"_core", "ops"},
    "futures": {"table"},
    "overrides": {"_core", "table"},
    # names that refuse when they are used
    "jit": {"nn", "table", "tracing", "export", "scripting"},
    "scripting": {"_core", "graph", "ops", "table", "capture", "func", "tracing", "export", "nn"},
    # export: make_fx, whose graphs are of what traces follow
    "fx": {
        "_core", "device", "layout", "table", "switches", "utils", "capture", "nn", "autograd", "ops",
        "types", "symbolic", "export",
    },
    "onnx": {
        "_core", "files", "serialization", "version", "graph", "ops", "table", "scalars", "tracing", "export",
        "nn",
    },
    "library": {"_core", "autograd"},
    "hub": {"bars", "files", "serialization"},
    "tensor": {"_core", "ops", "printing", "device", "layout", "autograd", "table"},
    "printing": {"_core", "ops"},
    "interpret": {"_core", "graph", "ops", "table", "scalars"},
    "codegen": {"_core", "ops", "files", "table", "scalars"},
    "passes": {"_core", "graph", "ops", "codegen", "table", "scalars"},
    # fx: a backend of the program's own gets what fx captures; tracing: functions with their own derivative;
    # viz, files: what explain() says as a page
    "capture": {
        "_core", "graph", "ops", "tensor", "passes", "codegen", "table", "scalars", "fx", "tracing", "viz",
        "files",
    },
    "tracing": {
        "amp", "switches",
        "_core", "graph", "ops", "table", "scalars", "codegen", "passes", "capture", "func", "nn", "device",
        "autograd",
    },
    # onnx, standalone: a program writes itself as a model, and as a library
    "export": {
        "onnx", "standalone", "_core", "graph", "ops", "codegen", "passes", "table", "tracing", "nn", "files",
        "serialization", "version", "viz", "random", "capture", "fx", "utils",
    },
    # programs as libraries of their own
    "standalone": {
        "_core", "capture", "codegen", "export", "files", "graph", "ops", "passes", "serialization", "table",
        "tracing", "version",
    },
    # graphs that are defined, and what is made of them: run, saved, drawn
    "symbolic": {
        "_core", "graph", "ops", "table", "capture", "passes", "tracing", "func", "nn", "export", "viz",
    },
    "autograd": {"_core", "graph", "ops", "table"},
    "func": {"_core", "graph", "ops", "passes", "capture", "autograd", "table", "scalars"},
    "batching": {"_core", "ops", "func", "table", "capture", "graph"},
    "nn": {"backends", "_core", "ops", "tensor", "autograd", "capture", "table", "layout", "func"},
    "linalg": {"ops", "table"},
    "signal": {"ops", "table"},
    "masked": {"_core", "ops", "table"},
    "array_api": {"_core", "ops", "device", "linalg"},
    "distributions": {"_core", "ops", "autograd", "linalg", "special", "table"},
    "optim": {"_core", "ops", "tensor", "autograd", "table", "nn"},
    "multiprocessing": {"_core", "ops", "nn"},
    "utils": {
        "_utils",
        "_core", "ops", "tensor", "autograd", "table", "capture", "files", "serialization", "nn",
        "multiprocessing", "hub", "version", "func",
    },  # fmt: skip
    "datasets": {"_core", "ops", "tensor", "utils"},
    "serialization": {"_core", "ops", "tensor", "files", "device", "layout", "nn", "table"},
    "storage": {"_core", "device", "ops", "serialization"},
    "_utils": {"_core", "device", "ops", "serialization"},
    "_tensor": {"_core", "serialization"},
    "cache": {"codegen"},
    "compiler": {"_core", "capture", "table"},
    "special": {"ops", "table"},
    "profiler": {"_core", "ops", "capture", "autograd"},
    "amp": {"_core", "device", "ops", "tensor", "autograd", "table"},
    "distributed": {
        "_core", "ops", "tensor", "autograd", "optim", "nn", "device", "futures", "serialization",
    },  # fmt: skip
    "viz": {
        "_core", "graph", "ops", "tensor", "passes", "codegen", "capture", "files", "table", "autograd",
        "scalars",
    },
}  # fmt: skip
# these see everything below them
TOPS = {"__init__", "__main__", "as_torch", "cli", "einops", "testing"}

# what is imported by the function that needs it, with the reason: third-party modules wherever it is
LATE = {
    "numpy": "a program that makes no array of it needs none",
    "mpi4py": "an extra",
    "scipy": "an extra",
    "matplotlib": "an extra",
    "tqdm": "an extra",
    "tensorboard": "who writes for it has it",
}
# anything else file by file, by `import`, `later` or `import_module` ("*": a module whose name is computed)
LATE_IN: dict[str, dict[str, str]] = {
    # names of kiln and of its parts, which come with the module that has them
    "kiln/__init__.py": {
        "*": "a part is imported when it is first named",
        "kiln.func": "rules of vmap alone",
        "kiln.foreach": "functions of lists, of which few programs call one",
    },
    "kiln/autograd/__init__.py": {"*": "as kiln's own parts"},
    "kiln/capture/compile.py": {
        "kiln.capture.pure.cell": "few functions are pure, and what traces captures",
        "kiln.fx.backends": "few programs have a backend of their own",
        "kiln.capture.whole": "few programs ask for one graph",
    },
    "kiln/capture/explain.py": {
        "kiln.viz.compiled": "for who looks at the page",
        "kiln.files": "for who saves it",
    },
    "kiln/scripting/context.py": {
        "kiln.scripting.sizes": "numbers, which need a run that knows of them",
        "kiln.scripting.failing": "numbers, which need a run that knows of them",
    },
    "kiln/onnx/reading/loading.py": {
        "kiln.onnx.reading.module": "for who reads a model",
        "kiln.onnx.reading.models": "for who reads a model",
        "kiln.onnx.reading.weights": "for who reads a model",
    },
    "kiln/onnx/exporting.py": {
        "kiln.onnx.model": "for who writes a model",
        "kiln.onnx.running": "for who verifies one",
        "kiln.files": "for who has a path",
    },
    "kiln/export/program.py": {
        "kiln.onnx.exporting": "writing a program for other runtimes is asked for",
        "kiln.standalone.native": "with NumPy and LLVM, for who writes a library",
        "kiln.standalone.wasm": "with NumPy and LLVM, for who writes a module",
        "kiln.tracing.settled": "for who makes a program, not for who loads one",
        "kiln.export.files": "for who saves one",
        "kiln.export.verification": "with NumPy, for who verifies",
        "kiln.export.shown": "for who looks at a program",
        "kiln.export.call_graph": "for who asks for calls of modules",
        "kiln.export.graph_module": "for who changes a program",
        "kiln.export.reading": "for who changes a program",
        "kiln.export.converted": "for who changes a program",
        "kiln.graph.verify": "for who asks whether a program is right",
        "copy": "for who copies a program",
    },
    "kiln/export/__init__.py": {"*": "as kiln's own parts"},
    "kiln/standalone/native.py": {"kiln.standalone.verifying": "for who verifies"},
    "kiln/standalone/wasm.py": {"kiln.standalone.verifying": "for who verifies"},
    "kiln/export/files.py": {
        "kiln.codegen.store.identity": "for who writes a program",
        "kiln.files": "for who writes a program",
        "kiln.passes.rewrite": "for who writes a program",
        "kiln.tracing.expand": "for who writes a program",
    },
    "kiln/export/known.py": {"kiln.export.reading": "a program that was read before is not read again"},
    "kiln/table/kinds.py": {"kiln.graph.control": "few graphs have control flow"},
    "kiln/tracing/captured.py": {
        "kiln.tracing.graphs": "a program that was loaded runs without",
        "kiln.tracing.ops": "a program that was loaded runs without",
    },
    "kiln/tracing/answers.py": {
        "kiln.switches": "only programs that ask for a switch look at it",
        "kiln.amp": "only programs that ask for a switch look at it",
    },
    "kiln/tracing/program.py": {
        "kiln.tracing.batches": "for programs under vmap, whose samples are of kiln.func",
        "kiln.tracing.ops": "a program that was loaded runs without the ops of its steps",
        "kiln.tracing.nested": "few programs are called by what is traced",
        "kiln.amp": "only calls under autocast cast",
        "kiln.capture.pure.variant": "few results require gradients that come to nothing",
    },
    "kiln/tracing/nested.py": {
        "kiln.capture.pure.function": "for control flow that meets a program",
        "kiln.func.subgraph": "for control flow that meets a program",
        "kiln.tracing.ops": "for a trace that meets a program",
        "kiln.tracing.reads": "for a trace that meets a program",
        "kiln.tracing.symbolic": "for a trace that meets a program",
    },
    "kiln/tracing/sizes.py": {"kiln.tracing.graphs": "a program that was loaded checks sizes alone"},
    "kiln/export/command.py": {
        "kiln.random": "for who gives a seed",
    },
    "kiln/cpu/__init__.py": {"kiln.cpu.amp": "as kiln's own parts"},
    "kiln/cuda/__init__.py": {
        "kiln.storage": "few programs name storages of a device",
        "*": "as kiln's own parts",
    },
    "kiln/distributed/__init__.py": {"*": "as kiln's own parts"},
    "kiln/distributed/process_group.py": {"kiln.distributed.mpi": "for who asks for MPI"},
    "kiln/distributed/world.py": {"kiln.distributed.mpi": "for who asks for MPI"},
    "kiln/fx/experimental/proxy_tensor.py": {"kiln.export.recorded": "for who calls make_fx"},
    "kiln/fx/graph.py": {"tabulate": "an extra"},
    "kiln/fx/passes/graph_drawer.py": {"pydot": "an extra"},
    "kiln/ops/views/storage.py": {"mmap": "when a file is memory"},
    "kiln/utils/__init__.py": {"*": "as kiln's own parts"},
    "kiln/nn/utils/__init__.py": {"kiln.nn.utils.stateless": "an older path, which needs kiln.func"},
    "kiln/accelerator.py": {"*": "the module of a device that is asked for"},
    "kiln/as_torch/missing.py": {"kiln.as_torch.reading": "when a name was missing"},
    "kiln/as_torch/reading.py": {"*": "a name of PyTorch's that a program asks for"},
    "kiln/__main__.py": {
        "kiln.as_torch.reading": "a program is read, not run",
        "kiln.export.command": "few command lines are about program files",
        "kiln.symbolic.pictures": "and fewer ask for a picture",
    },
    "kiln/profiler.py": {"kiln.capture.flops": "few profiles count operations"},
    "kiln/capture/pure/variant.py": {
        "kiln.tracing.answers": "for what was asked, which traces keep too",
        "kiln.tracing.graphs": "for views of samples, which are made by the arguments of their ops",
    },
    "kiln/fx/node.py": {"kiln.fx.operator_schemas": "calls are normalized by what nodes are made of"},
    "kiln/fx/sizes.py": {
        "kiln.symbolic.definition": "for backends that are given sizes that vary",
    },
    "kiln/fx/values.py": {
        "kiln.fx.sizes": "for sizes that vary, which are of values",
    },
    "kiln/capture/pure/values.py": {
        "kiln.tracing.functions": "for writes without history, which are known from there",
    },
    "kiln/capture/pure/trace.py": {
        "kiln.tracing.functions": "for functions with a derivative of their own, which know who follows them",
        "kiln.tracing.answers": "for what was asked, which traces keep too",
    },
    "kiln/tracing/recorder.py": {
        "kiln.tracing.symbolic": "sizes that vary know who follows them",
    },
    "kiln/hub.py": {"hashlib": "when something is downloaded"},
    "kiln/autograd/profiler_events.py": {"json": "a trace is written", "gzip": "a trace is written"},
    "kiln/as_torch/finder.py": {
        "*": "a name of PyTorch's is imported when the program imports it",
        "kiln.as_torch.installed": "importlib.metadata, 20 ms, which few programs ask",
    },
    "kiln/viz/__init__.py": {"*": "the profiler needs no picture, a curve no graph"},
    "kiln/einops/__init__.py": {"kiln.einops.layers": "most programs use einops' functions"},
    "kiln/nn/modules/__init__.py": {"*": "PyTorch's names of files, each another module's here"},
    "kiln/distributions/__init__.py": {"*": "as there"},
    "kiln/table/registry.py": {"*": "a family comes with the first of its names"},
    "kiln/late.py": {
        "*": "`later` itself",
        "importlib.util": "when another package is found",
        "kiln.absent": "when a name is missing",
    },
    # what a program that was saved runs without
    "kiln/nn/__init__.py": {"kiln.nn.names": "layers are imported when the first of them is asked for"},
    "kiln/serialization/__init__.py": {"kiln.serialization.saving": "pickles are read when the first is"},
    "kiln/tracing/trees.py": {"dataclasses": "comes with the program's own"},
    "kiln/ops/random/sampling.py": {
        "kiln.ops.elementwise.infinities_and_nan": "for numbers drawn with chances",
        "kiln.ops.indexing.getitem": "for who fills a tensor",
    },
    # what only an error needs
    "kiln/ops/__init__.py": {
        "kiln.table.mistakes": "when a call fails",
        "kiln.ops.indexing.getitem": "for who indexes a value of a graph",
    },
    "kiln/nn/recurrent_steps.py": {
        "kiln.func.batched": "samples of a mapped function alone",
        "kiln.func.control_flow": "programs of any number of steps alone",
    },
    "kiln/nn/module.py": {
        "kiln.table.mistakes": "when a call fails",
        "kiln.nn.placement": "a program that was loaded is where it is",
    },
    "kiln/nn/calls.py": {
        "kiln.capture.compile": "when a module is compiled",
        "kiln.nn.backward_hooks": "for who watches gradients pass",
    },
    "kiln/serialization/source.py": {"kiln.files": "when a path is no file"},
    "kiln/_utils.py": {"*": "what a program names"},
    "kiln/absent.py": {
        "re": "when a name is missing",
        "opcode": "when a name is missing",
        "kiln.absent_names": "when a name is missing",
    },
    "kiln/capture/service.py": {
        "kiln.capture.make": "a process that finds its answers on disk captures, plans and compiles nothing",
        "kiln.capture.background": "nor has it a thread for that",
        "kiln.capture.policy": "no region was measured",
        "kiln.capture.view_errors": "when a view may not be written",
        "kiln.capture.log": "when something is said",
    },
    "kiln/capture/log.py": {"logging": "10 ms, when something is said"},
    # what few programs need
    "kiln/onnx/running.py": {"onnxruntime": "an extra"},
    "kiln/batching/strands.py": {"ctypes": "Ctrl-C for a strand that is a thread", "greenlet": "an extra"},
    "kiln/tensor.py": {
        "kiln.printing": "when a tensor is shown",
        "kiln.ops.creation.legacy": "constructors of old",
        "kiln.ops.indexing.getitem": "for indices that the core does not know",
    },
    "kiln/autograd/engine.py": {
        "contextvars": "a backward nested deeply runs on another thread",
        "threading": "a backward nested deeply runs on another thread",
    },
    "kiln/autograd/graph.py": {"weakref": "for who changes what is saved"},
    "kiln/ops/creation/data.py": {"copy": "for who copies a tensor with what it holds"},
    "kiln/autograd/gradcheck.py": {"kiln.ops.random.generator": "draws its directions"},
    "kiln/func/batched.py": {"kiln.func.custom": "a user's Function with samples"},
    "kiln/func/rules.py": {
        "kiln.ops.nn.attention.written": "attention with samples",
        "kiln.func.control": "few functions that are mapped have control flow as a node",
    },
    "kiln/graph/__init__.py": {"*": "functions on tensors, which stand above the graph"},
    "kiln/graph/text.py": {"json": "2 ms, where a text is a part of a graph"},
    "kiln/ops/elementwise/special.py": {"statistics": "for the reference of one function"},
    "kiln/ops/elementwise/user_functions.py": {"dis": "`kiln.pointwise` looks at a function's code"},
    "kiln/utils/data/dataloader.py": {
        "kiln.utils.data._utils": "most loaders have no workers",
        "multiprocessing": "nor a context to start them",
    },
    "kiln/passes/lower.py": {"kiln.passes": "most programs have no product, no attention, no recurrence"},
    "kiln/viz/dot.py": {"shutil": "where Graphviz draws", "subprocess": "where Graphviz draws"},
    "kiln/serialization/archive.py": {"concurrent.futures": "30 ms, when a large tensor is saved"},
    "kiln/serialization/safe.py": {"*": "PyTorch's names of kiln's classes, where the program allows one"},
    "kiln/serialization/listing.py": {"pickletools": "20 ms, for one function"},
    # what makes kernels, of which a warm process makes none
    "kiln/codegen/store/cache.py": {
        "kiln.files": "when an entry is written",
        "kiln.codegen.store.room": "when it is one of 256",
    },
    "kiln/codegen/nests/generate.py": {"kiln.codegen": "a kernel has one schedule; the others are not read"},
    "kiln/codegen/llvm.py": {"ctypes": "when LLVM is loaded"},
    "kiln/codegen/target.py": {"logging": "10 ms, when something is said"},
    "kiln/codegen/verify.py": {"re": "a warm process checks no text"},
}

FORBIDDEN_AT_IMPORT = ("numpy", "scipy", "llvmlite", "inspect", "dataclasses", "torch")
LONGEST_FILE = 600
LONGEST_CORE = 13980
LONGEST_BINDING = 7825  # the C API spelled out, which the core proper does not see

SOURCES = sorted(KILN.rglob("*.py"))
NATIVE_FILES = sorted(p for p in NATIVE.rglob("*") if p.suffix in (".h", ".cpp", ".hpp", ".cc"))


def part(path: Path) -> str:
    """The part of the house a file belongs to: the first name below kiln/."""
    parts = path.relative_to(KILN).parts
    # the interpreter runs graphs with the table's scalar bodies: it stands above both
    return "interpret" if parts == ("graph", "interpret.py") else parts[0].removesuffix(".py")


def module_name(path: Path) -> list[str]:
    """`["kiln", "ops", "scalar"]` of a file; a package's is the package's own."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported(node: ast.Import | ast.ImportFrom, path: Path) -> list[str]:
    """The absolute names an import statement reaches, as deep as it says."""
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    base = node.module or ""
    if node.level:
        package = module_name(path) if path.name == "__init__.py" else module_name(path)[:-1]
        base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
    return [f"{base}.{a.name}" for a in node.names]


class Import(NamedTuple):
    """One import of a file: the full name, the line, and whether a function or `later` does it."""

    name: str
    line: int
    late: bool
    for_types: bool = False  # under TYPE_CHECKING: there for type checkers, not at run time


def called_for(node: ast.Call, path: Path) -> str | None:
    """The module that `later(module, name)`, `names_of(package, module)` or `import_module(module)` reaches;
    "*": a computed one.
    """
    if ast.unparse(node.func) not in ("later", "_later", "import_module", "_import_module", "_names_of"):
        return None
    names = [a.value for a in node.args if isinstance(a, ast.Constant)]
    computed = None if "later" in ast.unparse(node.func) else "*"
    return ".".join(map(str, names)) or computed


@cache
def imports(path: Path) -> tuple[Import, ...]:
    """Every import of a file, those for types included."""

    def walk(node: ast.AST, late: bool, for_types: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                for name in imported(child, path):
                    yield Import(name, child.lineno, late, for_types)
            if isinstance(child, ast.Call) and (name := called_for(child, path)):
                yield Import(name, child.lineno, True)
            inside = late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                for part, typed in (
                    (child.body, "not " not in ast.unparse(child.test)),
                    (child.orelse, False),
                ):
                    for statement in part:
                        yield from walk(ast.Module([statement], []), inside, typed)
                continue
            yield from walk(child, inside, for_types)

    return tuple(walk(ast.parse(path.read_text()), False, False))


def own(name: str) -> str | None:
    """The part of kiln a full import name reaches, "" for kiln itself, None for other packages."""
    parts = name.split(".")
    if parts[0] != "kiln":
        return None
    return "ops" if parts[1:2] == ["_typed"] else parts[1] if len(parts) > 1 else ""


def test_arrows_point_one_way() -> None:
    """A file imports only parts below its own."""
    for path in SOURCES:
        here = part(path)
        if here in TOPS:
            continue
        assert here in ALLOWED, f"kiln/{here} is not a part this test knows: give it its arrows"
        for name, line, *_ in imports(path):
            target = own(name)
            if target is None or target == here:
                continue
            assert target != "", (
                f"{path.name}:{line}: `import kiln` from inside kiln; import the part that is meant"
            )
            assert target in ("errors", "late", "tuples", "absent") or target in ALLOWED[here], (
                f"{path.name}:{line}: {here} may not import {target}"
            )


def test_passes_stand_one_on_the_other() -> None:
    """No pass imports one that imports it, late either."""
    below: dict[str, set[str]] = {}
    for path in (KILN / "passes").glob("*.py"):
        names = [found.name.split(".") for found in imports(path)]
        modules = {name[2] for name in names if name[:2] == ["kiln", "passes"]}
        below[path.stem] = {m for m in modules if (KILN / "passes" / f"{m}.py").exists()}
    order = list(TopologicalSorter(below).static_order())
    assert order.index("group") < order.index("fuse") < order.index("pipeline")


FILES = frozenset(SOURCES)


@cache
def module_of(name: str) -> str:
    """The module of kiln that a full import name reaches: of "kiln.ops.find" that is "kiln.ops"."""
    place = KILN.parent.joinpath(*name.split("."))
    if not name or not FILES.isdisjoint((place.with_suffix(".py"), place / "__init__.py")):
        return name
    return module_of(name.rpartition(".")[0])


def test_modules_stand_one_on_the_other() -> None:
    """No module imports one that imports it, for its types either."""
    below = {}
    for path in SOURCES:
        here = ".".join(module_name(path))
        reached = {module_of(f.name) for f in imports(path) if not f.late and own(f.name) is not None}
        below[here] = reached - {here, "kiln", ""}
    list(TopologicalSorter(below).static_order())  # CycleError names the circle


def test_the_types_of_the_table_are_for_checkers() -> None:
    """Nothing imports kiln._typed at run time: it has no modules."""
    found = [(path, f) for path in SOURCES for f in imports(path) if f.name.startswith("kiln._typed")]
    assert found and all(f.for_types for _, f in found)


def test_nothing_imports_the_proof() -> None:
    """kiln.testing and tests are imported by themselves only; that kiln has a part `testing` is for users."""
    for path in SOURCES:
        if part(path) == "testing":
            continue
        found = {f.name for f in imports(path) if f.name.startswith(("kiln.testing", "tests", "torch"))}
        assert found == ({"kiln.testing"} if path == KILN / "__init__.py" else set()), path


@cache
def brought() -> set[str]:
    """The modules that `make test` finds: what it installs with kiln, Python's own, the tests' helpers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.findall(r"install '\.\[(.*)\]'", (ROOT / "Makefile").read_text())
    wanted = project["dependencies"] + [
        need for extra in extras[0].split(",") for need in project["optional-dependencies"][extra]
    ]
    found = {re.split(r"[<>=\[; ]", need)[0].removeprefix("pytest-") for need in wanted}
    return (
        found
        | set(sys.stdlib_module_names)
        | {"kiln", "_pytest"}
        | {p.stem for p in (ROOT / "tests").rglob("*.py")}
    )


def unguarded(tree: ast.AST, guarded: bool = False) -> Iterator[tuple[str, int]]:
    """Every import that nothing catches the failure of."""
    if isinstance(tree, (ast.Import, ast.ImportFrom)) and not guarded:
        names = [a.name for a in tree.names] if isinstance(tree, ast.Import) else [tree.module or "kiln"]
        yield from ((name.partition(".")[0], tree.lineno) for name in names)
    caught = isinstance(tree, ast.Try) and any("ImportError" in ast.dump(h) for h in tree.handlers)
    for child in ast.iter_child_nodes(tree):
        yield from unguarded(child, guarded or (caught and child in getattr(tree, "body", ())))


def test_tests_import_what_make_test_installs() -> None:
    """Of other modules, PyTorch among them, only where a missing one is caught, or by `importorskip`."""
    assert {"numpy", "pytest", "hypothesis", "xdist"} <= brought() and "torch" not in brought()
    planted = "import a\ntry:\n    import b\nexcept ImportError:\n    import c\ndef f():\n    from d import e"
    assert [line for _, line in unguarded(ast.parse(planted))] == [1, 5, 7]
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path.parent.name != "libraries"]
    for path in [*tests, *(KILN / "testing").glob("*.py")]:  # programs of libraries run where those are
        found = [(n, line) for n, line in unguarded(ast.parse(path.read_text())) if n not in brought()]
        assert not found, f"{path.relative_to(ROOT)}: {found}"


def test_nothing_imports_llvmlite() -> None:
    """codegen/llvm.py loads the library, without llvmlite's Python."""
    for path in SOURCES:
        found = [f.line for f in imports(path) if f.name.split(".")[0] == "llvmlite"]
        assert not found, f"{path}, line {found}"


def test_late_imports_have_a_reason() -> None:
    """No circle is dodged by an import inside a function, and none is late out of habit."""
    unused = {(file, name) for file, names in LATE_IN.items() for name in names}
    for path in SOURCES:
        file = str(path.relative_to(ROOT))
        for found in imports(path):
            if not found.late or part(path) == "testing" or found.name.split(".")[0] in LATE:
                continue
            listed = [name for name in LATE_IN.get(file, ()) if f"{found.name}.".startswith(f"{name}.")]
            assert listed, f"{file}:{found.line}: {found.name} is imported late, for no reason that is listed"
            unused -= {(file, name) for name in listed}
    assert not unused, "listed, but not imported late"


def test_heavy_modules_come_late() -> None:
    """No heavy module is imported when a module of kiln is, except by the interpreter and the generator."""
    for path in SOURCES:
        if part(path) in ("testing", "viz", "cli"):
            continue
        for name, line, late, for_types in imports(path):
            if not late and not for_types and name.split(".")[0] in LATE:
                late_modules = ("kiln/graph/interpret.py", "kiln/scalars/on_numpy.py", "kiln/codegen/")
                late_modules += ("kiln/utils/tensorboard/summaries.py", "kiln/export/command.py")
                late_modules += ("kiln/export/verification.py", "kiln/standalone/")
                assert str(path.relative_to(ROOT)).startswith(late_modules), f"{path.name}:{line}: {name}"


def test_python_files_are_short() -> None:
    """One that grows past the limit is two things."""
    for path in SOURCES:
        assert len(path.read_text().splitlines()) <= LONGEST_FILE, path


@pytest.mark.skipif(not NATIVE_FILES, reason="no native sources here")
def test_native_files_are_short() -> None:
    """Each file, and all of them together."""
    lengths = {p.relative_to(NATIVE): len(p.read_text().splitlines()) for p in NATIVE_FILES}
    assert not {p: count for p, count in lengths.items() if count > LONGEST_FILE}
    binding = sum(n for p, n in lengths.items() if p.parts[0] == "binding")
    assert sum(lengths.values()) - binding < LONGEST_CORE, lengths
    assert binding < LONGEST_BINDING, lengths


@pytest.mark.skipif(not NATIVE_FILES, reason="no native sources here")
def test_only_the_binding_knows_python() -> None:
    """Python.h and its types appear in native/binding only, and no other room includes that one."""
    known = r'Python\.h|\bPy(Object|_INCREF|_DECREF|GILState)|#include "binding/'
    others = [p for p in NATIVE_FILES if p.parent.name != "binding"]
    assert not [p for p in others if re.search(known, p.read_text())]


@pytest.mark.skipif(not NATIVE_FILES, reason="no native sources here")
def test_the_base_knows_no_tensor() -> None:
    """native/base includes nothing of the other rooms; its tests compile it alone."""
    base = [p for p in NATIVE_FILES if p.parent.name == "base"]
    assert base
    assert not [p for p in base if re.search(r'#include "(?!base/)', p.read_text())]


@pytest.mark.skipif(not NATIVE_FILES, reason="no native sources here")
def test_items_of_new_tuples_are_checked() -> None:
    """An object that gets no memory is an error where it is made, not a hole in a tuple."""
    made = r"PyTuple_SET_ITEM\([^;]*?,\s*(Py(Long|Unicode|Float|Bytes)_From|Py_BuildValue)"
    assert re.search(made, "PyTuple_SET_ITEM(t.get(), i, PyLong_FromLong(1));")
    assert not [p.name for p in NATIVE_FILES if re.search(made, p.read_text())]


@pytest.mark.skipif(not NATIVE_FILES, reason="no native sources here")
def test_the_core_knows_no_op() -> None:
    """No mathematics in the core: no kernel is written there, no libm function is called."""
    functions = r"\bstd::(exp|log|tanh|erf|pow|sin|cos|sqrt)f?\s*\("
    assert not [p.name for p in NATIVE_FILES if re.search(functions, p.read_text())]


def test_no_machine_paths() -> None:
    """No file names a directory of somebody's machine."""
    pattern = re.compile(r"(?<![\w.])/(home|Users|work|root)/\w")
    texts = [
        p
        for folder in ("kiln", "native", "tests", "bench", "examples", "docs")
        for p in (ROOT / folder).rglob("*")
    ]
    texts += [p for p in ROOT.iterdir() if p.is_file()]
    for path in texts:
        if path.suffix in (".py", ".h", ".cpp", ".md", ".toml", ".txt", ".yml") or path.name in (
            "Makefile",
            "run",
        ):
            if path != Path(__file__):
                found = pattern.search(path.read_text())
                assert found is None, f"{path.relative_to(ROOT)}: {found and found.group()}"


def python(code: str) -> str:
    """The output of a fresh interpreter."""
    # -P: the installed kiln, not the tree's
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light() -> None:
    """`import kiln` brings no heavy module with it."""
    names = python(
        "import sys; before = set(sys.modules); import kiln; kiln.Tensor; print(*(set(sys.modules) - before))"
    )
    top = {name.split(".")[0] for name in names.split()}
    assert not top & set(FORBIDDEN_AT_IMPORT)
    # parts that wait for the first use of a name, or the first kernel
    late = (
        "nn",
        "optim",
        "utils",
        "datasets",
        "export",
        "serialization",
        "special",
        "viz",
        "passes",
        "codegen",
        "capture",
    )
    assert not [n for n in names.split() if n.startswith(tuple(f"kiln.{part}" for part in late))]


def test_import_writes_and_starts_nothing() -> None:
    """`import kiln` makes no file, starts no thread and works without a home directory."""
    code = (
        "import os, tempfile, threading; d = tempfile.mkdtemp(); "
        "os.environ.update(HOME='/nonexistent', KILN_CACHE_DIR=os.path.join(d, 'cache')); "
        "import kiln; print(os.listdir(d), threading.active_count(), len(os.listdir('/proc/self/task')))"
    )
    assert python(code) == "[] 1 1"


def test_importing_twice_gives_the_same_core() -> None:
    """A second import, after the first was dropped from sys.modules, still works on the same tensors."""
    code = (
        "import sys, kiln; x = kiln.ones(2); "
        "[sys.modules.pop(n) for n in list(sys.modules) if n.split('.')[0] == 'kiln' and n != 'kiln._core']; "
        "import kiln as again; print((again.ones(2) + x).tolist())"
    )
    assert python(code) == "[2.0, 2.0]"
