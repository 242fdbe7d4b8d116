"""The page of every public function, written from the table: `make docs`.

    python -m kiln.testing.op_page > docs/ops.md

Which dtypes a function takes is not what its entry says of its tests, but what comes of calling it with its
first sample in every dtype.
"""

from __future__ import annotations

import inspect
from typing import Any

import kiln
from kiln import ops
from kiln.table import registry
from kiln.table.public import FACTS
from kiln.testing.op_cases import GROUPS, Entry, arrays_of, tensors

HEAD = """# Every operation

Written by `make docs` from the entries in `kiln/ops`: do not edit it. `help(kiln.add)` says what one does,
with an example.

- **where**: from where it is called. `x.` is a method of tensors, `F` kiln.nn.functional.
- **in place**: `x.` where `x.name_()` exists, `kiln` where the function `kiln.name_` does.
- **out**: takes `out=`, of the result's shape.
- **dtypes** of the tensors it is about. *float* is float16, bfloat16, float32 and float64; *int* the five
  integers; *number* both; *all* these and bool. Empty: it is about none.
- **derivative**: *stated* by its entry; *follows* from what it is made of; or *none*.
- **differs** from PyTorch's, on purpose or where PyTorch leaves it open. What holds for all is
  [said once](coming_from_pytorch.md#what-differs-on-purpose); that a dtype is taken which PyTorch's kernels
  refuse is not said.

"""
COLUMNS = ("function", "where", "in place", "out", "dtypes", "derivative", "differs")
LEFT_OUT = {"pointwise"}  # makes functions


def names() -> dict[str, Any]:
    """Every public function under the name PyTorch's documentation has it by, in-place forms apart."""
    return {
        name: function
        for name, function in ops.functions().items()
        if not name.endswith("_") and name not in LEFT_OUT and not isinstance(function, type)
    }


def facts(name: str, function: Any) -> Any:
    """The record that says most of a function: one with samples, its op, or what it states for the docs."""
    own = str(getattr(function, "__kiln_name__", None) or getattr(function, "__name__", ""))
    fact = FACTS.get(own)
    return fact if fact and fact.samples else getattr(function, "record", None) or fact


def own_name(name: str, function: Any) -> str:
    """The name of which `name` is another."""
    own = getattr(function, "__kiln_name__", None) or getattr(function, "__name__", name)
    return own if own in names() else name


def dtypes(record: Any) -> str:
    """The dtypes in which the first sample runs, by the names of their groups."""
    if record is None or getattr(record, "samples", None) is None:
        return ", ".join(getattr(record, "dtypes", "").split())
    taken = {d for d in GROUPS["all"] if _runs(Entry(record), d)}
    shown = [group for group in ("all", "number", "float", "int") if taken.issuperset(GROUPS[group])][:1]
    rest = taken - {d for group in shown for d in GROUPS[group]}
    return ", ".join([*shown, *(d for d in GROUPS["all"] if d in rest)])


def _runs(entry: Entry, dtype: str) -> bool:
    """Whether the first sample that has a tensor of `dtype` is taken."""
    try:
        for case in entry.cases(dtype):
            drawn = "float32" if dtype == "bfloat16" else dtype
            if any(x.dtype == drawn for x in arrays_of(case)):
                given = tensors(kiln, case, dtype)
                entry.function(*given.args, **given.kwargs)
                return True
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        pass
    return False


def derivative(record: Any) -> str:
    """Whether an entry states its derivative, lets it follow, or has none."""
    if record is None or not record.differentiable:
        return "none"
    return "stated" if getattr(record, "gradient", None) is not None else "follows"


def homes(name: str, function: Any) -> str:
    """The other places a function is called from."""
    space = name.rpartition(".")[0]
    found = [f"kiln.{space}" if space else "kiln"]
    if not space and hasattr(kiln.Tensor, name):
        found.append("x.")
    if not space and name in dir(kiln.nn.functional):
        found.append("F")
    if not space:
        special = [n for n in dir(kiln.special) if getattr(kiln.special, n) is function]
        found += ["special" if n == name else f"special.{n}" for n in special]
    return ", ".join(found)


def takes_out(function: Any) -> bool:
    """Whether a function, or what stands before it, takes `out`."""
    while function is not None:
        code = getattr(function, "__code__", None)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else ()
        if "out" in names or (code is None and "out" in inspect.signature(function).parameters):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def call_of(name: str, function: Any) -> str:
    """How a function is called: its parameters without annotations and `out`."""
    shown = inspect.signature(function)
    empty = inspect.Parameter.empty
    bare = [p.replace(annotation=empty) for p in shown.parameters.values() if p.name != "out"]
    return f"{name}{shown.replace(parameters=bare, return_annotation=empty)}"


def differences(own: str, record: Any) -> str:
    """What its records say of how a function differs, and what it needs."""
    records = [r for r in (record, FACTS.get(own)) if r is not None]
    said = [getattr(r, "differs", "") for r in records]
    said += ["it or its derivative needs SciPy" for r in records if getattr(r, "needs", "") == "scipy"]
    return "; ".join(dict.fromkeys(filter(None, said)))


def row(name: str, function: Any) -> tuple[str, ...]:
    """The line of one function."""
    own, record = own_name(name, function), facts(name, function)
    places = [("x.", hasattr(kiln.Tensor, f"{name}_")), ("kiln", registry.has_function(f"{name}_"))]
    return (
        f"`{call_of(name, function)}`",
        homes(name, function),
        ", ".join(place for place, there in places if there),
        "yes" if takes_out(function) else "",
        dtypes(record),
        derivative(record),
        f"as `{own}`" if own != name else differences(own, record),
    )


def page() -> str:
    """The whole page."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for name, function in sorted(names().items(), key=lambda item: item[0].lower()):
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in row(name, function)) + " |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
