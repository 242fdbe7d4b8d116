"""PyTorch's files: read as PyTorch wrote them, written as PyTorch reads them, whatever a file may say."""

from __future__ import annotations

import argparse
import io
import pickle
import subprocess
import sys
import zipfile
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backend import needs_torch, torch
from make_torch_files import DTYPES, FOLDER, changed, checkpoint, tensors

import kiln
from kiln.serialization import safe_globals


def saved(obj: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    kiln.save(obj, file, **options)
    return file.getvalue()


def loaded(raw: bytes, **options: Any) -> Any:
    return kiln.load(io.BytesIO(raw), **options)


def values(obj: Any, lib: Any = kiln) -> Any:
    """Objects of both libraries as what can be compared: what tensors are, and where their elements lie."""
    if isinstance(obj, lib.Tensor):
        strides = obj.stride() if obj.numel() else ()
        kind = type(obj).__name__ if isinstance(obj, lib.nn.Parameter) else "Tensor"
        what = str(obj.dtype).partition(".")[2], tuple(obj.shape), strides, obj.storage_offset()
        return (*what, obj.requires_grad, kind, obj.tolist())
    if isinstance(obj, dict):
        return type(obj).__name__, [(key, values(value, lib)) for key, value in obj.items()]
    if isinstance(obj, (list, tuple)) and not isinstance(obj, lib.Size):
        return type(obj).__name__, [values(value, lib) for value in obj]
    return str(obj).replace("torch.", "kiln.") if type(obj).__module__.startswith(("torch", "kiln")) else obj


def shared(found: dict[str, Any]) -> None:
    """What shared memory does so."""
    assert found["tied"] is found["parameter"]
    found["base"][1, 1] = 50.0
    assert found["row"][1].item() == 50.0 and found["columns"][0, 0].item() == 1.0
    found["columns"][1, 0] = 60.0
    assert found["base"][0, 2].item() == 60.0


# -- files of PyTorch ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["archive", "row", "protocol5"])
@pytest.mark.parametrize("options", [{}, {"weights_only": False}, {"mmap": True}], ids=repr)
def test_files_of_pytorch_are_read(name: str, options: dict[str, Any]) -> None:
    if name == "row" and "mmap" in options:
        with pytest.raises(RuntimeError, match="mmap can only be used with files saved with"):
            kiln.load(FOLDER / f"{name}.pt", **options)
        return
    found = kiln.load(FOLDER / f"{name}.pt", **options)
    assert values(found) == values(tensors(kiln))
    shared(found)


@pytest.mark.parametrize("options", [{}, {"weights_only": False}], ids=repr)
def test_a_checkpoint_of_pytorch_goes_on(options: dict[str, Any]) -> None:
    found = kiln.load(FOLDER / "checkpoint.pt", **options)
    ours = checkpoint(kiln)
    assert type(found["model"]) is OrderedDict and found["model"]._metadata["0"] == {"version": 2}
    for name, tensor in ours["model"].items():
        assert kiln.allclose(found["model"][name], tensor, atol=1e-5), name
    model = kiln.nn.Sequential(kiln.nn.BatchNorm1d(3), kiln.nn.Linear(3, 2))
    optimizer = kiln.optim.Adam(model.parameters())
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 0.25 and found["epoch"] == 3


def test_a_file_that_says_no_order_of_bytes() -> None:
    assert kiln.load(FOLDER / "no_byteorder.pt").tolist() == [0, 1, 2]


@pytest.mark.parametrize("mmap", [None, True])
def test_bytes_in_the_other_order(mmap: bool | None) -> None:
    found = kiln.load(FOLDER / "big_endian.pt", mmap=mmap)
    assert found["x"].tolist() == [2, 1, 0] and found["y"].tolist() == [1.0, 0.5, 0.0]


def test_files_from_another_device() -> None:
    path = FOLDER / "cuda.pt"
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on a CUDA device"):
        kiln.load(path)
    with pytest.raises(RuntimeError, match="CUDA device"):
        kiln.load(path, map_location={"cuda:1": "cpu"})
    seen: list[str] = []

    def place(storage: Any, location: str) -> Any:
        seen.append(location)
        return storage

    for where in ("cpu", kiln.device("cpu"), {"cuda:0": "cpu"}, place):
        assert kiln.load(path, map_location=where)["x"].tolist() == [0.0, 1.0, 2.0]
    assert seen == ["cuda:0"]
    with pytest.raises(RuntimeError, match="CUDA device"):
        kiln.load(path, map_location=lambda storage, location: None)
    with pytest.raises(RuntimeError, match="CUDA device"):
        kiln.load(FOLDER / "no_byteorder.pt", map_location="cuda")
    with pytest.raises(RuntimeError, match="don't know how to restore data location"):
        kiln.load(path, map_location="elsewhere")
    with pytest.raises(TypeError, match="return a storage"):
        kiln.load(path, map_location=lambda storage, location: 3)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("complex", "complex numbers"),
        ("sparse", "sparse"),
        ("uint16", "unsigned integers"),
        ("meta", "without memory"),
        ("quantized", "quantized"),
    ],
)
@pytest.mark.parametrize("weights_only", [True, False])
def test_what_kiln_has_not_is_named(name: str, what: str, weights_only: bool) -> None:
    with pytest.raises(NotImplementedError, match=f"holds what kiln has not: .*{what}"):
        kiln.load(FOLDER / f"{name}.pt", weights_only=weights_only)


