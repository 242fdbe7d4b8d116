"""`kiln.save` and `kiln.load`: round trips in each format, the safetensors library as peer, damaged files.

PyTorch's files: test_torch_files.py.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kiln
from kiln.serialization.tensor_file import tensor_chunks

DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()


def same(a: Any, b: Any) -> bool:
    """Equal in type, structure and value; tensors in dtype and shape too."""
    if isinstance(a, kiln.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and repr(a.tolist()) == repr(b.tolist())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


def safetensors(obj: Any) -> bytes:
    """The object in a file of safetensors."""
    return b"".join(map(bytes, tensor_chunks(obj)))


def archive(obj: Any) -> bytes:
    """The object in a file of PyTorch's format."""
    file = io.BytesIO()
    kiln.save(obj, file)
    return file.getvalue()


def row(obj: Any) -> bytes:
    """The object in a file of PyTorch's older format."""
    file = io.BytesIO()
    kiln.save(obj, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


FORMATS = (archive, row, safetensors)


def round_trip(obj: Any) -> Any:
    """What comes back from a file: the same from every format, and without running anything or with it."""
    found = [kiln.load(io.BytesIO(form(obj))) for form in FORMATS]
    found.append(kiln.load(io.BytesIO(archive(obj)), weights_only=False))
    assert all(same(found[0], other) for other in found)
    return found[0]


def file_of(header: Any, data: bytes = b"", size: int | None = None) -> bytes:
    """A file with a given header (JSON text, bytes or an object) and data."""
    text = header if isinstance(header, (str, bytes)) else json.dumps(header)
    raw = text.encode() if isinstance(text, str) else text
    return (len(raw) if size is None else size).to_bytes(8, "little") + raw + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


# -- round trips --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0, 3), (1, 1, 1)], ids=str)
def test_dtypes_and_shapes(dtype: str, shape: tuple[int, ...]) -> None:
    values = kiln.arange(math.prod(shape)).reshape(shape).to(getattr(kiln, dtype))
    assert same(round_trip({"x": values, "y": values + values}), {"x": values, "y": values + values})


def test_float_bits_survive() -> None:
    values = kiln.tensor(
        [0.0, -0.0, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 0.1], dtype=kiln.float64
    )
    got = round_trip(values).tolist()
    assert [x.hex() for x in got] == [x.hex() for x in values.tolist()]
    assert math.isnan(round_trip(kiln.tensor([math.nan])).item())


def test_layouts_are_saved_as_they_read() -> None:
    x = kiln.arange(12).reshape(3, 4)
    views = {"t": x.t(), "step": x[:, ::2], "row": x[1], "wide": x[:1].expand(3, 4)}
    assert same(round_trip(views), {k: v.contiguous() for k, v in views.items()})


def test_nested_objects() -> None:
    t = kiln.ones(2)
    obj = {
        "state": {0: {"step": 3, "exp_avg": t}, 1: {"exp_avg": kiln.zeros(1)}},
        "groups": [{"lr": 1e-3, "betas": (0.9, 0.999), "on": True, "none": None}],
        "floats": [0.1, -0.0, math.inf, -math.inf, math.nan, 1e308],
        "text": 'quotes " and \\ and \0 and ü and 漢',
        "empty": [{}, [], ()],
        (None): 1, True: 2, 2.5: 3, "big": 10**200,
    }  # fmt: skip
    got = round_trip(obj)
    assert same(obj, got)
    assert math.copysign(1, got["floats"][1]) == -1


@pytest.mark.parametrize("obj", [{}, [], (), None, 3, 2.5, "x", True, {"a": 1}, [[[]]]], ids=repr)
def test_plain_objects(obj: Any) -> None:
    assert same(round_trip(obj), obj)


def test_names_that_could_collide() -> None:
    a, b, c, d = (kiln.full((1,), float(k)) for k in range(4))
    obj = {"a": {"b": a}, "a.b": b, "__metadata__": c, "": d, "../../etc/passwd": a, "x\0y": b}
    assert same(round_trip(obj), obj)
    flat = {"": a, "a/b": b, "..": c, "nul\0": d}
    assert same(round_trip(flat), flat)


def test_a_tensor_met_twice_stays_one() -> None:
    t = kiln.ones(3)
    got = round_trip({"a": t, "b": [t]})
    assert got["a"] is got["b"][0]


def test_loaded_tensors_are_plain_and_private() -> None:
    w = kiln.nn.Parameter(kiln.ones(2))
    got = kiln.load(io.BytesIO(safetensors({"w": w, "y": w * 2})))
    assert type(got["w"]) is kiln.Tensor and not got["w"].requires_grad and got["y"].grad_fn is None
    got["w"].add_(1)
    assert got["y"].tolist() == [2.0, 2.0] and w.tolist() == [1.0, 1.0]


def test_a_models_and_an_optimizers_state(tmp_path: Path) -> None:
    model = kiln.nn.Sequential(kiln.nn.Linear(3, 4), kiln.nn.LayerNorm(4))
    optimizer = kiln.optim.Adam(model.parameters())
    model(kiln.ones(2, 3)).sum().backward()
    optimizer.step()
    kiln.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "run.kiln")
    got = kiln.load(tmp_path / "run.kiln")
    other = kiln.nn.Sequential(kiln.nn.Linear(3, 4), kiln.nn.LayerNorm(4))
    assert list(got["model"]) == list(model.state_dict())
    other.load_state_dict(got["model"])
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    kiln.optim.Adam(other.parameters()).load_state_dict(got["optimizer"])


