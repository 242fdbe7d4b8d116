"""What type checkers say of programs that use kiln, and whether what they are told is so.

tests/typed/right.py     a program in which they find nothing
tests/typed/wrong.py     one with mistakes, each marked on its line: they find those, and no others

mypy comes with the tests. Pyright does where basedpyright is installed, whose wheel brings what it needs.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import ops
from kiln.table import record, registry
from kiln.table.public import records
from kiln.testing.type_forms import is_public, table_functions, table_methods
from kiln.testing.type_stubs import PACKAGE, files

HERE = Path(__file__).parents[1]
PROGRAMS = HERE / "typed"
TYPED = PACKAGE / "_typed"
Found = dict[str, dict[int, str]]  # file -> line -> what is said of it

pytestmark = pytest.mark.skipif(
    not (TYPED / "tensor.pyi").exists(), reason="this build wrote no types, as it cannot run its core"
)


def run(*command: str, **environment: str) -> str:
    """What a checker prints, called where no other kiln lies; it fails where something is found."""
    env = {**os.environ, **environment}
    program = [sys.executable, "-m", *command]
    done = subprocess.run(program, capture_output=True, text=True, env=env, cwd=PROGRAMS)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def by_mypy(program: Path, cache: Path) -> Found:
    """The lines in which `mypy --strict` finds something; notes go with what they explain."""
    pytest.importorskip("mypy", reason="needs mypy")
    source = {} if "site-packages" in PACKAGE.parts else {"MYPYPATH": str(PACKAGE.parent)}
    command = ["mypy", "--strict", "--no-pretty", f"--cache-dir={cache}", f"--config-file={os.devnull}"]
    said = run(*command, str(program), **source)
    found: Found = {}
    for path, line, text in re.findall(r"^(.+?):(\d+): error: (.*)$", said, re.M):
        found.setdefault(Path(path).name, {})[int(line)] = text
    assert re.search(r"^(Found \d+ error|Success)", said, re.M), said
    return found


def by_pyright(program: Path, cache: Path) -> Found:
    """The lines in which Pyright finds something, as strictly as it is where nothing is said."""
    if find_spec("basedpyright") is None:
        pytest.skip("needs basedpyright")
    settings = {
        "include": [str(program)],
        "extraPaths": [str(PACKAGE.parent)],
        "typeCheckingMode": "standard",
    }
    config = cache / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    said = json.loads(run("basedpyright", "--outputjson", "-p", str(config)))
    assert said["summary"]["filesAnalyzed"] == 1
    found: Found = {}
    for one in said["generalDiagnostics"]:
        if one["severity"] == "error":
            found.setdefault(Path(one["file"]).name, {})[one["range"]["start"]["line"] + 1] = one["message"]
    return found


CHECKERS = pytest.mark.parametrize("check", [by_mypy, by_pyright], ids=["mypy", "pyright"])
Check = Callable[[Path, Path], Found]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where checkers keep what they know of kiln, for the next test."""
    return tmp_path_factory.mktemp("checked")


# -- programs ------------------------------------------------------------------------------------------


@CHECKERS
def test_nothing_is_found_in_a_right_program(check: Check, cache: Path) -> None:
    assert check(PROGRAMS / "right.py", cache) == {}


