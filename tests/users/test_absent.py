"""Names that PyTorch has and kiln has not: an error that says what to do, and nothing there for `hasattr`."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from backend import kiln, needs_kiln, torch

pytestmark = needs_kiln

HINTS = {
    "kiln.ones(1).imag": "'Tensor' object has no attribute 'imag': kiln has no complex numbers",
    "kiln.cuda.nccl": "module 'kiln.cuda' has no attribute 'nccl': kiln runs on the CPU",
    "kiln.complex64": "module 'kiln' has no attribute 'complex64': kiln has no complex numbers",
    "kiln.linalg.eig": "module 'kiln.linalg' has no attribute 'eig': kiln has no complex numbers",
    "kiln.ones(1).to_sparse()": "'Tensor' object has no attribute 'to_sparse': kiln has no sparse tensors",
    "kiln.optim.SparseAdam": "module 'kiln.optim' has no attribute 'SparseAdam': kiln has no sparse",
    "kiln.special.airy_ai": "module 'kiln.special' has no attribute 'airy_ai': PyTorch has it, kiln has not",
    "kiln.ones(2).storage().resize_": ": memory does not grow under its tensors",
    "kiln.Tensor.crow_indices": "type object 'Tensor' has no attribute 'crow_indices': kiln has no sparse",
    "kiln.autograd.Function.mark_dirty": "'Function' has no attribute 'mark_dirty': it is of `ctx`",
    "kiln.ones(2).untyped_storage().cuda": ": kiln's memory is the CPU's",
    "kiln.nn.DataParallel(kiln.nn.ReLU()).scatter": ": there is one device",
    "kiln.profiler.profile().prepare_trace": ": PyTorch has it, kiln has not; start, step and stop",
    "kiln.nn.functional.ctc": "module 'kiln.nn.functional' has no attribute 'ctc'",
    "kiln.nn.Lineal": "module 'kiln.nn' has no attribute 'Lineal'",
    "kiln.utils.data.foo": "module 'kiln.utils.data' has no attribute 'foo'",
    "kiln.foo": "module 'kiln' has no attribute 'foo'",
}
# namespaces of PyTorch that kiln has too; of the others the namespace itself has a hint
SPACES = (
    "", "accelerator", "autograd", "autograd.functional", "autograd.profiler", "backends.cuda",
    "compiler", "cpu", "cuda", "func", "fx", "hub", "jit", "library",
    "linalg", "masked", "mps", "onnx", "overrides", "profiler", "types", "utils", "utils.hooks", "xpu", "nn",
    "nn.functional", "nn.utils",
    "nn.utils.rnn", "nn.utils.parametrizations", "nn.utils.parametrize", "optim", "optim.lr_scheduler",
    "random", "serialization", "signal.windows", "special", "utils.data",
)  # fmt: skip
# helpers that PyTorch's modules happen to show
INSIDE = (
    "(parse|merge|unify)_.+ NestedIOFunction enforce_grad_layout_policy attention common_types "
    "factory_kwargs grad Container NLLLoss2d .*_(notes|fn) debug_unwrap rearrange cpp .+DataChunk "
    "_.+ .*functional_datapipe.* .*determinism stateless clip_grad_norm "
    "upsample_(bilinear|nearest) swap_in_.+ .*torch_function.* assert_int_or_pair boolean_dispatch "
    "Broadcasting.+ Scaling.+ Swizzle.+ vitals_enabled set_vital read_vitals name "
    "reinforce"
)


def raised(statement: str) -> Exception:
    with pytest.raises((AttributeError, ImportError)) as caught:
        exec(statement, {"kiln": kiln})
    return caught.value


@pytest.mark.parametrize("expression", HINTS)
def test_what_is_said(expression: str) -> None:
    error = raised(expression)
    assert type(error) is AttributeError
    assert HINTS[expression] in str(error)
    if expression.endswith(("foo", "Lineal", "ctc")):  # names that PyTorch has not either
        assert str(error) == HINTS[expression]


def test_a_name_taken_from_a_module() -> None:
    """Python itself would put a sentence without the hint in the place of an AttributeError."""
    error = raised("from kiln.optim import SparseAdam")
    assert type(error) is ImportError and error.name == "kiln.optim"
    assert str(error).startswith("cannot import name 'SparseAdam' from 'kiln.optim': kiln has no sparse")
    assert str(raised("from kiln import fft")) == (
        "cannot import name 'fft' from 'kiln': kiln has no complex numbers"
    )
    assert str(raised("from kiln.nn import Bilinera")) == "cannot import name 'Bilinera' from 'kiln.nn'"


@pytest.mark.parametrize("module", ["kiln", "kiln.nn", "kiln.optim", "kiln.linalg", "kiln.nn.functional"])
def test_python_can_suggest_the_nearest_name(module: str) -> None:
    error: Any = raised(f"{module}.Lineer")
    assert error.name == "Lineer" and error.obj is importlib.import_module(module)


def test_they_are_not_there() -> None:
    x = kiln.ones(1)
    for name in kiln.absent.TENSOR.split():
        assert not hasattr(x, name) and not hasattr(type(x), name) and name not in dir(x)
    assert not hasattr(kiln, "fft") and not hasattr(kiln.optim, "SparseAdam")
    with pytest.raises(RuntimeError, match="not linked with support for ipu"):
        kiln.nn.Linear(1, 1).ipu()

    class Own(kiln.Tensor):
        def values(self) -> str:
            return "own"

    own = x.as_subclass(Own)
    assert own.values() == "own" and "values" in dir(own)


def test_what_classes_of_modules_show_is_there() -> None:
    """Libraries go through `dir(cls)` and ask for each."""
    for kind in (kiln.nn.Module, kiln.nn.Linear, kiln.distributions.Normal, kiln.optim.Adam):
        assert [n for n in dir(kind) if not hasattr(kind, n)] == []


def is_inside(value: Any, name: str, space: str) -> bool:
    """Whether a name is of PyTorch's inside: TorchScript's classes, what modules import for themselves.
    Modules too, as which of them are attributes depends on what has imported them.
    """
    if inspect.isclass(value) and not (space and (value.__module__ or "").startswith("torch.")):
        return True
    if inspect.ismodule(value):
        return True
    about = getattr(value, "__module__", None)
    elsewhere = isinstance(about, str) and not about.startswith("torch")
    return (
        elsewhere
        or (name.isupper() and not callable(value))
        or bool(re.fullmatch("|".join(INSIDE.split()), name))
    )


def at(library: Any, space: str) -> Any:
    """A namespace of a library."""
    for part in space.split(".") if space else ():
        library = getattr(library, part)
    return library


def public(space: str) -> list[str]:
    """Public names of one of PyTorch's namespaces."""
    pytorch = at(torch, space)
    names = getattr(pytorch, "__all__", None) or [n for n in dir(pytorch) if not n.startswith("_")]
    return sorted({n for n in names if not is_inside(getattr(pytorch, n, None), n, space)})