def test_a_module_of_pytorch_is_kilns() -> None:
    path = FOLDER / "module.pt"
    with pytest.raises(
        pickle.UnpicklingError, match="Unsupported global: GLOBAL torch.nn.modules.container.Seq"
    ):
        kiln.load(path)
    found = [kiln.load(path, weights_only=False)]
    with safe_globals([kiln.nn.Sequential, kiln.nn.Linear, kiln.nn.ReLU]):
        found.append(kiln.load(path))
    for model in found:
        assert repr(model) == repr(kiln.nn.Sequential(kiln.nn.Linear(3, 2), kiln.nn.ReLU()))
        assert not model.training and model(kiln.ones(1, 3)).shape == (1, 2)
        model.register_buffer("n", kiln.ones(1))
        model[0].weight = kiln.nn.Parameter(kiln.zeros(2, 3))
        assert model(kiln.ones(1, 3)).tolist() == model[0].bias.relu().unsqueeze(0).tolist()


def test_a_pickle_of_pythons_names_modules_of_pytorch() -> None:
    """Each of which kiln has under the same name: all that a finder of `torch.x` has to know."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return super().find_class(module.replace("torch", "kiln"), name)

    found = Unpickler(io.BytesIO((FOLDER / "plain.pkl").read_bytes())).load()
    assert found[0].tolist() == [0.0, 1.0, 2.0, 3.0] and found[0].note == "kept"
    assert type(found[1]) is kiln.nn.Parameter and found[2].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_an_older_file_names_classes_beside_their_source() -> None:
    assert repr(kiln.load(FOLDER / "module_row.pt", weights_only=False)) == repr(kiln.nn.Linear(3, 2))
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        kiln.load(FOLDER / "module_row.pt")


# -- files for PyTorch --------------------------------------------------------------------------------


@needs_torch
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("new", [True, False], ids=["archive", "row"])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_pytorch_reads_our_files(protocol: int, new: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"pickle_protocol": protocol, "_use_new_zipfile_serialization": new}
    ours = tensors(kiln)
    ours["buffer"] = kiln.nn.Buffer(kiln.ones(2), persistent=False)
    ours["base"].note = {"a": 1}
    kiln.save(ours, tmp_path / "x.pt", **options)
    for mapped in (False, True) if new else (False,):
        theirs = torch.load(tmp_path / "x.pt", weights_only=protocol == 2, mmap=mapped)
        assert values(theirs, torch) == values(ours)
        assert isinstance(theirs["buffer"], torch.nn.Buffer) and not theirs["buffer"].persistent
        assert theirs["base"].note == {"a": 1}
        shared(theirs)
    back = kiln.load(tmp_path / "x.pt")
    assert isinstance(back["buffer"], kiln.nn.Buffer) and not back["buffer"].persistent
    assert back["base"].note == {"a": 1}
    file = io.BytesIO()
    torch.save(theirs, file, **options)
    assert loaded(file.getvalue())["base"].note == {"a": 1}


@needs_torch
def test_pytorch_goes_on_from_our_checkpoint() -> None:
    found = torch.load(io.BytesIO(saved(checkpoint(kiln))))
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    model.load_state_dict(found["model"])
    torch.optim.Adam(model.parameters()).load_state_dict(found["optimizer"])


@needs_torch
def test_memory_of_two_dtypes_is_one_for_pytorch_too() -> None:
    x = kiln.arange(4.0)
    found = torch.load(io.BytesIO(saved({"x": x, "bits": x.view(kiln.int32)})))
    found["x"][0] = 1.0
    assert found["bits"][0].item() == 0x3F800000


def test_our_archives_are_archives() -> None:
    raw = saved({"x": kiln.arange(100), "y": kiln.ones(300_000)})
    with zipfile.ZipFile(io.BytesIO(raw)) as file:
        assert file.testzip() is None
        assert [i.filename for i in file.infolist()] == [
            f"archive/{n}" for n in ("data.pkl", "byteorder", "data/0", "data/1", "version")
        ]
    assert raw.index(bytes(8) + b"\1" + bytes(7)) % 64 == 0 and raw.index(b"\0\0\x80?" * 9) % 64 == 0
    assert saved({"x": kiln.arange(3)}) == saved({"x": kiln.arange(3)})


# -- objects that are more than data ------------------------------------------------------------------


class Settings:
    def __init__(self) -> None:
        self.rate, self.weight = 0.5, kiln.ones(2)


def made_of(pairs: Any) -> Any:
    raise AssertionError("never called")


def test_objects_need_a_word() -> None:
    raw = saved({"settings": Settings(), "args": argparse.Namespace(lr=1)})
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed.*Settings.*add_safe_globals"):
        loaded(raw)
    names = kiln.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(raw))
    assert [name.rpartition(".")[2] for name in names] == ["Settings", "Namespace"]
    whole = loaded(raw, weights_only=False)
    with safe_globals([Settings, (argparse.Namespace, "argparse.Namespace")]):
        assert len(kiln.serialization.get_safe_globals()) == 2
        assert kiln.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(raw)) == []
        allowed = loaded(raw)
    assert kiln.serialization.get_safe_globals() == []
    for found in (whole, allowed):
        assert found["settings"].weight.tolist() == [1.0, 1.0] and found["args"] == argparse.Namespace(lr=1)
    with safe_globals([(made_of, "os.system")]), pytest.raises(pickle.UnpicklingError, match="is blocked"):
        loaded(archive_of(HOSTILE["os.system"]))
    with pytest.raises(TypeError, match="classes and functions"):
        kiln.serialization.add_safe_globals([3])


def test_dicts_of_other_classes() -> None:
    obj = {"ordered": OrderedDict(a=1), "counter": Counter("aab")}
    assert loaded(saved(obj)) == obj
    with safe_globals([defaultdict, list]):
        assert loaded(saved(defaultdict(list, a=[1]))) == {"a": [1]}


@pytest.mark.parametrize("new", [True, False], ids=["archive", "row"])
def test_another_pickle_module(new: bool) -> None:
    """One that writes what pickle does not, as cloudpickle and dill do: the file is for it alone."""

    class Other:
        class Pickler(pickle.Pickler):
            def reducer_override(self, obj: Any) -> Any:
                return (str, ("a function",)) if callable(obj) and obj is made_of else NotImplemented

        Unpickler = pickle.Unpickler

    other: Any = Other
    x = kiln.arange(3.0)
    raw = saved([x, x[1:], made_of], pickle_module=other, _use_new_zipfile_serialization=new)
    found = loaded(raw, pickle_module=other, weights_only=False)
    assert found[2] == "a function" and found[0].tolist() == [0.0, 1.0, 2.0]
    found[0][1] = 5.0
    assert found[1].tolist() == [5.0, 2.0]


def test_rows_stand_one_after_the_other_in_a_file() -> None:
    file = io.BytesIO(row(1) + row({"x": kiln.ones(2)}) + row("end"))
    assert [kiln.load(file), kiln.load(file)["x"].tolist(), kiln.load(file)] == [1, [1.0, 1.0], "end"]
    with pytest.raises(EOFError):
        kiln.load(file)


def test_mapped_memory_is_ones_own(tmp_path: Path) -> None:
    kiln.save({"x": kiln.arange(3.0), "flags": kiln.ones(2, dtype=kiln.bool)}, tmp_path / "x")
    before = (tmp_path / "x").read_bytes()
    found = kiln.load(tmp_path / "x", mmap=True)
    found["x"].add_(1)
    assert found["x"].tolist() == [1.0, 2.0, 3.0] and (tmp_path / "x").read_bytes() == before
    kiln.save({"x": kiln.arange(3.0)}, tmp_path / "x.safetensors")
    tensors = kiln.load(tmp_path / "x.safetensors", mmap=True)
    assert tensors["x"].add_(1).tolist() == [1.0, 2.0, 3.0]
    assert kiln.load(tmp_path / "x.safetensors")["x"].tolist() == [0.0, 1.0, 2.0]
    kiln.save({"x": kiln.zeros(3)}, tmp_path / "x")
    assert found["flags"].tolist() == [True, True]


def test_storages_are_saved_once_and_loaded_as_they_are() -> None:
    x = kiln.arange(100_000)
    assert len(saved([x, x[5:], x.view(2, -1)])) < 810_000
    typed, untyped = loaded(saved([kiln.ones(2).storage(), kiln.ones(2).untyped_storage()]))
    assert typed.tolist() == [1.0, 1.0] and untyped.nbytes() == 8 and type(untyped) is kiln.UntypedStorage
    for form in (saved, row):
        tensor, untyped = loaded(form([x[:4], x.untyped_storage()]))
        assert tensor.tolist() == [0, 1, 2, 3] and type(untyped) is kiln.UntypedStorage
        assert untyped.data_ptr() == tensor.data_ptr()


# -- what a file may say ------------------------------------------------------------------------------


def row(obj: Any) -> bytes:
    return saved(obj, _use_new_zipfile_serialization=False)


def archive_of(content: bytes, size: int = 16, **more: bytes) -> bytes:
    """An archive with a pickle, and a storage of so many bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, record in {"data.pkl": content, "data/0": bytes(size), **more}.items():
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), record)
    return file.getvalue()


