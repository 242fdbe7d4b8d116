"""Every example runs, once: docstrings of functions, methods and classes, and the code of the pages.

Those of the table run in tests/ops/test_table.py, as checks of its entries.
"""

from __future__ import annotations

import doctest
import inspect
import pydoc
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import kiln
import kiln.testing
from kiln.testing import op_page

ROOT = Path(__file__).parents[2]
MODULES = [
    kiln.nn, kiln.nn.functional, kiln.nn.init, kiln.nn.utils, kiln.optim, kiln.optim.lr_scheduler,
    kiln.autograd, kiln.utils.data, kiln.multiprocessing, kiln.datasets, kiln.viz,
    kiln.masked, kiln.signal.windows, kiln.testing, kiln.func, kiln.autograd.functional, kiln.func.tree,
    kiln.profiler, kiln.autograd.profiler, kiln.jit, kiln.fx, kiln.onnx, kiln.overrides, kiln.library,
    kiln.graph, kiln.hub, kiln.distributed, kiln.cuda, kiln.cpu, kiln.backends.cudnn, kiln.backends.cpu,
    kiln.compiler,
]  # fmt: skip
# where `torch` is a name of kiln's, and what needs the package einops
ELSEWHERE = ("kiln.as_torch", "kiln.einops")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def modules_with_examples() -> list[ModuleType]:
    """Every module of kiln in whose text an example stands."""
    root = Path(kiln.__file__).parent
    files = [path for path in sorted(root.rglob("*.py")) if ">>>" in path.read_text()]
    names = [".".join(path.relative_to(root.parent).with_suffix("").parts) for path in files]
    return [
        import_module(name.removesuffix(".__init__"))
        for name in names
        if not name.startswith(ELSEWHERE) and not name.endswith("__main__")
    ]


def documented() -> Iterator[tuple[str, tuple[str, str]]]:
    """Name, docstring and defining module of what users call beside the table; a thing under several names
    once.
    """
    seen = {op.doc for op in kiln.ops.table()} | {f.__doc__ for f in kiln.ops.functions().values()}
    places: list[tuple[str, Any]] = [("kiln", kiln), ("kiln.Tensor", kiln.Tensor)]
    places += [(module.__name__, module) for module in [*MODULES, *modules_with_examples()]]
    for place, owner in places:
        for name in sorted(dir(owner)):
            value = getattr(owner, name, None)  # a class lists what it only has a hint for
            if name.startswith("_") or isinstance(value, ModuleType):
                continue
            for label, thing in [(name, value), *members(name, value)]:
                text, home = (
                    getattr(thing, "__doc__", None),
                    str(getattr(thing, "__module__", None) or "kiln"),
                )
                if isinstance(text, str) and ">>>" in text and text not in seen and home.startswith("kiln"):
                    seen.add(text)
                    yield f"{place}.{label}", (text, home)


def members(name: str, value: Any) -> list[tuple[str, Any]]:
    """The public methods of one of kiln's own classes."""
    if not isinstance(value, type) or not str(value.__module__).startswith("kiln"):
        return []
    return [
        (f"{name}.{k}", v)
        for k, v in sorted(vars(value).items())
        if isinstance(v, FunctionType) and k[0] != "_"
    ]


def run(text: str, name: str, names: dict[str, Any]) -> None:
    """Fails with doctest's report unless every example gives what it shows; names it makes are kept."""
    example = doctest.DocTestParser().get_doctest(text, names, name, name, 0)
    report: list[str] = []
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    kiln.manual_seed(0)
    failed = doctest.DocTestRunner(optionflags=options).run(example, out=report.append, clear_globs=False)
    names.update(example.globs)
    assert not failed.failed, "".join(report)


EXAMPLES = {
    name: found
    for name, found in documented()
    if find_spec("scipy") or "eeds SciPy" not in " ".join(found[0].split())
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_docstring(name: str) -> None:
    text, home = EXAMPLES[name]
    run(text, name, {"kiln": kiln} if home == "kiln" else {**vars(sys.modules[home]), "kiln": kiln})


def public_functions() -> dict[str, Any]:
    """Every function of the table under its name below kiln; not its one class."""
    return {name: f for name, f in kiln.ops.functions().items() if not isinstance(f, type)}


def test_every_public_op_shows_an_example() -> None:
    silent = [op.name for op in kiln.ops.table() if op.public and ">>>" not in op.doc]
    silent += [name for name, f in public_functions().items() if ">>>" not in (f.__doc__ or "")]
    silent = [name for name in silent if not name.endswith("_")]  # in-place forms, derived
    assert not silent


def test_every_public_op_shows_its_parameters() -> None:
    """To help(), to editors, and as a method without the tensor."""
    known = {name.rpartition(".")[2] for name in public_functions()}
    for name, function in public_functions().items():
        shown = inspect.signature(function).parameters
        assert function.__name__ in known and "<" not in getattr(function, "__qualname__", "")
        if isinstance(function, kiln._core.Op):
            names = [param.name for param in function.record.params]
            # a form shows what its function takes besides; one in place has nowhere else to write
            assert [*shown][: len(names)] == names, name
            if not hasattr(function, "__wrapped__"):
                assert [*shown] == [*names, *([] if name.endswith("_") else ["out"])], name
    assert str(inspect.signature(kiln.ones(2).softmax)) == "(dim, dtype=None, *, out=None)"
    assert "softmax(input, dim, dtype=None, *, out=None)" in pydoc.render_doc(
        kiln.softmax, renderer=pydoc.plaintext
    )


ROWS = """
| `absolute(input)` | kiln, x. | x., kiln | yes | number | stated | as `abs` |
| `add(input, other, *, alpha=1)` | kiln, x. | x. | yes | all | stated |  |
| `sort(input, dim=-1, descending=False, stable=False)` | kiln, x. |  | yes | all | follows | always stable |
| `special.xlog1py(input, other)` | kiln.special |  | yes | all | stated |  |
| `xlogy(input, other)` | kiln, x., special | x., kiln | yes | all | stated |  |
"""


@pytest.mark.parametrize("row", ROWS.split("\n")[1:-1])
def test_page_of_operations_says_what_holds(row: str) -> None:
    name = re.match(r"\| `([\w.]+)", row)[1]
    assert f"| {' | '.join(op_page.row(name, kiln.ops.functions()[name]))} |" == row


def test_page_of_operations_has_every_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, in as many columns as there are."""
    monkeypatch.setattr(op_page, "dtypes", lambda record: "")  # a minute of calls
    rows = [line for line in op_page.page().splitlines() if line.startswith("| `")]
    assert [re.match(r"\| `([\w.]+)", row)[1] for row in rows] == sorted(op_page.names(), key=str.lower)
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {len(op_page.COLUMNS) + 1}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions (>>>) show what they print, other Python blocks run: one after the other, in one namespace."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {"__name__": "__page__", "kiln": kiln}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S):
        if ">>>" in block:
            run(block, page.name, space)
        else:
            exec(compile(block, str(page), "exec"), space)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
