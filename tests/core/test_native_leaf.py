"""The parts of the core that need no Python: dtypes, memory, threads, the loader.

Their tests are a C++ program (tests/native/test_leaf.cpp), compiled here once per session; what it
prints is compared with NumPy and PyTorch. `KILN_TEST_LEAF` names a program compiled elsewhere, with
sanitizers for one.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kiln.codegen.compile import bundle

ROOT = Path(__file__).resolve().parents[2]

# A kernel with everything the loader meets: constants, a table, an internal call, a jump table.
# y[i] = x[i] * constant[i] + table[n & 3] + 77 n, then a case of n.
KERNEL = """
@table = private unnamed_addr constant [4 x float] [float 1.0, float 2.0, float 3.0, float 4.0]
define internal i64 @helper(i64 %x) noinline nounwind {
  %y = mul i64 %x, 77
  ret i64 %y
}
define void @kernel(ptr %p, ptr %a, i64 %b, i64 %e) nounwind {
  %x = load ptr, ptr %p
  %n = load i64, ptr %a
  %i = and i64 %n, 3
  %tp = getelementptr float, ptr @table, i64 %i
  %t = load float, ptr %tp
  %h = call i64 @helper(i64 %n)
  %hf = sitofp i64 %h to float
  %add = fadd float %t, %hf
  %s0 = insertelement <16 x float> poison, float %add, i32 0
  %s = shufflevector <16 x float> %s0, <16 x float> poison, <16 x i32> zeroinitializer
  %v = load <16 x float>, ptr %x, align 4
  %w = fmul <16 x float> %v, <float 1.5, float 2.5, float 3.5, float 4.5, float 5.5, float 6.5, float 7.5,
       float 8.5, float 9.5, float 10.5, float 11.5, float 12.5, float 13.5, float 14.5, float 15.5,
       float 16.5>
  %z = fadd <16 x float> %w, %s
  store <16 x float> %z, ptr %x, align 4
  switch i64 %n, label %end [ i64 0, label %c0  i64 1, label %c1  i64 2, label %c2  i64 3, label %c3
                              i64 4, label %c4  i64 5, label %c5 ]
c0: store float 1.25, ptr %x
  ret void
c1: store float 2.25, ptr %x
  br label %end
c2: %bf = sitofp i64 %b to float
  store float %bf, ptr %x
  ret void
c3: %ef = sitofp i64 %e to float
  store float %ef, ptr %x
  br label %end
c4: %h4 = call i64 @helper(i64 %b)
  %h4f = sitofp i64 %h4 to float
  store float %h4f, ptr %x
  ret void
c5: store float 5.25, ptr %x
  ret void
end:
  ret void
}
"""
HELPER = KERNEL[KERNEL.index("define internal i64 @helper") : KERNEL.index("define void @kernel")]
TRIPLES = {
    "x86_64": ("x86_64-unknown-linux-gnu", "x86-64-v3"),
    "aarch64": ("aarch64-unknown-linux-gnu", "generic"),
}
HERE = os.uname().machine


def compile_leaf(out: Path) -> Path:
    """Compiles the test program with the machine's C++ compiler."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    sources = [ROOT / "tests/native/test_leaf.cpp", *sorted((ROOT / "native" / "base").glob("*.cpp"))]
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", f"-I{ROOT / 'native'}", "-pthread"]
    subprocess.run([*compiler.split(), *flags, *map(str, sources), "-o", str(out)], check=True)
    return out


