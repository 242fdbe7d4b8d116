"""The pack: what was made when the wheel was built is found by the first process, and nothing else is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from backend import needs_kiln

pytestmark = needs_kiln
pytest.importorskip("kiln._core")

from kiln import _core  # noqa: E402
from kiln.codegen.compile import kernel_key  # noqa: E402
from kiln.codegen.gemm.element import element_of  # noqa: E402
from kiln.codegen.store import cache, kept, pack  # noqa: E402
from kiln.codegen.store.identity import host_source  # noqa: E402
from kiln.codegen.store.pack import ANSWERS, HEADER, RECORD, Pack  # noqa: E402
from kiln.codegen.target import LEVELS, host_target  # noqa: E402

ROOT = Path(__file__).parents[2]
INSTALLED = Path(_core.__file__).parent / "packs"
LIMIT = 240
LEVEL = host_target().name
LOWER = "x86-64-v3"

# pointwise, a composite, a product with its library, a derivative, a recorded region
PROGRAM = """
import kiln
def work():
    x = kiln.arange(12.0).reshape(3, 4).requires_grad_()
    y = (kiln.softmax(x @ x.t(), 1) * 0.5 + 1.25).sum()
    y.backward()
    return y.item(), x.grad.tolist()
step = kiln.compile(lambda x: kiln.softmax(x * 2 + 1, 1).sum(0))
print(work(), [step(kiln.ones(4, 5)).tolist() for _ in range(3)])
step.wait()
"""
NOTHING_MADE = """
import sys
from kiln.codegen import llvm
made = [m for m in ("kiln.capture.make", "kiln.codegen.nests.generate", "llvmlite") if m in sys.modules]
assert not made and llvm._library is None, made
"""
NO_LLVM = "from kiln.codegen import llvm\nllvm.folder = lambda: None\n"
MAKE = """
import sys
from pathlib import Path
sys.path.insert(0, "pack")
import programs
programs.PROGRAMS = [lambda: exec(sys.argv[2], {})]
import make
make.main(Path(sys.argv[1]))
"""


def run(text: str, *arguments: str, **variables: str) -> str:
    """What a process of its own prints; it must end well and say nothing else."""
    command = [sys.executable, "-P", "-c", text, *arguments]
    environment = {**os.environ, "KILN_CHECK": "0", **variables}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pack of the program."""
    folder = tmp_path_factory.mktemp("made") / "packs"
    run(MAKE, str(folder), PROGRAM)
    return folder


