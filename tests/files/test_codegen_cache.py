"""The kernel cache against everything a directory may hold, and the checks around LLVM."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from codegen_peer import reads, writes

from kiln import _core
from kiln.codegen import compile as compiler
from kiln.codegen import llvm
from kiln.codegen.gemm.kernel import gemm_parts
from kiln.codegen.gemm.spec import product
from kiln.codegen.nests.nest import Nest
from kiln.codegen.store import identity, kept
from kiln.codegen.store.cache import DiskCache, cache_directory
from kiln.codegen.target import LEVELS, host_target
from kiln.codegen.verify import verify_nest, verify_object, verify_text
from kiln.scalars.scalar import Scalar, const, convert

KEY = bytes(range(32))
DATA = b"an object" * 100
X = Scalar("load", (), "f32", 0)
HEADER = len(_core.header_of_entry(KEY, DATA))
NEST = Nest(
    ("p",), (reads("float32", "1"), writes("float32", "1")), (), ((1, X + 1.0),)
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of its own, and nothing in memory."""
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "_memory", {})
    return tmp_path / "cache"


def entry(cache: DiskCache) -> Path:
    assert cache.path is not None
    return Path(cache.path) / "kernels" / KEY.hex()


def test_round_trip_and_modes(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path / "a" / "b"))
    assert cache.load(KEY) is None
    assert cache.store(KEY, DATA)
    assert cache.load(KEY) == DATA and DiskCache(cache.path).load(KEY) == DATA
    assert entry(cache).parent.stat().st_mode & 0o777 == 0o700
    assert entry(cache).stat().st_mode & 0o777 == 0o600
    assert [p.name for p in entry(cache).parent.iterdir()] == [KEY.hex()]


def test_damage_is_a_miss(tmp_path: Path) -> None:
    """Truncated anywhere, any byte changed, grown, or another key's entry: never returned, then rebuilt."""
    cache = DiskCache(str(tmp_path))
    cache.store(KEY, DATA)
    whole = entry(cache).read_bytes()
    for length in range(len(whole)):
        entry(cache).write_bytes(whole[:length])
        assert cache.load(KEY) is None
    for place in range(len(whole)):
        entry(cache).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert cache.load(KEY) is None
    entry(cache).write_bytes(whole + b"x")
    assert cache.load(KEY) is None
    for length in (0, len(DATA) + 1, 2**63, 2**64 - 1):
        entry(cache).write_bytes(whole[: HEADER - 8] + length.to_bytes(8, "little") + DATA)
        assert cache.load(KEY) is None
    other = bytes(32)
    entry(cache).write_bytes(whole)
    os.rename(entry(cache), entry(cache).with_name(other.hex()))
    assert cache.load(other) is None
    entry(cache).write_bytes(whole[:16] + other + whole[48:])  # the rest of another key's
    os.rename(entry(cache), entry(cache).with_name(other.hex()))
    assert cache.load(other) is None
    assert cache.store(KEY, DATA) and cache.load(KEY) == DATA


@pytest.mark.parametrize("kind", ["directory", "fifo", "symlink", "writable by others", "empty"])
def test_planted_entries(tmp_path: Path, kind: str) -> None:
    cache = DiskCache(str(tmp_path))
    cache.store(KEY, DATA)
    path = entry(cache)
    if kind == "writable by others":
        path.chmod(0o666)
    else:
        path.rename(tmp_path / "elsewhere")
        if kind == "directory":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "symlink":
            path.symlink_to(tmp_path / "elsewhere")
        else:
            path.touch()
    assert cache.load(KEY) is None
    assert cache.store(KEY, DATA) is (kind != "directory")
    assert [p.name for p in path.parent.iterdir()] == [KEY.hex()]


def test_what_is_linked_is_not_written(tmp_path: Path) -> None:
    """A link under an entry's name is replaced; what it leads to stays as it was."""
    cache = DiskCache(str(tmp_path))
    cache.store(KEY, DATA)
    for link in (os.link, os.symlink):
        (tmp_path / "mine").write_bytes(b"precious")
        entry(cache).unlink()
        link(tmp_path / "mine", entry(cache))
        assert cache.load(KEY) is None and cache.store(KEY, DATA) and cache.load(KEY) == DATA
        assert (tmp_path / "mine").read_bytes() == b"precious"
        (tmp_path / "mine").unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_somebody_elses(tmp_path: Path) -> None:
    """An entry, or a directory, of another user is not used."""
    cache = DiskCache(str(tmp_path))
    cache.store(KEY, DATA)
    os.chown(entry(cache), 12345, 12345)
    assert cache.load(KEY) is None
    assert cache.store(KEY, DATA) and cache.load(KEY) == DATA
    os.chown(tmp_path / "kernels", 12345, 12345)
    assert DiskCache(str(tmp_path)).load(KEY) is None and not DiskCache(str(tmp_path)).store(KEY, DATA)