def test_the_right_program_runs() -> None:
    done = subprocess.run([sys.executable, str(PROGRAMS / "right.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@CHECKERS
def test_every_mistake_is_found_and_nothing_else(check: Check, cache: Path) -> None:
    lines = (PROGRAMS / "wrong.py").read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "# mistake: " in line}
    found = check(PROGRAMS / "wrong.py", cache).get("wrong.py", {})
    assert len(marked) > 60
    assert [lines[k - 1].strip() for k in sorted(marked - found.keys())] == []
    assert {lines[k - 1].strip(): found[k] for k in sorted(found.keys() - marked)} == {}


# -- names ---------------------------------------------------------------------------------------------


def is_of_table(value: Any) -> bool:
    """Whether a value is a public function or op."""
    return isinstance(value, type(kiln.relu)) or hasattr(value, "__kiln_name__")


def public_names(value: Any) -> list[str]:
    """What `dir` shows of a module or class, without what is missing on purpose and Python's own."""
    hidden = ("Absent", "_Feature", "module")  # modules, but for those that kiln itself names
    names = [n for n in dir(value) if is_public(n)]
    if value is kiln.nn.functional:  # not what it imports
        names = [n for n in names if is_of_table(getattr(value, n))]
    return [n for n in names if type(vars(value).get(n)).__name__ not in hidden]


@CHECKERS
def test_every_public_name_is_known(check: Check, cache: Path) -> None:
    """`kiln.name` of every name there is at run time, and `x.name` of every attribute of tensors."""
    places: dict[str, Any] = {"kiln": kiln, "kiln.linalg": kiln.linalg, "kiln.special": kiln.special}
    places |= {"kiln.nn": kiln.nn, "kiln.nn.functional": kiln.nn.functional, "kiln.Tensor": kiln.Tensor}
    program = cache / "names.py"
    asked = [f"{place}.{name}" for place, value in places.items() for name in public_names(value)]
    asked += [f"kiln.{name}" for name in kiln._PARTS.split()]
    assert len(asked) > 1500
    program.write_text(
        "import kiln\n\nfound: list[object] = [\n" + "".join(f"    {a},\n" for a in asked) + "]\n"
    )
    assert check(program, cache) == {}


def declared(name: str) -> Iterator[ast.FunctionDef]:
    """The functions of a file of types."""
    for node in ast.walk(ast.parse((TYPED / f"{name}.pyi").read_text())):
        if isinstance(node, ast.FunctionDef):
            yield node


@pytest.mark.parametrize(
    "name, place",
    [
        ("functions", kiln),
        ("linalg", kiln.linalg),
        ("special", kiln.special),
        ("functional", kiln.nn.functional),
        ("tensor", kiln.Tensor),
    ],
)
def test_every_declared_name_is_there(name: str, place: Any) -> None:
    missing = {node.name for node in declared(name) if not hasattr(place, node.name)}
    assert missing == set()


def taken(function: Any) -> set[str] | None:
    """The names of arguments that a function takes; None if any."""
    while hasattr(function, "__wrapped__") and not isinstance(function, type(ops.add)):
        function = function.__wrapped__
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    names = {p.name for p in parameters}
    return names | {alias for alias, own in record.ALIASES.items() if own in names}


def test_declared_arguments_are_taken() -> None:
    """Every argument of a form that may be given by name is one that the function has."""
    for name, functions in (("functions", table_functions()), ("tensor", table_methods())):
        for node in declared(name):
            names = taken(functions[node.name]) if node.name in functions else None
            if names is None:
                continue
            given = {a.arg for a in (*node.args.args[name == "tensor" :], *node.args.kwonlyargs)}
            positional = len(node.args.args) and node.args.args[0].arg
            wrong = {a for a in given - names if a not in ("dims", "size", "shape") and a != positional}
            assert wrong == set(), f"{name}: {node.name} declares {wrong}, and takes {names}"


def test_the_files_are_those_of_the_table() -> None:
    """They were written by the build from the table as it is."""
    for name, text in files().items():
        assert (TYPED / name).read_text() == text, f"{name} is old: build again"


def test_hardly_a_function_takes_anything() -> None:
    """Any is what no type of Python's says: the numbers a callable of the user's gets."""
    texts = {path.name: path.read_text() for path in TYPED.glob("*.pyi") if path.name != "words.pyi"}
    lines = [
        line for text in texts.values() for line in text.splitlines() if re.search(r"\bdef .*\bAny\b", line)
    ]
    assert [line for line in lines if "Callable[" not in line] == []


# -- the table's samples -------------------------------------------------------------------------------


def written(value: Any) -> str | None:
    """An argument of a sample as text; `t` for a tensor, None for what has no text."""
    if isinstance(value, np.ndarray):
        return "t"
    if isinstance(value, (list, tuple)):
        parts = [written(v) for v in value]
        if None in parts:
            return None
        inside = ", ".join(map(str, parts))
        return f"[{inside}]" if isinstance(value, list) else f"({inside},)" if value else "()"
    if isinstance(value, float) and not np.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, str) and isinstance(getattr(kiln, value, None), kiln.dtype):
        return f"kiln.{value}"
    return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else None


def claims(call: str, value: Any) -> dict[str, str]:
    """Expressions of a call, and the types that they have by what came of it: each part too, by its name."""
    if isinstance(value, (kiln.Tensor, bool, int, float)):
        return {call: type(value).__name__}
    if not isinstance(value, tuple):
        return {}
    fields = getattr(value, "_fields", ())
    parts = [f"{call}.{field}" for field in fields] or [f"{call}[{k}]" for k in range(len(value))]
    tensors = {part: "Tensor" for part, one in zip(parts, value) if isinstance(one, kiln.Tensor)}
    return {call: "tuple[object, ...]", **tensors}


def sample_calls() -> dict[str, str]:
    """Calls of public functions and parts of what they give, as text -> their types."""
    from kiln.testing.op_cases import Entry, tensors

    found: dict[str, str] = {}
    entries = [r for r in (*record.table(), *records()) if r.public and r.samples is not None]
    for entry in map(Entry, entries):
        if entry.name not in registry.FUNCTIONS or entry.name.startswith("_"):
            continue
        for case in entry.cases(entry.dtypes[0]):
            places = [written(v) for v in case.args]
            named = {k: written(v) for k, v in case.kwargs.items()}
            if None in places or None in named.values():
                continue
            given = tensors(kiln, case, entry.dtypes[0])
            shown = ", ".join([*map(str, places), *(f"{k}={v}" for k, v in named.items())])
            result = entry.function(*given.args, **given.kwargs)
            found.update(claims(f"kiln.{entry.name}({shown})", result))
    return found


@CHECKERS
def test_samples_are_calls_with_the_result_that_comes(check: Check, cache: Path) -> None:
    """Every sample of the table is a call that the types allow, and what it gives is what they say."""
    calls = sample_calls()
    assert len(calls) > 600
    lines = ["import kiln", "from kiln import Tensor", "", "t = kiln.ones(2)"]
    lines += [f"y{k}: {result} = {call}" for k, (call, result) in enumerate(calls.items())]
    program = cache / "samples.py"
    program.write_text("\n".join(lines) + "\n")
    found = check(program, cache).get("samples.py", {})
    assert {lines[k - 1]: text for k, text in found.items()} == {}