@pytest.fixture(scope="session")
def leaf(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A function that runs one test of the program and returns what it printed."""
    given = os.environ.get("KILN_TEST_LEAF")
    program = Path(given) if given else compile_leaf(tmp_path_factory.mktemp("leaf") / "test_leaf")

    def run(*arguments: object, **environment: str) -> str:
        done = subprocess.run(
            [str(program), *map(str, arguments)],
            capture_output=True, text=True, timeout=120, env={**os.environ, **environment},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return run


def emit(ir: str, machine: str, cpu: str | None = None) -> bytes:
    """IR -> an object, as the code generator makes them."""
    llvm = pytest.importorskip("llvmlite.binding")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, least = TRIPLES[machine]
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{ir}')
    module.verify()
    target = llvm.Target.from_triple(triple)
    options = {"cpu": cpu or least, "opt": 2, "reloc": "pic", "codemodel": "small"}
    result: bytes = target.create_target_machine(**options).emit_object(module)
    return result


def in_two(machine: str) -> list[bytes]:
    """KERNEL, and its helper in an object of its own."""
    kernel = KERNEL.replace(HELPER, "declare i64 @helper(i64)\n")
    return [emit(kernel, machine), emit(HELPER.replace("define internal", "define"), machine)]


@pytest.fixture(params=[(machine, parts) for machine in TRIPLES for parts in (1, 2)])
def kernel_object(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    machine, parts = request.param
    path = tmp_path / "kernel.o"
    path.write_bytes(emit(KERNEL, machine) if parts == 1 else bundle(in_two(machine)))
    return path, machine


NATIVE = (
    "elements", "size_classes", "statistics", "cache_bounds", "memory_errors", "foreign_memory", "coverage",
    "invariants",
    "nesting", "callers", "many_jobs", "fork_before_and_after", "fork_in_the_middle", "float_environment",
)  # fmt: skip


@pytest.mark.parametrize("test", NATIVE)
def test_native(leaf: Any, test: str) -> None:
    leaf(test)


# ---- dtypes ----


def test_promotion_is_torchs(leaf: Any) -> None:
    torch = pytest.importorskip("torch")

    def operand(dtype: str, category: str) -> Any:
        if category == "number":
            return {"bool": True, "int64": 1, "float64": 1.0}.get(dtype)
        return torch.ones([1] if category == "dimensioned" else [], dtype=getattr(torch, dtype))

    lines = [line.split() for line in leaf("dtypes").splitlines()]
    assert len(lines) == 100 * (1 + 1 + 9)
    for kind, *words in lines:
        if kind == "promote":
            wanted = torch.promote_types(getattr(torch, words[0]), getattr(torch, words[1]))
        elif kind == "cast":
            can = torch.can_cast(getattr(torch, words[0]), getattr(torch, words[1]))
            assert can == bool(int(words[2])), words
            continue
        else:
            lhs, rhs = operand(words[0], words[1]), operand(words[2], words[3])
            if lhs is None or rhs is None:
                continue
            wanted = torch.result_type(lhs, rhs)
        assert str(wanted) == f"torch.{words[-1]}", (kind, words)


def test_promotion_is_a_lattice(leaf: Any) -> None:
    lines = [line.split() for line in leaf("dtypes").splitlines()]
    table = {(lhs, rhs): out for kind, lhs, rhs, out, *_ in (x for x in lines if x[0] == "promote")}
    names = sorted({lhs for lhs, _ in table})
    assert len(names) == 10
    for a in names:
        assert table[a, a] == a and table["bool", a] == a
        for b in names:
            assert table[a, b] == table[b, a]
            assert table[a, table[a, b]] == table[a, b]


def as_float32(bits: Any) -> Any:
    """The float32 whose upper half is a bfloat16."""
    return (np.asarray(bits, dtype=np.uint32) << 16).view(np.float32)


def test_halves(leaf: Any, tmp_path: Path) -> None:
    """Every half to float32, and float32 of every exponent, ties included, to the halves."""
    rng = np.random.default_rng(0)
    every = np.arange(65536, dtype=np.uint32)
    ties = every << 16 | 0x8000
    near = np.concatenate([ties - 1, ties, ties + 1, (every << 13) + 0x38000000, (every << 12) + 0x33000000])
    bits = np.concatenate([every, near, rng.integers(0, 1 << 32, 200000, dtype=np.uint32)]).astype(np.uint32)
    values = bits.view(np.float32)
    (tmp_path / "in").write_bytes(values.tobytes())
    leaf("convert", tmp_path / "in", tmp_path / "out")
    layout = np.dtype([("half", "<u2"), ("bfloat16", "<u2"), ("from_half", "<f4"), ("from_bfloat16", "<f4")])
    out = np.frombuffer((tmp_path / "out").read_bytes(), dtype=layout)

    nan = np.isnan(values)
    with np.errstate(all="ignore"):
        half = values.astype(np.float16)
    assert np.array_equal(out["half"][~nan], half.view(np.uint16)[~nan])
    assert np.isnan(out["half"].view(np.float16)[nan]).all()
    low = (bits & 0xFFFF).astype(np.uint16)
    np.testing.assert_array_equal(out["from_half"], low.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(out["from_bfloat16"].view(np.uint32), low.astype(np.uint32) << 16)

    wide = bits.astype(np.uint64)
    nearest = ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)
    assert np.array_equal(out["bfloat16"][~nan], nearest[~nan])
    assert np.isnan(as_float32(out["bfloat16"])[nan]).all()


# ---- threads ----


def test_number_of_threads(leaf: Any) -> None:
    assert leaf("threads", KILN_NUM_THREADS="3") == "3\n"
    assert 1 <= int(leaf("threads", KILN_NUM_THREADS="")) <= len(os.sched_getaffinity(0))
    for wrong in ("0", "-1", "two", "2.5", "99999", "3 "):
        with pytest.raises(AssertionError, match="expected a number from 1 to 1024, got"):
            leaf("threads", KILN_NUM_THREADS=wrong)


def test_affinity_bounds_threads(leaf: Any) -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert leaf("threads", KILN_NUM_THREADS="") == "1\n"
    finally:
        os.sched_setaffinity(0, allowed)


# ---- loader ----


@pytest.mark.skipif(HERE not in TRIPLES, reason="no kernels for this machine")
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("n", range(7))
def test_kernel_runs(leaf: Any, tmp_path: Path, n: int, parts: int) -> None:
    path = tmp_path / "kernel.o"
    path.write_bytes(emit(KERNEL, HERE) if parts == 1 else bundle(in_two(HERE)))
    printed, nbytes = leaf("run", path, n).splitlines()
    wanted = [i * (i + 1.5) + (n & 3) + 1 + 77 * n for i in range(16)]
    wanted[0] = {0: 1.25, 1: 2.25, 2: 11, 3: 22, 4: 77 * 11, 5: 5.25}.get(n, wanted[0])
    assert list(map(float, printed.split())) == wanted
    assert int(nbytes) <= 8192


def test_damaged_objects_never_crash(leaf: Any, kernel_object: tuple[Path, str]) -> None:
    path, machine = kernel_object
    assert "damaged objects link" in leaf("corrupt", path, machine)


def sections(data: bytes) -> list[tuple[int, ...]]:
    """The section headers: name, type, flags, address, offset, size, link, info, alignment, entry size."""
    start, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    return [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * i) for i in range(count)]


def test_relocations_of_aarch64(leaf: Any, tmp_path: Path) -> None:
    """Decodes the linked instructions and finds the constants they were meant to find."""
    path = tmp_path / "kernel.o"
    data = emit(KERNEL, "aarch64")
    path.write_bytes(data)
    _, text = leaf("image", path, "aarch64").split()
    image = bytes.fromhex(text)
    headers = sections(data)
    offsets, end = {}, 0  # sections are laid out in order
    for index, (_, kind, flags, _, _, size, _, _, alignment, _) in enumerate(headers):
        if flags & 2 and size and kind == 1:
            offsets[index] = end = -(-end // alignment) * alignment
            end += size
    assert end == len(image)
    symtab = next(h for h in headers if h[1] == 2)
    seen = set()
    for rela in (h for h in headers if h[1] == 4):
        for at in range(rela[4], rela[4] + rela[5], 24):
            offset, info, addend = struct.unpack_from("<QQq", data, at)
            _, _, _, index, value, _ = struct.unpack_from("<IBBHQQ", data, symtab[4] + 24 * (info >> 32))
            target, place = offsets[index] + value + addend, offsets[rela[7]] + offset
            (word,) = struct.unpack_from("<I", image, place)
            kind = info & 0xFFFFFFFF
            seen.add(kind)
            assert decode(kind, word, place) == wanted_of(kind, target), (kind, hex(word))
    assert {275, 277} <= seen


def decode(kind: int, word: int, place: int) -> int:
    """The address (or its page, or its low bits) that an instruction of a relocation's kind names."""
    if kind == 275:  # ADRP
        pages = (word >> 29 & 3) | (word >> 5 & 0x7FFFF) << 2
        return (place >> 12) + (pages ^ 1 << 20) - (1 << 20)
    if kind in (282, 283):  # B, BL
        return place + 4 * ((word & 0x3FFFFFF ^ 1 << 25) - (1 << 25))
    if kind == 261:  # a word of a table
        return place + (word ^ 1 << 31) - (1 << 31)
    scale = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}[kind]
    return (word >> 10 & 0xFFF) << scale