@pytest.mark.parametrize("kind", ["open to others", "file", "symlink", "dangling parent"])
def test_untrusted_directory_is_not_used(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "kernels"
    if kind == "open to others":
        folder.mkdir()
        folder.chmod(0o755)
    elif kind == "file":
        folder.touch()
    elif kind == "symlink":
        (tmp_path / "real").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "real")
    cache = DiskCache(str(tmp_path) if kind != "dangling parent" else "/proc/nowhere/at/all")
    assert not cache.store(KEY, DATA)
    assert cache.load(KEY) is None


def test_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KILN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/somewhere")
    assert cache_directory() == "/somewhere/.cache/kiln"
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_directory() == "/cache/kiln"
    monkeypatch.setenv("KILN_CACHE_DIR", "/mine")
    assert cache_directory() == "/mine"
    assert not DiskCache(None).store(KEY, DATA) and DiskCache(None).load(KEY) is None


FULL = """
import resource, sys
from kiln.codegen.store.cache import DiskCache
cache = DiskCache(sys.argv[1])
assert cache.store(bytes(32), b"small")
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
assert not cache.store(bytes(range(32)), b"an object" * 100) and cache.load(bytes(32)) == b"small"
"""


def test_full_disk(tmp_path: Path) -> None:
    """A write that fails half way leaves nothing behind."""
    subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], check=True, timeout=60)
    assert [p.name for p in (tmp_path / "kernels").iterdir()] == [bytes(32).hex()]


def test_object_comes_from_disk_the_second_time(place: Path) -> None:
    first = compiler.kernel_object(NEST)
    compiler._memory.clear()

    def never() -> str:
        raise AssertionError("the text was written again")

    assert compiler.object_for(NEST.text(), never) == first
    stored = place / "kernels" / kept.name(compiler.kernel_key(NEST.text())).hex()
    stored.write_bytes(stored.read_bytes()[:-1])
    compiler._memory.clear()
    assert compiler.kernel_object(NEST) == first


def test_unwritable_cache_only_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_CACHE_DIR", "/proc/nowhere")
    monkeypatch.setattr(compiler, "_memory", {})
    verify_object(compiler.kernel_object(NEST))


def test_warm_process_imports_no_compiler(place: Path) -> None:
    compiler.kernel_object(NEST)
    text = (
        "import sys; from kiln.codegen.compile import kernel_object;"
        "from kiln.codegen.nests.nest import Nest, Operand;"
        "from kiln.scalars.scalar import Scalar; x = Scalar('load', (), 'f32', 0);"
        "a, b = Operand('float32', 'in', ('1',)), Operand('float32', 'out', ('1',));"
        "n = Nest(('p',), (a, b), (), ((1, x + 1.0),));"
        "assert kernel_object(n)[:4] == b'\\x7fELF';"
        "assert not {'llvmlite', 'ctypes', 'numpy', 'inspect', 'dataclasses'} & set(sys.modules);"
        "assert 'libllvmlite' not in open('/proc/self/maps').read()"
    )  # fmt: skip
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


