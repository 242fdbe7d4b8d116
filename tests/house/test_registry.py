"""What is imported when: families of the table come with the first of their names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kiln
from kiln.table import index, registry

ROOT = Path(__file__).parents[2]


def run(program: str, tree: str = "") -> str:
    """What a fresh process prints, with the kiln of a tree if one is given."""
    env = {**os.environ, "PYTHONPATH": tree} if tree else None
    command = [sys.executable, "-P", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source tree of its own: the package under test, and what a build writes its index with."""
    root = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("packs", "__pycache__", "index.txt", "_typed")
    shutil.copytree(Path(kiln.__file__).parent, root / "kiln", ignore=ignored)
    (root / "pack").mkdir()
    shutil.copy2(ROOT / "pack" / "write_table.py", root / "pack")
    return root


def written(tree: Path, package: Path) -> str:
    """The index that a build of the tree writes into a package."""
    core = str(next((tree / "kiln").glob("_core*.so")))
    command = [sys.executable, "-P", "-B", str(tree / "pack" / "write_table.py"), core, str(package)]
    subprocess.run(command, check=True)
    return (package / "table" / "index.txt").read_text()


def test_the_index_has_every_name_once(tree: Path, tmp_path: Path) -> None:
    """It is what the modules register; of a package that is installed, whatever state the files are in."""
    state, *rows = written(tree, tmp_path).splitlines()
    assert state == "" and (tmp_path / "_typed" / "tensor.pyi").exists()
    kiln.ops.functions()
    registered = (registry.FUNCTIONS, registry.METHODS, registry.LAYERS, registry.OPS)
    for kind, names in enumerate(registered, 1):
        listed = [name for row in rows for name in row.split("\t")[kind].split()]
        assert len(listed) == len(set(listed))
        # what tests of this process made, as `pointwise` does, is no module's
        assert set(listed) <= set(names) and not [n for n in names if n not in listed and n in dir(kiln)]
    assert not [row for row in rows if row.split("\t")[0] not in index.modules()]


def test_a_new_op_needs_no_build(tree: Path) -> None:
    """An index that is older than a module counts as none, until the next build writes another."""
    look = (
        "import sys, kiln; from kiln.table import registry\n"
        "print(registry.is_indexed(), 'kiln.ops.sorting.counts' in sys.modules, 'fresh' in dir(kiln))\n"
        "x = kiln.ones(2)\n"
        "if 'fresh' in dir(kiln): print(kiln.fresh(x).tolist(), x.fresh().tolist())"
    )
    place = str(tree)
    assert run(look, place).split() == ["False", "True", "False"]  # nothing is built
    written(tree, tree / "kiln")
    assert run(look, place).split() == ["True", "False", "False"]
    module = tree / "kiln" / "ops" / "sorting" / "counts.py"
    text = module.read_text()
    module.write_text(text + '\n\n@public("fresh")\ndef fresh(input: Any) -> Any:\n    return input + 1\n')
    called = "[2.0, 2.0] [2.0, 2.0]"
    assert run(look, place).splitlines() == ["False True True", called]
    written(tree, tree / "kiln")
    assert run(look, place).splitlines() == ["True False True", called]
    module.write_text(text)
    assert run(look, place).split() == ["False", "True", "False"]


@pytest.mark.skipif(
    not registry.is_indexed(), reason="a tree edited since it was built: all families are imported"
)
def test_what_kiln_needs_is_all_that_it_imports() -> None:
    """The rest of the table is not read by `import kiln`, nor by what asks for names only."""
    loaded = run(
        "import sys, kiln; dir(kiln), dir(kiln.Tensor), hasattr(kiln, 'no_such'), kiln.linalg, kiln.special\n"
        "print(*[m for m in sys.modules if m.startswith('kiln.ops.')])"
    )
    late = {f"kiln.ops.{family}" for family in index.modules()} - set(loaded.split())
    assert {"kiln.ops.sorting.sorts", "kiln.ops.linalg.systems", "kiln.ops.nn.grids"} <= late
    assert len(loaded.split()) < 40, "another family is imported with kiln: is it needed by every program?"


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
    assert not {"random", "signal", "types"} & names.keys()  # which a program has of Python's
    assert not [name for name in names if name.startswith("_") and name != "__builtins__"]


@pytest.mark.parametrize(
    ("module", "some", "fewest"),
    [
        (
            "nn.functional",
            {"relu", "conv2d", "linear", "dropout", "max_pool2d", "cross_entropy", "relu_"},
            120,
        ),
        ("linalg", {"norm", "svd", "solve", "LinAlgError"}, 40),
        ("special", {"expit", "gammainc", "i0e", "erf"}, 50),
        ("masked", {"softmax", "mean", "cumsum"}, 19),
        ("nn.init", {"kaiming_uniform_", "zeros_", "calculate_gain"}, 26),
    ],
)
def test_star_imports_of_namespaces(module: str, some: set[str], fewest: int) -> None:
    """`import *` brings what users call, whether it is made by then or not, and none of the helpers."""
    names: dict[str, object] = {}
    exec(f"from kiln.{module} import *", names)
    del names["__builtins__"]
    assert some <= names.keys() and len(names) >= fewest
    assert not {"Any", "annotations", "math", "message", "ops", "registry", "warn"} & names.keys()
    assert all(callable(x) for x in names.values())