@pytest.fixture(scope="module")
def printed() -> str:
    """What the program prints without a pack."""
    return run(PROGRAM)


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """A pack that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def entries(folder: Path, name: str) -> dict[bytes, bytes]:
    """What a file of a pack holds."""
    opened = Pack(str(folder / name), host_source())
    keys = [opened.index[at : at + 32] for at in range(0, len(opened.index), RECORD)]
    return {key: entry for key in keys if (entry := opened.load(key)) is not None}


def test_a_first_process_makes_nothing(made: Path, printed: str, tmp_path: Path) -> None:
    """It needs no LLVM, captures nothing and keeps nothing but what tells its source."""
    variables = {"KILN_PACK": str(made), "KILN_CACHE_DIR": str(tmp_path)}
    assert run(NO_LLVM + PROGRAM + NOTHING_MADE, **variables) == printed
    assert len(list((tmp_path / "kernels").iterdir())) == 1


def test_every_level(made: Path, printed: str, tmp_path: Path) -> None:
    """Each level of this kind of machine has its kernels, and what is asked to be of less finds its own."""
    levels = [name for name, target in LEVELS.items() if target.triple == host_target().triple]
    assert sorted(p.name for p in made.iterdir()) == sorted([ANSWERS, *levels])
    kernels = [entries(made, name) for name in levels]
    masked = {kernel_key(f"tile_masked of {element_of(dtype)}") for dtype in ("float32", "float64", "int64")}
    assert all(k.keys() - masked == kernels[0].keys() - masked for k in kernels)
    found = {(LEVELS[name].masks, frozenset(k.keys() & masked)) for name, k in zip(levels, kernels)}
    assert len(found) == len({LEVELS[name].masks for name in levels})
    assert all(bool(keys) == masks for masks, keys in found), "what only machines with masks share"
    assert not kernels[0].keys() & entries(made, ANSWERS).keys()
    if LEVEL == LOWER or LOWER not in levels:
        pytest.skip("this machine has nothing to take away")
    variables = {"KILN_PACK": str(made), "KILN_CACHE_DIR": str(tmp_path), "KILN_TARGET_FEATURES": LOWER}
    assert run(NO_LLVM + PROGRAM + NOTHING_MADE, **variables) == printed


def test_turned_off(printed: str, tmp_path: Path) -> None:
    """No pack, a folder without one, one of other sources: the process makes what it needs."""
    with pytest.raises(AssertionError, match="kiln.capture.make"):
        run(PROGRAM + NOTHING_MADE, KILN_PACK="0", KILN_CACHE_DIR=str(tmp_path / "cache"))
    assert run(PROGRAM, KILN_PACK=str(tmp_path), KILN_CACHE_DIR=str(tmp_path / "cache")) == printed


def test_of_other_sources(copy: Path, printed: str, tmp_path: Path) -> None:
    for path in copy.iterdir():
        entry = path.read_bytes()
        path.write_bytes(entry[:16] + bytes(32) + entry[48:])
        assert not len(Pack(str(path), host_source())) and len(Pack(str(path), bytes(32)))
    assert run(PROGRAM, KILN_PACK=str(copy), KILN_CACHE_DIR=str(tmp_path)) == printed


def test_damage_is_found(tmp_path: Path) -> None:
    """Cut anywhere, any byte changed, and sizes beyond all bounds: the right entry or none."""
    path = tmp_path / "pack"
    right = {bytes([k]) * 32: bytes([k]) * 9 * k for k in range(1, 6)}
    pack.write(str(path), bytes(32), right)
    whole = path.read_bytes()
    assert {key: Pack(str(path), bytes(32)).load(key) for key in right} == right
    wrong = [whole[:n] for n in range(len(whole))]
    wrong += [whole[:n] + bytes([whole[n] ^ 4]) + whole[n + 1 :] for n in range(len(whole))]
    numbers = [HEADER - 8, HEADER + 64, HEADER + 72]
    wrong += [whole[:n] + b"\xff" * 8 + whole[n + 8 :] for n in numbers]
    wrong += [whole[:n] + b"\xff" * 7 + b"\x7f" + whole[n + 8 :] for n in numbers]
    missing = 0
    for entry in wrong:
        path.write_bytes(entry)
        opened = Pack(str(path), bytes(32))
        for key, want in right.items():
            found = opened.load(key)
            missing += found is None
            assert found in (None, want)
        assert opened.load(bytes(32)) is None and opened.load(b"\xff" * 32) is None
    assert missing > len(wrong)


def test_damaged_entries_are_made_again(copy: Path, printed: str, tmp_path: Path) -> None:
    for path in copy.iterdir():
        entry = path.read_bytes()
        place = HEADER + RECORD * len(Pack(str(path), host_source()))
        path.write_bytes(entry[:place] + bytes(len(entry) - place))
        assert len(Pack(str(path), host_source()))
    assert run(PROGRAM, KILN_PACK=str(copy), KILN_CACHE_DIR=str(tmp_path)) == printed


def test_answers_without_kernels(copy: Path, printed: str, tmp_path: Path) -> None:
    (copy / LEVEL).unlink()
    assert run(PROGRAM, KILN_PACK=str(copy), KILN_CACHE_DIR=str(tmp_path)) == printed


def test_the_users_cache_comes_first(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_PACK", str(made))
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))
    key, entry = next(iter(entries(made, LEVEL).items()))
    assert kept.load(key) == entry and not os.listdir(tmp_path)
    assert kept.store(key, b"mine") and kept.load(key) == b"mine"
    cache.disk().close()


@pytest.mark.skipif(not INSTALLED.is_dir(), reason="kiln is not installed from a wheel that has a pack")
def test_the_readme_with_the_installed_pack(tmp_path: Path) -> None:
    """The first program of the README makes nothing: all of it came with kiln."""
    text = (ROOT / "README.md").read_text()
    found = re.search(r"```python\n(import.*?)```", text, re.DOTALL)
    assert found is not None
    program = f"import os\nos.chdir({str(tmp_path)!r})\n" + found[1]
    run(NO_LLVM + program + NOTHING_MADE, KILN_PACK="", KILN_CACHE_DIR=str(tmp_path))