@pytest.mark.parametrize(
    "make",
    [
        lambda: object(),
        lambda: {"f": print},
        lambda: {"m": [kiln.nn.Linear(1, 1)]},
        lambda: {1, 2},
        lambda: b"bytes",
        lambda: 1j,
        lambda: {(1, 2): 3},
        lambda: 2**2000,
    ],
)
def test_what_is_not_data_is_refused(make: Any) -> None:
    with pytest.raises(TypeError, match="save: expected tensors, numbers"):
        kiln.save(make(), "never.safetensors")


def test_a_cycle_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested"):
        kiln.save(loop, "never.safetensors")
    found = kiln.load(io.BytesIO(archive(loop)))
    assert found[0] is found


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(ValueError, match="Unicode"):
        kiln.save({"\ud800": kiln.ones(1)}, "never.safetensors")


def test_arguments() -> None:
    wrong: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: kiln.save({}, 3), AttributeError, "expected 'f' to be string, path, or a file-like object"),
        (lambda: kiln.load(3), AttributeError, "a path or a binary file"),
        (lambda: kiln.load(io.StringIO("text")), TypeError, "binary mode"),
        (lambda: kiln.save({}, io.StringIO()), TypeError, "a binary file"),
        (lambda: kiln.load(io.BytesIO(), mmap=True), ValueError, "f must be a file path"),
        (lambda: kiln.load(io.BytesIO(), pickle_module=pickle), RuntimeError, "Can not safely load weights"),
        (lambda: kiln.load(io.BytesIO(archive(1)), map_location=3), TypeError, "map_location"),
        (lambda: kiln.save({}, io.BytesIO(), pickle_protocol=9), ValueError, "pickle_protocol"),
    ]
    for call, error, text in wrong:
        with pytest.raises(error, match=text):
            call()


# -- the safetensors library as peer ------------------------------------------------------------------