def test_cold_process_loads_the_library_alone(place: Path) -> None:
    text = (
        "import sys; from kiln.codegen.compile import compile_text;"
        "from kiln.codegen.target import host_target;"
        "assert compile_text('define void @kernel() { ret void }', host_target())[:4] == b'\\x7fELF';"
        "assert 'libllvmlite' in open('/proc/self/maps').read() and 'llvmlite' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


@pytest.mark.parametrize(
    "text", ["define void @kernel() { ret i32 0 }", "no module", "define i32 @kernel() { ret i32 %x }"]
)
def test_llvm_says_why_it_refuses(text: str) -> None:
    with pytest.raises(RuntimeError, match=r"LLVM: .*(error|expected|undefined)"):
        compiler.compile_text(text, host_target())


def test_shared_parts_are_made_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a plain product for another epilogue, a window's, another dtype's with such sums: in memory, from
    disk, and among kernels that are made together.
    """
    made: list[str] = []
    real = compiler._Work._object

    def noted(work: Any, part: compiler.Part, names: tuple[str, ...], end: int) -> bytes:
        made.extend(part.functions)
        return real(work, part, names, end)

    monkeypatch.setattr(compiler._Work, "_object", noted)
    host, plain = LEVELS["x86-64-v3"], product("int32")
    compiler.compile_parts(gemm_parts(plain, host), host)
    tiles = ["tile", "tile_squares", "tile_transposed", "transpose", "zeros"]
    assert sorted(made) == ["copy", "finish", "kernel", "product", *tiles]
    ((k, value),) = plain.stores
    negated = plain._replace(stores=((k, Scalar("neg", (value,), value.type)),), accumulator=1)
    other = negated._replace(stores=((k, Scalar("abs", (value,), value.type)),))
    for spec, own in (
        (negated, ["finish", "kernel", "product"]),
        (other, ["finish", "kernel"]),
        (plain._replace(window=True), ["finish", "kernel", "offsets", "product", "tile_indirect", "window"]),
        (product("int16"), ["copy", "finish", "kernel", "product", "transpose", "zeros"]),
    ):
        made.clear()
        compiler._memory.clear()
        compiler.compile_parts(gemm_parts(spec, host), host)
        assert sorted(made) == own
    made.clear()
    both = [gemm_parts(product(dtype), host) for dtype in ("int64", "int64")]
    first, second = compiler.compile_kernels(both, host)
    assert first == second
    assert sorted(made) == ["copy", "finish", "finish", "kernel", "kernel", "product", *tiles]


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_a_part_that_cannot_be_made(wrong: int) -> None:
    """Whichever thread has it: raised, and the next kernel is made."""
    texts = [f"define void @{name}() {{ ret void }}" for name in ("kernel", "f", "g")]
    parts = [compiler.Part((name,), text.__str__) for name, text in zip(("kernel", "f", "g"), texts)]
    assert compiler.compile_parts(parts, host_target())
    parts[wrong] = parts[wrong]._replace(text="no module".__str__)
    with pytest.raises(RuntimeError, match="LLVM: "):
        compiler.compile_parts(parts, host_target())
    assert compiler.compile_text(texts[0], host_target())


def test_another_llvmlite_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "_library", None)
    monkeypatch.setattr(llvm, "LLVMLITE", b"0.49.")
    with pytest.raises(ImportError, match=r"needs llvmlite 0.49.\*"):
        llvm.Machine(host_target())
    monkeypatch.setattr(llvm, "folder", lambda: None)
    with pytest.raises(ImportError, match="not installed"):
        llvm.Machine(host_target())


def test_names_tell_machines_apart(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name changes with the target, the machine, LLVM, and any file that shapes kernels and plans."""

    monkeypatch.setattr(identity, "_find", identity._find.__wrapped__)  # remembers nothing

    def keys() -> set[bytes]:
        monkeypatch.setattr(identity, "_others", {})
        return {kept.name(KEY, target) for target in LEVELS.values()}

    found = keys()
    assert found == keys()
    monkeypatch.setattr(identity._core, "cpu_identity", lambda: "another machine")
    found |= keys()
    monkeypatch.setattr(llvm, "identity", lambda: b"another LLVM")
    monkeypatch.setattr(llvm, "folder", lambda: None)
    found |= keys()
    changed = place.parent / "changed.py"
    changed.write_text("x = 1")
    files = identity.source_files()
    monkeypatch.setattr(identity, "source_files", lambda: [*files, (str(changed), changed.stat())])
    found |= keys()
    changed.write_text("x = 2")
    found |= keys()
    assert len(found) == 5 * len(LEVELS)


# parts that say nothing of what a kernel or a plan is
# (what kiln.fx captures for a backend of the program's own is no kernel)
SHAPELESS = set(
    "_core _typed absent autograd device errors files fx late layout nn onnx printing random serialization "
    "tensor tuples utils version viz".split()
)


def test_every_part_that_shapes_kernels_is_in_their_identity() -> None:
    """A part that one of these imports is one of them too, unless it is known to shape nothing."""
    found = set()
    for part in identity.PARTS:
        for path in (Path(identity.ROOT) / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kiln"):
                    below = (
                        [node.module] if "." in str(node.module) else [f"kiln.{a.name}" for a in node.names]
                    )
                    found |= {str(name).split(".")[1] for name in below}
    assert found - SHAPELESS <= set(identity.PARTS)


def test_every_part_whose_ops_mean_the_same_in_every_process_is_in_it() -> None:
    """What such an op computes is written in the part that gives it its identity: its answers are kept."""
    root = Path(identity.ROOT)
    given = {
        path.relative_to(root).parts[0]
        for path in root.rglob("*.py")
        if re.search(r"\.identity = (?!None$)", path.read_text(), re.MULTILINE)
    }
    assert {"func", "batching", "tracing"} <= given <= set(identity.PARTS)


def test_files_in_folders_shape_kernels_too(tmp_path: Path) -> None:
    for part in identity.PARTS:
        (tmp_path / part / "family" / "rare").mkdir(parents=True)
    made = [tmp_path / "ops" / name for name in ("a.py", "family/b.py", "family/rare/c.py", "notes.md")]
    for file in made:
        file.touch()
    found = {path for path, _ in identity.source_files(str(tmp_path))}
    assert found == {str(file) for file in made[:3]} | {identity._core.__file__}
    here = {str(p) for part in identity.PARTS for p in (Path(identity.ROOT) / part).rglob("*.py")}
    assert {path for path, _ in identity.source_files()} == here | {identity._core.__file__}


def test_features_can_be_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    if not host_target().name.startswith("x86"):
        pytest.skip("x86 levels")
    for asked in ("x86-64-v3", "-avx512f", "-avx512*"):
        monkeypatch.setenv("KILN_TARGET_FEATURES", asked)
        assert host_target().name == "x86-64-v3"
    monkeypatch.setenv("KILN_TARGET_FEATURES", "-avx2")
    with pytest.raises(RuntimeError, match="lacks avx2"):
        host_target()
    for asked in ("aarch64", "pentium"):
        monkeypatch.setenv("KILN_TARGET_FEATURES", asked)
        with pytest.raises(ValueError, match="KILN_TARGET_FEATURES"):
            host_target()


def test_threads_and_fork(place: Path) -> None:
    """Several threads compile at once; a child forked meanwhile compiles too."""
    found: list[bytes] = []

    def work(k: int) -> None:
        nest = NEST._replace(stores=((1, X * (k + 0.5)),))
        found.append(compiler.kernel_object(nest))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    child = os.fork()
    if not child:
        try:
            compiler.kernel_object(NEST._replace(stores=((1, X - 17.0),)))
            os._exit(0)
        finally:
            os._exit(1)
    for thread in threads:
        thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert len(found) == 4


@pytest.mark.parametrize(
    "text",
    [
        "declare float @llvm.exp.f32(float)",
        "declare ptr @malloc(i64)",
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
        "define void @kernel() {\n %a = frem float 1.0, 2.0\n ret void }",
        "define void @kernel() {\n %a = fadd half 1.0, 2.0\n ret void }",
        "define void @kernel() {\n %a = fmul <16 x bfloat> %x, %y\n ret void }",
        "define void @kernel() {\n %a = fadd fast float 1.0, 2.0\n ret void }",
        "define void @kernel() {\n %a = fmul reassoc float 1.0, 2.0\n ret void }",
        "define void @kernel() {\n %a = fcmp nnan olt float 1.0, 2.0\n ret void }",
        'define void @kernel() {\n call void asm sideeffect "hlt", ""()\n ret void }',
        "define void @kernel() {\n invoke void @f() to label %a unwind label %b\n }",
    ],
)
def test_text_that_llvm_must_not_see(text: str) -> None:
    with pytest.raises(ValueError, match="codegen"):
        verify_text(text, host_target())


def bad(*stores: tuple[int, Scalar]) -> Nest:
    return NEST._replace(stores=stores)


@pytest.mark.parametrize(
    "nest",
    [
        bad(),
        bad((0, X)),
        bad((7, X)),
        bad((1, Scalar("add", (X, X), "f64"))),
        bad((1, Scalar("and", (X, X), "f32"))),
        bad((1, Scalar("shl", (X, X), "f32"))),
        bad((1, Scalar("add", (X, const(1.0, "f64")), "f32"))),
        bad((1, Scalar("sum", (X,), "f32"))),
        bad((1, Scalar("load", (), "f64", 0))),
        bad((1, convert(Scalar("number", (), "f64", 0), "f32"))),
        bad((1, Scalar("load", (), "f32", 5))),
        bad((1, Scalar("convert", (Scalar("index", (), "i64", 3),), "f32"))),
        bad((1, Scalar("exp", (X,), "f32"))),
        NEST._replace(dims=("q",)),
        NEST._replace(numbers=("f32",)),
        NEST._replace(operands=(reads("complex64", "1"), NEST.operands[1])),
    ],
)
def test_ill_formed_nests(nest: Nest) -> None:
    with pytest.raises(ValueError, match="codegen"):
        verify_nest(nest, host_target())


def test_objects() -> None:
    with pytest.raises(ValueError, match="codegen"):
        verify_object(b"")
    whole = compiler.kernel_object(NEST)
    verify_object(whole)
    for length in range(0, len(whole) // 2, 11):
        with pytest.raises(ValueError, match="codegen"):
            verify_object(whole[:length])
    call = "define float @kernel(float %x) {\n %y = call float @expf(float %x)\n ret float %y }"
    text = "declare float @expf(float)\n" + call
    with pytest.raises(ValueError, match="expf"):
        compiler.compile_text(text, host_target())