@pytest.mark.parametrize("space", SPACES)
def test_every_name_of_pytorchs_has_a_hint(space: str, answers: Any) -> None:
    own = at(kiln, space)
    names = answers([space, INSIDE, public, is_inside], lambda: public(space))
    assert names
    gone = [n for n in names if not hasattr(own, n)]
    assert [n for n in gone if not kiln.absent.advice(f"{space}.{n}".lstrip("."))] == []


def named(patterns: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Of each pattern the places and names of PyTorch's that it is for."""
    names = [(space, name) for space in SPACES if space != "cuda" for name in public(space)]
    for space in (*SPACES, "utils.checkpoint"):
        pytorch = importlib.import_module(f"torch.{space}".rstrip("."))
        # of submodules those that there are, not those that something has imported
        names += [(space, m.name) for m in pkgutil.iter_modules(getattr(pytorch, "__path__", ()))]
        if space in ("", "nn", "utils", "utils.checkpoint"):
            names += [(space, n) for n in dir(pytorch) if not is_submodule(pytorch, n)]
    names += [("a tensor", n) for n in dir(torch.Tensor)] + [("a module", n) for n in dir(torch.nn.Module)]
    return {p: sorted({pair for pair in names if re.fullmatch(p, pair[1])}) for p in patterns}


def is_submodule(package: Any, name: str) -> bool:
    value = getattr(package, name, None)
    return inspect.ismodule(value) and value.__name__.startswith("torch.")


def test_every_hint_is_for_a_name_that_pytorch_has(answers: Any) -> None:
    """What kiln has meanwhile, or PyTorch no longer, has no hint."""
    patterns = [p for _, patterns in kiln.absent._HINTS for p in patterns.split() if r"\..+" not in p]
    found = answers([patterns, INSIDE, named, public, is_inside], lambda: named(patterns))
    own = {"a tensor": kiln.ones(1, 1), "a module": kiln.nn.Module()}

    def missing(space: str, name: str) -> bool:
        return not hasattr(own[space] if space in own else at(kiln, space), name)

    assert [p for p in patterns if not any(missing(*pair) for pair in found[p])] == []


# classes whose attributes are asked for one by one, at the class: `Event.record`, `Tensor.crow_indices`
CLASSES = (
    "Tensor", "Generator", "Event", "Stream", "dtype", "device", "Size", "FloatTensor", "FloatStorage",
    "TypedStorage", "UntypedStorage", "cuda.Event", "cuda.Stream", "cuda.CUDAGraph", "cuda.FloatTensor",
    "cuda.FloatStorage", "xpu.Stream", "nn.Module", "nn.Parameter", "nn.UninitializedParameter", "nn.Linear",
    "nn.DataParallel", "nn.parallel.DistributedDataParallel", "nn.utils.rnn.PackedSequence",
    "optim.Optimizer", "optim.Adam", "optim.lr_scheduler.SequentialLR", "autograd.Function",
    "autograd.function.FunctionCtx", "autograd.profiler.FunctionEvent", "distributions.Distribution",
    "utils.data.DataLoader", "utils.data.Dataset", "utils.hooks.RemovableHandle",
    "jit.ScriptModule", "jit.ScriptFunction", "jit.Future", "fx.Graph", "fx.Tracer", "fx.GraphModule",
    "library.Library", "library.CustomOpDef", "overrides.TorchFunctionMode", "multiprocessing.Queue",
)  # fmt: skip
# set in objects by both, and shown by PyTorch's class alone
IN_OBJECTS = (
    "autograd.profiler.FunctionEvent.key", "autograd.profiler.FunctionEvent.self_cpu_memory_usage",
    "nn.parallel.DistributedDataParallel.broadcast_buffers",
)  # fmt: skip


def attributes_of(classes: tuple[str, ...]) -> dict[str, list[str]]:
    return {path: [n for n in dir(at(torch, path)) if n[0] != "_"] for path in classes}


def test_every_attribute_of_classes(answers: Any) -> None:
    found = answers([CLASSES, attributes_of], lambda: attributes_of(CLASSES))
    assert len(found["Tensor"]) > 600 and "record" in found["cuda.Event"]
    bare = []
    for path, names in found.items():
        for name in names:
            own = at(kiln, path)
            if hasattr(own, name) or f"{path}.{name}" in IN_OBJECTS:
                continue
            with pytest.raises(AttributeError) as caught:
                getattr(own, name)
            if f"attribute '{name}': " not in str(caught.value):
                bare.append(f"{path}.{name}")
    assert bare == []


def test_what_is_hinted_is_not_there() -> None:
    """Neither to classes nor to their objects, though their classes keep the hint."""
    hinted = 0
    for kind in {kind for path in CLASSES if isinstance(kind := at(kiln, path), type)}:
        for name, value in vars(kind).items():
            if isinstance(value, kiln.absent.Absent):
                hinted += 1
                assert not hasattr(kind, name), (kind, name)
    assert hinted > 100


# modules whose names are asked for one by one, whatever they are: a program may take any of them
MODULES = (
    "torch", "torch.amp.grad_scaler", "torch.autograd.function", "torch.autograd.graph",
    "torch.autograd.profiler", "torch.backends.cuda", "torch.distributions.bernoulli",
    "torch.distributions.transforms", "torch.distributions.utils", "torch.functional", "torch.hub",
    "torch.jit.annotations", "torch.multiprocessing.reductions", "torch.nn", "torch.nn.attention",
    "torch.nn.functional", "torch.nn.init", "torch.nn.modules.activation", "torch.nn.modules.conv",
    "torch.nn.modules.module", "torch.nn.modules.rnn", "torch.nn.parallel.distributed",
    "torch.nn.utils.rnn", "torch.optim.adam", "torch.optim.optimizer", "torch.overrides", "torch.profiler",
    "torch.serialization", "torch.storage", "torch.testing", "torch.types", "torch.utils.checkpoint",
    "torch.utils.collect_env", "torch.utils.data.dataloader", "torch.utils.flop_counter",
)  # fmt: skip


def files_of_pytorch() -> list[str]:
    """Its modules, those of its inside too, by its files."""
    home = Path(torch.__file__).parent
    found = {".".join(p.relative_to(home.parent).with_suffix("").parts) for p in home.rglob("*.py")}
    names = {name.removesuffix(".__init__") for name in found}
    return sorted(n for n in names if n.isascii() and all(part.isidentifier() for part in n.split(".")))


def names_of(modules: tuple[str, ...]) -> dict[str, list[str]]:
    """Public names of modules but those of one letter, which are type variables, and of modules in them."""
    found = {name: importlib.import_module(name) for name in modules}
    return {
        name: [n for n in dir(module) if not (n[0] == "_" or len(n) == 1 or is_submodule(module, n))]
        for name, module in found.items()
    }


ASKED = """
import importlib, json, re, sys, warnings
warnings.simplefilter("ignore")
import kiln.as_torch
modules, names = json.load(sys.stdin)
bare, wrong = [], []
for name in modules:
    try:
        importlib.import_module(name)
    except ImportError as error:
        if re.fullmatch("No module named '[^']*'.{0,1}", str(error)):
            bare.append(name)
    except Exception as error:
        wrong.append([name, repr(error)])
for module, names in names.items():
    for name in names:
        try:
            getattr(importlib.import_module(module), name)
        except AttributeError as error:
            if re.fullmatch("module '[^']*' has no attribute '[^']*'", str(error)):
                bare.append(f"{module}.{name}")
json.dump([bare, wrong], sys.stdout)
"""


def test_every_module_and_every_name_in_them(answers: Any) -> None:
    """Under PyTorch's own name: nothing that it has is missing without a word."""
    modules = answers([files_of_pytorch], files_of_pytorch)
    names = answers([MODULES, names_of], lambda: names_of(MODULES))
    assert len(modules) > 1500 and len(names["torch"]) > 800
    done = subprocess.run(
        [sys.executable, "-c", ASKED], input=json.dumps([modules, names]), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], []]


def test_where_it_is_instead() -> None:
    advice = kiln.absent.advice
    assert advice("optim.sgd.Optimizer") == ": it is kiln.optim.Optimizer"
    assert advice("nn.modules.conv.F") == ": it is kiln.nn.functional"
    assert advice("nn.init.math") == ": it is Python's own; import math"
    assert advice("utils.data.dataloader.Callable") == ": it is Python's own, typing.Callable"
    assert advice("_prims.add").startswith(": kiln's functions are not made of PyTorch's primitive ones")
    assert advice("nn.modules.conv._of_pytorch").startswith(": names that begin with _ are PyTorch's inside")
    assert advice("nn.Lineal") == advice("nn.__wrapped__") == ""


def test_no_line_of_kilns_is_shown() -> None:
    for expression in ("kiln.fft", "kiln.optim.Adan", "kiln.linalg.eig", "kiln.nn.functional.ctc"):
        with pytest.raises(AttributeError) as caught:
            exec(compile(expression, "<program>", "eval"), {"kiln": sys.modules["kiln"]})
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert [f.filename for f in frames[1:]] == ["<program>"], frames