def test_the_library_reads_our_file(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    peer = pytest.importorskip("safetensors.numpy")
    ours = {
        name: kiln.arange(6).reshape(2, 3).to(getattr(kiln, name)) for name in DTYPES if name != "bfloat16"
    }
    kiln.save(ours, tmp_path / "x.safetensors")
    got = peer.load_file(tmp_path / "x.safetensors")
    assert set(got) == set(ours)
    for name, value in got.items():
        assert value.dtype == numpy.dtype(name) and value.tolist() == ours[name].tolist()


def test_we_read_the_librarys_file(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    peer = pytest.importorskip("safetensors.numpy")
    theirs = {name: numpy.arange(6).reshape(2, 3).astype(name) for name in DTYPES if name != "bfloat16"}
    theirs["empty"] = numpy.zeros((0, 3), "float32")
    theirs["scalar"] = numpy.array(3.0)
    peer.save_file(theirs, tmp_path / "x.safetensors", {"note": "hello"})
    got = kiln.load(tmp_path / "x.safetensors")
    assert set(got) == set(theirs)
    for name, value in theirs.items():
        assert tuple(got[name].shape) == value.shape and got[name].tolist() == value.tolist()


# -- damaged files ------------------------------------------------------------------------------------

GOOD = {"x": entry()}
DEEP = '{"x":' + "[" * 100_000 + "]" * 100_000 + "}"
DAMAGED: dict[str, bytes] = {
    "seven bytes": b"\0" * 7,
    "header of length 0": file_of(b"", b"", 0),
    "header of length 1": file_of(b"{"),
    "header of length 2^63": file_of(GOOD, bytes(8), 2**63),
    "header of length 2^64-1": file_of(GOOD, bytes(8), 2**64 - 1),
    "header longer than the file": file_of(GOOD, bytes(8), 500),
    "header cut": file_of('{"x":'),
    "header is a list": file_of([]),
    "header is a string": file_of('"{}"'),
    "header starts with a space": file_of(" {}"),
    "header ends in rubbish": file_of("{} x"),
    "deeply nested": file_of(DEEP),
    "duplicate names": file_of('{"x":%s,"x":%s}' % ((json.dumps(entry()),) * 2), bytes(8)),
    "duplicate keys": file_of('{"x":{"shape":[2],"dtype":"F32","dtype":"F32","data_offsets":[0,8]}}',
                              bytes(8)),
    "invalid UTF-8": file_of(b'{"\xff":1}'),
    "half a surrogate pair": file_of({"\ud800": entry()}, bytes(8)),
    "UTF-16": file_of("{}".encode("utf-16")),
    "entry is null": file_of({"x": None}),
    "entry lacks a key": file_of({"x": {"dtype": "F32", "shape": [0]}}),
    "entry has a key more": file_of({"x": {**entry(), "more": 1}}, bytes(8)),
    "metadata is a list": file_of({"__metadata__": []}),
    "metadata holds a number": file_of({"__metadata__": {"a": 1}}),
    "dtype unknown": file_of({"x": entry("F8_E4M3", (8,))}, bytes(8)),
    "dtype a number": file_of({"x": entry(3)}, bytes(8)),
    "dtype a list": file_of({"x": entry([])}, bytes(8)),
    "offsets reversed": file_of({"x": entry(offsets=(8, 0))}, bytes(8)),
    "offsets negative": file_of({"x": entry(offsets=(-8, 0))}, bytes(8)),
    "offsets past the end": file_of({"x": entry(offsets=(0, 8))}, bytes(7)),
    "offsets huge": file_of({"x": entry(offsets=(2**63, 2**63 + 8))}, bytes(8)),
    "offsets floats": file_of({"x": entry(offsets=(0.0, 8.0))}, bytes(8)),
    "offsets bools": file_of({"x": entry("U8", (1,), (False, True))}, bytes(1)),
    "offsets strings": file_of({"x": entry(offsets=("0", "8"))}, bytes(8)),
    "three offsets": file_of({"x": entry(offsets=(0, 8, 8))}, bytes(8)),
    "a hole at the start": file_of({"x": entry(offsets=(1, 9))}, bytes(9)),
    "a hole between": file_of({"x": entry(), "y": entry(offsets=(12, 20))}, bytes(20)),
    "overlapping": file_of({"x": entry(), "y": entry(offsets=(4, 12))}, bytes(12)),
    "the same bytes twice": file_of({"x": entry(), "y": entry()}, bytes(8)),
    "bytes left over": file_of(GOOD, bytes(9)),
    "too few bytes for the shape": file_of({"x": entry(shape=(3,))}, bytes(8)),
    "negative size": file_of({"x": entry(shape=(-2,))}, bytes(8)),
    "two negative sizes": file_of({"x": entry(shape=(-1, -2))}, bytes(8)),
    "size a float": file_of({"x": entry(shape=(2.0,))}, bytes(8)),
    "size a bool": file_of({"x": entry("U8", (True,), (0, 1))}, bytes(1)),
    "size NaN": file_of('{"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,0]}}'),
    "size 1e2": file_of('{"x":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}}', bytes(1)),
    "size of 5000 digits": file_of('{"x":{"dtype":"U8","shape":[%s],"data_offsets":[0,1]}}' % ("9" * 5000)),
    "product overflows": file_of({"x": entry(shape=(2**32, 2**32))}, bytes(8)),
    "product overflows to 8": file_of({"x": entry("U8", (2**61, 8, 1))}, bytes(8)),
    "product overflows beside a 0": file_of({"x": entry(shape=(2**62, 2**62, 0), offsets=(0, 0))}),
    "65 dims": file_of({"x": entry(shape=(1,) * 64 + (2,))}, bytes(8)),
    "shape a dict": file_of({"x": entry(shape={})}, bytes(8)),
    "bool of 2": file_of({"x": entry("BOOL", (1,), (0, 1))}, b"\2"),
    "an ELF file": b"\x7fELF" + bytes(100),
}  # fmt: skip
TREES: dict[str, str] = {
    "not JSON": "{",
    "NaN": "NaN",
    "a bare float": "1.5",
    "a bare list": "[]",
    "unknown tag": '{"x": 1}',
    "two tags": '{"l": [], "u": []}',
    "no tag": "{}",
    "a tensor that is missing": '{"t": "nowhere"}',
    "a tensor by number": '{"t": 1}',
    "a list that is a string": '{"l": "abc"}',
    "a dict without pairs": '{"d": [1, 2]}',
    "a dict with three": '{"d": [["a", 1, 2]]}',
    "a key twice": '{"d": [["a", 1], ["a", 2]]}',
    "a key twice as 1 and True": '{"d": [[1, 1], [true, 2]]}',
    "a key that is a list": '{"d": [[{"u": []}, 1]]}',
    "a float that is code": '{"f": "__import__"}',
    "a float that is a number": '{"f": 1}',
    "nested too deep": '{"l":[' * 300 + "]}" * 300,
    "nested far too deep": '{"l":[' * 100_000 + "]}" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_files_are_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(DAMAGED[case])
    with pytest.raises(ValueError, match="load: .* is not a whole safetensors file: expected"):
        kiln.load(path)


@pytest.mark.parametrize("case", TREES)
def test_damaged_documents_are_refused(case: str) -> None:
    raw = file_of({"__metadata__": {"kiln.tree": TREES[case]}})
    with pytest.raises(ValueError, match="expected"):
        kiln.load(io.BytesIO(raw))


def test_the_good_form_of_the_damaged_files_loads() -> None:
    assert kiln.load(io.BytesIO(file_of(GOOD, bytes(8))))["x"].tolist() == [0.0, 0.0]
    assert kiln.load(io.BytesIO(file_of("{}"))) == {}


def test_truncated_at_every_byte() -> None:
    raw = safetensors({"a": kiln.arange(5), "b": [kiln.ones(2, 2), 1.5, "x"]})
    for size in range(1, len(raw)):
        with pytest.raises(ValueError, match="expected"):
            kiln.load(io.BytesIO(raw[:size]))


def test_flipped_bytes_load_or_are_refused() -> None:
    raw = safetensors({"a": kiln.arange(3), "b": {"c": (kiln.ones(2) > 0, 1.5)}})
    for at in range(len(raw)):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(raw)
            changed[at] ^= flip
            try:
                kiln.load(io.BytesIO(bytes(changed)))
            except ValueError:
                continue


def calls_of(work: Callable[[], Any]) -> int:
    """How many functions, of Python and of C, are called."""
    count = 0

    def note(frame: Any, event: str, what: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_many_tensors() -> None:
    count = 50_000
    raw = file_of({str(k): entry("U8", (1,), (k, k + 1)) for k in range(count)}, bytes(range(250)) * 200)
    loaded = kiln.load(io.BytesIO(raw))
    assert len(loaded) == count and loaded["49999"].tolist() == [249]


@pytest.mark.parametrize("nested", [False, True])
def test_work_grows_with_the_number_of_tensors(nested: bool) -> None:
    def work(count: int) -> int:
        tensors = {str(k): kiln.ones(1) for k in range(count)}
        obj = {"state": [{"x": t} for t in tensors.values()]} if nested else tensors
        file = io.BytesIO()
        saving = calls_of(lambda: kiln.save(obj, file))
        file.seek(0)
        return saving + calls_of(lambda: kiln.load(file))

    one, two, three = (work(k * 1000) for k in (1, 2, 3))
    assert three - two <= 1.01 * (two - one)


# -- what a path may be -------------------------------------------------------------------------------


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="regular file"):
        kiln.load(tmp_path)
    with pytest.raises(IsADirectoryError, match="regular file"):
        kiln.save({}, tmp_path)


def test_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="regular file"):
        kiln.load(tmp_path / "fifo")
    with pytest.raises(OSError, match="regular file"):
        kiln.save({}, tmp_path / "fifo")


def test_a_device_is_refused() -> None:
    with pytest.raises(OSError, match="regular file"):
        kiln.load("/dev/zero")
    with pytest.raises(OSError, match="regular file"):
        kiln.save({}, "/dev/null")


def test_a_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        kiln.load(tmp_path / "x")
    with pytest.raises(RuntimeError, match=f"^Parent directory {tmp_path}/no does not exist.$"):
        kiln.save({}, tmp_path / "no" / "x")
    for save in (
        lambda path: kiln.save({}, path, _use_new_zipfile_serialization=False),
        lambda path: kiln.utils.safetensors.save_file({}, path),
    ):
        with pytest.raises(FileNotFoundError) as error:
            save(tmp_path / "no" / "x")
        assert error.value.filename == str(tmp_path / "no" / "x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do anything")
def test_no_permission(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(file_of(GOOD, bytes(8)))
    (tmp_path / "x").chmod(0)
    with pytest.raises(PermissionError):
        kiln.load(tmp_path / "x")
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        kiln.save({}, tmp_path / "y")


# -- saving is atomic ---------------------------------------------------------------------------------


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    kiln.save({"x": kiln.ones(2)}, path)
    old = path.read_bytes()
    with pytest.raises(pickle.PicklingError):
        kiln.save({"x": lambda: 0}, path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, full if step == "fsync" else lambda a, b: full(0))
            with pytest.raises(OSError, match="No space"):
                kiln.save({"x": kiln.zeros(100)}, path)
        assert path.read_bytes() == old
        assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_full_disk(tmp_path: Path) -> None:
    program = (
        "import resource, signal, sys, kiln\n"
        "kiln.save({'x': kiln.ones(4)}, sys.argv[1])\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: kiln.save({'x': kiln.ones(4096)}, sys.argv[1])\n"
        "except OSError as error: print('refused', error.errno)\n"
    )
    path = tmp_path / "x"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["refused", str(errno.EFBIG)], done.stderr
    assert kiln.load(path)["x"].tolist() == [1.0] * 4
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_file_that_shrinks_while_it_is_read() -> None:
    class Shrinking(io.BytesIO):
        def readinto(self, into: Any) -> int:
            return 0 if self.tell() > 8 else super().readinto(into)

    with pytest.raises(ValueError, match="changed while it was read"):
        kiln.load(Shrinking(file_of(GOOD, bytes(8))))