def said(value: Any) -> bytes:
    """A plain value in a pickle."""
    return pickle.dumps(value, 2)[2:-1]


def tensor(offset: Any = 0, sizes: Any = (2,), strides: Any = (1,), *, kind: str = "Float", key: Any = "0",
           count: Any = 4, grad: Any = False) -> bytes:  # fmt: skip
    """A pickle of a tensor."""
    storage = (
        b"("
        + said("storage")
        + b"ctorch\n%sStorage\n" % kind.encode()
        + said(key)
        + said("cpu")
        + said(count)
    )
    args = b"(" + storage + b"tQ" + said(offset) + said(sizes) + said(strides) + said(grad)
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n" + args + b"ccollections\nOrderedDict\n)RtR."


HOSTILE: dict[str, bytes] = {
    "past the end": tensor(3),
    "sizes past the end": tensor(sizes=(5,)),
    "strides past the end": tensor(sizes=(2, 2), strides=(3, 1)),
    "a negative offset": tensor(-1),
    "negative sizes": tensor(sizes=(-1,)),
    "two negative sizes": tensor(sizes=(-2, -2), strides=(1, 1)),
    "a negative stride": tensor(1, strides=(-1,)),
    "sizes that overflow": tensor(sizes=(2**32, 2**32), strides=(0, 0)),
    "sizes that overflow beside a 0": tensor(sizes=(2**62, 2**62, 0), strides=(0, 0, 0)),
    "a size beyond 64 bits": tensor(sizes=(2**64,), strides=(0,)),
    "a stride beyond 64 bits": tensor(sizes=(1,), strides=(2**63,)),
    "a stride whose bytes overflow": tensor(sizes=(1,), strides=(2**62,)),
    "an offset beyond 64 bits": tensor(2**70),
    "65 dims": tensor(sizes=(1,) * 65, strides=(1,) * 65),
    "more sizes than strides": tensor(sizes=(1, 1)),
    "sizes of floats": tensor(sizes=(1.0,)),
    "sizes of bools": tensor(sizes=(True,)),
    "sizes as a list": tensor(sizes=[2]),
    "an offset of text": tensor("0"),
    "requires_grad of text": tensor(grad="yes"),
    "integers that require gradients": tensor(kind="Int", grad=True),
    "fewer bytes than elements": tensor(count=8),
    "more bytes than elements": tensor(count=2),
    "a huge length": tensor(count=2**62),
    "a negative length": tensor(count=-4),
    "a length of text": tensor(count="4"),
    "a key that is not there": tensor(key="1"),
    "a key outside": tensor(key="../../0"),
    "a key that is a number": tensor(key=0),
    "a storage that is none": b"\x80\x02" + said(("storage", "Float", "0", "cpu", 4)) + b"Q.",
    "a storage of two things": b"\x80\x02" + said(("storage",)) + b"Q.",
    "no storage": b"\x80\x02ctorch._utils\n_rebuild_tensor\n" + said((1, 0, (1,), (1,))) + b"R.",
    "os.system": b"\x80\x02cos\nsystem\n" + said(("false",)) + b"R.",
    "eval": b"\x80\x02c__builtin__\neval\n" + said(("1",)) + b"R.",
    "getattr": b"\x80\x02c__builtin__\ngetattr\n.",
    "a module of kiln": b"\x80\x02ckiln.serialization.words\nset_attributes\n.",
    "a name that is a format": b"\x80\x02cos{0.__class__}\n{1}{x}%s\n.",
    "a text that is a format": b"\x80\x02" + said("{0.x}{y}") + b")R.",
    "a dotted name": b"\x80\x04" + said("collections") + said("OrderedDict.fromkeys") + b"\x93.",
    "a name in PyTorch": b"\x80\x02ctorch\nload\n" + said(("x",)) + b"R.",
    "a function through a function": b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n"
        b"(c__builtin__\neval\ntR.",
    "a call of a list": b"\x80\x02]" + said(()) + b"R.",
    "a call of a class": b"\x80\x02ctorch\nTensor\n)R.",
    "a new tensor": b"\x80\x02ctorch\nTensor\n)\x81.",
    "attributes of a list": b"\x80\x02]}b.",
    "attributes by number": b"\x80\x02ccollections\nOrderedDict\n)R" + said({1: 2}) + b"b.",
    "a persistent name": b"\x80\x02Px\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "no opcode": b"\x80\x02\xfe.",
    "protocol 0": b"(lp0\n.",
    "protocol 200": b"\x80\xc8N.",
    "an empty stack": b"\x80\x02.",
    "a mark at the end": b"\x80\x02(.",
    "two objects": b"\x80\x02NN.",
    "no mark": b"\x80\x02t.",
    "a mark as an item": b"\x80\x02](a.",
    "an item for a tuple": b"\x80\x02)Na.",
    "an odd number of items": b"\x80\x02}(Nu.",
    "nothing in the memo": b"\x80\x02h\x05.",
    "text that is none": b"\x80\x02X\x01\0\0\0\xff.",
    "bytes of 2^63": b"\x80\x04\x8e" + bytes(7) + b"\x80.",
    "a bytearray of 2^40": b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b".",
    "text of 2^32": b"\x80\x02X\xff\xff\xff\xff.",
    "an integer of 2^31 bytes": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a frame past the end": b"\x80\x04\x95" + (2**40).to_bytes(8, "little") + b"N.",
    "a name of 2000 letters": b"\x80\x02c" + b"a" * 2000 + b"\nb\n.",
    "no end": b"\x80\x02N",
    "nothing": b"",
    "a list as a key": b"\x80\x02}]Ns.",
    "a list in a set": b"\x80\x04\x8f(]\x90.",
    "keys of one hash": b"\x80\x02" + said({k * (2**61 - 1): 0 for k in range(100)}) + b".",
    "keys of one hash, one by one": b"\x80\x02}" + b"".join(
        said(k * (2**61 - 1)) + b"Ns" for k in range(100)) + b".",
    "a key as deep as the file": b"\x80\x02})" + b"\x85" * 5000 + b"Ns.",
    "a key that takes for ever": b"\x80\x02})" + b"q\0h\0\x86" * 60 + b"Ns.",
    "copies of copies": b"\x80\x02(" + said(b"a" * 4000) + b"q\0" + b"c__builtin__\nbytearray\nq\1"
        + b"h\1h\0\x85R" * 4000 + b"t.",
    "attributes over and over": b"\x80\x02" + said({f"{k}": 0 for k in range(2000)}) + b"q\0"
        + b"ccollections\nOrderedDict\nq\1(" + b"h\1)Rh\0b" * 2000 + b"t.",
    "attributes over and over, in tuples": b"\x80\x02" + said({f"{k}": 0 for k in range(2000)}) + b"q\x20"
        + b"(" + tensor()[2:-1] + b"q\x210" + (b"h\x21" + b"}h\x20\x86b") * 2000 + b"t.",
    "attributes as pairs": b"\x80\x02ccollections\nOrderedDict\n)R}}\x86b.",
    "slots that tensors have": tensor()[:-1] + b"}" + said({"requires_grad": 5}) + b"\x86b.",
    "another class": tensor()[:-1] + b"}}" + said("__class__") + b"ctorch.nn.parameter\nBuffer\ns\x86b.",
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_what_a_file_says_is_looked_at(case: str) -> None:
    with pytest.raises((pickle.UnpicklingError, RuntimeError)) as caught:
        loaded(archive_of(HOSTILE[case]))
    assert 30 < len(str(caught.value)) < 900


def test_the_good_forms_of_hostile_pickles_load() -> None:
    assert loaded(archive_of(tensor())).tolist() == [0.0, 0.0]
    assert loaded(archive_of(tensor(sizes=(2, 2), strides=(0, 3)))).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert loaded(archive_of(tensor(4, (0, 7), (1, 1)))).shape == (0, 7)
    assert loaded(archive_of(b"\x80\x02]q\0h\0a."))[0]
    deep = loaded(archive_of(b"\x80\x02" + b"]" * 20_000 + b"a" * 19_999 + b"."))
    assert len(deep) == 1 and loaded(archive_of(b"\x80\x02)" + b"\x85" * 20_000 + b"."))
    assert loaded(archive_of(b"\x80\x02N."), weights_only=False) is None


def test_nothing_is_run() -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return made_of, (1,)

    for form in (saved, row):
        with pytest.raises(pickle.UnpicklingError, match="Unsupported global: GLOBAL .*made_of"):
            loaded(form({"x": kiln.ones(1), "y": Attack()}))
        with pytest.raises(AssertionError, match="never called"):
            loaded(form(Attack()), weights_only=False)
    # no module of the file's choice is imported, known as it may be
    code = (
        "import io, sys, kiln, zipfile\n"
        "file = io.BytesIO()\n"
        "with zipfile.ZipFile(file, 'w') as f: f.writestr('a/data.pkl', b'\\x80\\x02cthis\\ns\\n.')\n"
        "try: kiln.load(io.BytesIO(file.getvalue()))\n"
        "except Exception as error: print(type(error).__name__, 'this' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["UnpicklingError", "False"], done.stderr


def bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", tensor(count=2**20))
        archive.writestr("archive/data/0", bytes(2**22))
    return file.getvalue()


def twice() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        for _ in range(2):
            archive.writestr("archive/data.pkl", b"\x80\x02N.")
    return file.getvalue()


def patched(old: bytes, new: bytes) -> bytes:
    raw = archive_of(tensor())
    assert old in raw and len(old) == len(new)
    return raw.replace(old, new)


ARCHIVES: dict[str, Callable[[], bytes]] = {
    "only its magic": lambda: b"PK\3\4" + bytes(100),
    "an end alone": lambda: b"PK\3\4" + b"PK\5\6" + bytes(18),
    "compressed": bomb,
    "a record twice": twice,
    "no pickle": lambda: archive_of(tensor()).replace(b"data.pkl", b"data.pkx"),
    "two pickles": lambda: archive_of(b"\x80\x02N.", **{"data.pkk": b"\x80\x02N."}).replace(
        b"archive/data.pkk", b"brchive/data.pkl"
    ),
    "a pickle in a folder": lambda: archive_of(b"\x80\x02N.").replace(b"e/data.pkl", b"/d/ata.pkl"),
    "an order of bytes that is none": lambda: archive_of(tensor(), byteorder=b"middle"),
    "a program": lambda: archive_of(tensor(), **{"constants.pkl": b""}),
    "another file before it": lambda: b"PK\3\4" + b"x" * 96 + archive_of(tensor()),
    "a record over another": lambda: overlapping(),
}


def overlapping() -> bytes:
    """An archive whose storage begins where its pickle does."""
    raw = bytearray(archive_of(tensor()))
    second = raw.index(b"PK\1\2", raw.index(b"PK\1\2") + 1)
    raw[second + 42 : second + 46] = bytes(4)
    return bytes(raw)


@pytest.mark.parametrize("case", ARCHIVES)
def test_archives_that_are_not_whole(case: str) -> None:
    if case == "another file before it":  # a zip archive may have that; its offsets count from its own start
        assert loaded(ARCHIVES[case]()).tolist() == [0.0, 0.0]
        return
    with pytest.raises((RuntimeError, pickle.UnpicklingError, NotImplementedError)) as caught:
        loaded(ARCHIVES[case]())
    assert len(str(caught.value)) > 30


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    for empty in (tmp_path / "x", io.BytesIO()):
        with pytest.raises(EOFError, match="Ran out of input"):
            kiln.load(empty)


@pytest.mark.parametrize("form", [saved, row])
def test_truncated_at_every_byte(form: Callable[[Any], bytes]) -> None:
    raw = form({"a": kiln.arange(3), "b": [kiln.ones(1), 1.5, "x"]})
    for size in range(1, len(raw)):
        with pytest.raises((pickle.UnpicklingError, RuntimeError, ValueError)):
            loaded(raw[:size])


def test_files_changed_at_random() -> None:
    from kiln.testing import file_fuzz

    findings: list[str] = []
    assert file_fuzz.run(1500, 0, findings.append) == 0, findings


def test_elements_are_what_their_dtype_says() -> None:
    raw = changed(saved(kiln.ones(3, dtype=kiln.bool)), lambda n, c: b"\2\1\0" if "/data/" in n else c)
    with pytest.raises(pickle.UnpicklingError, match="only 0 and 1"):
        loaded(raw)


def test_every_dtype_is_written() -> None:
    for name in DTYPES:
        dtype = getattr(kiln, name)
        x = kiln.arange(4).reshape(2, 2).to(dtype)
        for form in (saved, row):
            found = loaded(form(x))
            assert found.dtype is dtype and found.tolist() == x.tolist()