def wanted_of(kind: int, target: int) -> int:
    if kind == 275:
        return target >> 12
    return target if kind in (261, 282, 283) else target & 0xFFF


@pytest.mark.skipif(HERE not in TRIPLES, reason="no kernels for this machine")
@pytest.mark.parametrize(
    "old, new, message",
    [
        ("@kernel(", "@colonel(", "no function named 'kernel'"),
        ("call i64 @helper(i64 %n)", "call i64 @outside(i64 %n)", "undefined symbol 'outside'"),
        ("private unnamed_addr constant [4", "internal global [4", "expected code and constants only"),
    ],
)
def test_refused(leaf: Any, tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in KERNEL
    ir = KERNEL.replace(old, new)
    if "outside" in new:
        ir += "\ndeclare i64 @outside(i64)"
    if "global" in new:
        ir = ir.replace("%t = load float, ptr %tp", "%t = load float, ptr %tp\n  store float 0.0, ptr %tp")
    path = tmp_path / "kernel.o"
    path.write_bytes(emit(ir, HERE))
    assert message in leaf("refuse", path)


@pytest.mark.skipif(HERE not in TRIPLES, reason="no kernels for this machine")
def test_refused_bundles(leaf: Any, tmp_path: Path) -> None:
    path = tmp_path / "kernel.o"
    kernel, helper = in_two(HERE)
    whole = bundle([kernel, helper])
    for data, message in [
        (bundle([kernel]), "undefined symbol 'helper'"),
        (bundle([helper]), "no function named 'kernel'"),
        (bundle([kernel, helper, helper]), "more than one symbol 'helper'"),
        (bundle([]), "no function named 'kernel'"),
        (bundle([helper] * 17), "a bundle of 17 objects"),
        (bundle([whole]), "expected a relocatable"),
        (whole + b"\0", "1 bytes after its objects"),
        (whole[:-1], "damaged"),
        (whole[:8], "damaged"),
        (whole[:14], "damaged"),
    ]:
        path.write_bytes(data)
        assert message in leaf("refuse", path)


def test_refused_files(leaf: Any, tmp_path: Path) -> None:
    path = tmp_path / "kernel.o"
    other = next(machine for machine in TRIPLES if machine != HERE)
    for data, message in [
        (b"", "damaged"),
        (b"\x7fELF", "damaged"),
        (b"MZ" + bytes(200), "expected a relocatable little-endian ELF64 file"),
        (emit(KERNEL, other), "for machine"),
    ]:
        path.write_bytes(data)
        assert message in leaf("refuse", path)


def test_many_relocations(leaf: Any, tmp_path: Path) -> None:
    """A jump table of 400 entries: its last entries' addends are larger than the code."""
    cases = "\n".join(f"i64 {i}, label %c{i}" for i in range(400))
    bodies = "\n".join(f"c{i}: call void @note(ptr %x, i64 {i * i})\n ret void" for i in range(400))
    ir = f"""
    define internal void @note(ptr %x, i64 %v) noinline nounwind {{
      %f = sitofp i64 %v to float
      store float %f, ptr %x
      ret void
    }}
    define void @kernel(ptr %p, ptr %a, i64 %b, i64 %e) nounwind {{
      %x = load ptr, ptr %p
      %n = load i64, ptr %a
      switch i64 %n, label %end [ {cases} ]
      {bodies}
    end:
      ret void
    }}"""
    path = tmp_path / "kernel.o"
    for machine in TRIPLES:
        path.write_bytes(emit(ir, machine))
        leaf("image", path, machine)
    if HERE in TRIPLES:
        path.write_bytes(emit(ir, HERE))
        assert float(leaf("run", path, 399).split()[0]) == 399**2


def test_identity_is_stable(leaf: Any) -> None:
    """The same text from every core this process may use."""
    allowed = os.sched_getaffinity(0)
    try:
        texts = set()
        for cpu in allowed:
            os.sched_setaffinity(0, {cpu})
            texts.add(leaf("identity"))
    finally:
        os.sched_setaffinity(0, allowed)
    assert len(texts) == 1
    assert texts.pop().startswith(HERE)
