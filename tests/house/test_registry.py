"""What is imported when: families of the table come with the first of their names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kiln
from kiln.table import registry


def run(program: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    return done.stdout


def test_families_are_current() -> None:
    """`make docs` writes the file."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "kiln.testing.op_families"], capture_output=True, text=True, check=True
    )
    assert done.stdout == (Path(registry.__file__).parent / "families.py").read_text()


def test_what_kiln_needs_is_all_that_it_imports() -> None:
    """The rest of the table is not read by `import kiln`, nor by what asks for names only."""
    loaded = run(
        "import sys, kiln; dir(kiln), dir(kiln.Tensor), hasattr(kiln, 'no_such'), kiln.linalg, kiln.special\n"
        "print(*[m for m in sys.modules if m.startswith('kiln.ops.')])"
    )
    families = {f"kiln.ops.{family}" for family in registry.FAMILIES}
    assert families and not families & set(loaded.split())
    eager = [name for name in loaded.split() if name not in families]
    assert len(eager) < 40, "another family is imported with kiln: is it needed by every program?"


@pytest.mark.parametrize(
    "use",
    [
        "kiln.sort(x).values",
        "x.sort().values",
        "x.cumsum(0)",
        "kiln.Tensor.cumsum(x, 0)",
        "x.clone().cumsum_(0)",
        "kiln.nn.functional.glu(x)",
        "kiln.special.entr(x)",
        "kiln.special.expit(x)",
        "kiln.linalg.vector_norm(x)",
        "kiln.nn.Parameter(x).sort().values",
        "kiln.compile(lambda x: x.sort().values.cumsum(0))(x)",
        "__import__('numpy').arctan(x)",
    ],
)
def test_the_first_use_of_a_family(use: str) -> None:
    """Asked for by whichever name first, a function is there and is the one that stays."""
    again = run(f"import kiln; import kiln.nn; x = kiln.tensor([2.0, 1.0]); print({use}); print({use})")
    lines = again.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
    assert lines[0].startswith(("tensor(", "Tensor", "Parameter"))


def test_every_name_is_found_and_listed() -> None:
    """A name that is listed is there, and one that is there is listed; a name has one owner."""
    functions = kiln.ops.functions()
    for name in functions:
        space, _, short = name.rpartition(".")
        module = getattr(kiln, space) if space else kiln
        assert short in dir(module) and getattr(module, short) is functions[name], name
    assert all(hasattr(kiln.Tensor, name) for name in registry.METHODS)
    assert not any(isinstance(getattr(kiln.Tensor, name), registry.Late) for name in registry.METHODS)
    with pytest.raises(AttributeError, match="no attribute 'no_such'"):
        _ = kiln.no_such
    with pytest.raises(AttributeError, match="no attribute 'no_such'"):
        _ = kiln.linalg.no_such
    with pytest.raises(AssertionError, match="sort twice"):
        registry.register("sort", functions["sort"])


def test_a_name_asked_for_again_needs_no_search() -> None:
    """Functions stay where they were asked for; no module of the table has a function's name."""
    program = (
        "import kiln, kiln.linalg, kiln.special, sys; from kiln import ops\n"
        "for place, name in ((kiln, 'sort'), (ops, 'sort'), (kiln.linalg, 'det'), (kiln.special, 'expit')):\n"
        "    before = name in vars(place); getattr(place, name); print(before, name in vars(place))"
    )
    assert run(program).splitlines() == ["False True"] * 4
    rooms = {p.stem for p in Path(kiln.ops.__file__).parent.iterdir()}
    assert not rooms & kiln.ops.functions().keys()


def test_star_import() -> None:
    """`from kiln import *` brings every public function, whenever its family comes."""
    names: dict[str, object] = {}
    exec("from kiln import *", names)
    assert {"sort", "Tensor", "nn", "float32", "manual_seed"} <= names.keys()
    assert not [name for name in names if name.startswith("_") and name != "__builtins__"]
