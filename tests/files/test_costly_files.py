"""Small files made to cost much: every one of them is read, or refused, in time and memory like its size."""

from __future__ import annotations

import io
import json
import pickle
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

import kiln

SIZE = 200_000  # bytes of each file, about
SECONDS = 3  # of the processor; the worst takes 0.4
BYTES = 100 * SIZE  # at once; the worst takes 60 per byte of the file
HASHES = 2**61 - 1  # Python's hash of a whole number is its remainder


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))
    return len(text).to_bytes(8, "little") + text.encode() + data


def tree(items: str, size: int = SIZE) -> bytes:
    """A file whose document is a list of an item as often as it fits."""
    return document('{"l":[' + ",".join([items] * (size // (len(items) + items.count('"') + 1))) + "]}")


def document(text: str) -> bytes:
    return file_of({"__metadata__": {"kiln.tree": text}})


def keyed(keys: list[Any]) -> bytes:
    """A file with a dict of keys."""
    pairs = [[{"f": repr(key)} if isinstance(key, float) else key, 1] for key in keys]
    return document(json.dumps({"d": pairs}, separators=(",", ":")))


def entries(shape: str, nbytes: int) -> bytes:
    """As many tensors of a shape as fit, one after the other."""
    count = SIZE // (60 + len(shape))
    lines = (
        f'"{k}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[{k * nbytes},{(k + 1) * nbytes}]}}'
        for k in range(count)
    )
    return file_of("{" + ",".join(lines) + "}", bytes(count * nbytes))


READ: dict[str, Callable[[], bytes]] = {
    "lists": lambda: tree('{"l":[]}'),
    "dicts": lambda: tree('{"d":[]}'),
    "nulls": lambda: tree("null"),
    "numbers": lambda: tree("1"),
    "floats": lambda: tree('{"f":"1"}'),
    "strings": lambda: tree('"a"'),
    "long numbers": lambda: tree("9" * 4299),
    "ninety deep": lambda: tree('{"l":[' * 90 + "]}" * 90),
    "one tensor": lambda: file_of(
        {
            "__metadata__": {"kiln.tree": '{"l":[' + ",".join(['{"t":"x"}'] * (SIZE // 16)) + "]}"},
            "x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        },
        b"a",
    ),
    "numbers of few hashes": lambda: keyed([k + j * HASHES for k in range(300) for j in range(30)]),
    "numbers of alike hashes": lambda: keyed([k << 40 for k in range(SIZE // 24)]),
    "floats of few hashes": lambda: keyed(
        [float(k) * 2.0 ** (61 * j) for k in range(1, 500) for j in range(16)]
    ),
    "empty tensors": lambda: entries("0", 0),
    "tensors of one element": lambda: entries("", 1),
    "64 dims": lambda: entries("0" + ",1" * 63, 0),
    "metadata": lambda: file_of({"__metadata__": {str(k): "" for k in range(SIZE // 11)}}),
    "spaces": lambda: file_of("{" + " " * SIZE + "}"),
}
REFUSED: dict[str, Callable[[], bytes]] = {
    "numbers of one hash": lambda: keyed([k * HASHES for k in range(SIZE // 28)]),
    "negative numbers of one hash": lambda: keyed([-k * HASHES for k in range(1, SIZE // 28)]),
    "long numbers of one hash": lambda: keyed([(k << 3800) * HASHES for k in range(1, SIZE // 1200)]),
    "lists in the header": lambda: file_of('{"x":[' + ",".join(["[]"] * (SIZE // 3)) + "]}"),
    "objects in the header": lambda: file_of('{"x":[' + ",".join(["{}"] * (SIZE // 3)) + "]}"),
    "deep lists": lambda: file_of('{"x":' + "[" * (SIZE // 2) + "]" * (SIZE // 2) + "}"),
    "deep objects": lambda: file_of('{"x":' * (SIZE // 6) + "1" + "}" * (SIZE // 6)),
    "many large dims": lambda: entries("0" + ",9223372036854775807" * 63, 0),
    "a shape of many dims": lambda: file_of(
        {"x": {"dtype": "U8", "shape": [1] * (SIZE // 2), "data_offsets": [0, 0]}}
    ),
    "a long name": lambda: file_of(
        {"x" * SIZE: {"dtype": "U8", "shape": [1], "data_offsets": [0, 2]}}, b"a"
    ),
    "one name": lambda: file_of("{" + ",".join(['"a":1'] * (SIZE // 6)) + "}"),
    "escapes": lambda: file_of('{"' + "\\u00e9" * (SIZE // 6) + '":1}'),
}  # fmt: skip


@pytest.mark.parametrize("case", [*READ, *REFUSED])
def test_cost(case: str) -> None:
    """In proportion to the file; a sentence that refuses it is short."""
    content = {**READ, **REFUSED}[case]()
    assert len(content) < 1.6 * SIZE
    kiln.load(io.BytesIO(entries("1", 1)))  # what is imported and allocated once
    start = time.process_time()
    load(content, case)
    assert time.process_time() - start < SECONDS
    tracemalloc.start()
    load(content, case)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < BYTES


def load(content: bytes, case: str) -> None:
    if case in READ:
        kiln.load(io.BytesIO(content))
        return
    with pytest.raises(ValueError, match="is not a whole safetensors file") as caught:
        kiln.load(io.BytesIO(content))
    assert len(str(caught.value)) < 700


def test_keys_of_one_hash() -> None:
    """As many as are saved are loaded; more are refused by both, whatever numbers they are."""
    for keys in (
        [k * HASHES for k in range(32)],
        [2.0 ** (61 * k) for k in range(16)],
        [True, False, None, 2],
    ):
        file = io.BytesIO()
        kiln.save(dict.fromkeys(keys, 1), file)
        file.seek(0)
        assert kiln.load(file) == dict.fromkeys(keys, 1)
    many = {"a": dict.fromkeys((k * HASHES for k in range(33)), 1)}
    with pytest.raises(ValueError, match="save: expected dicts of at most 32 keys of one hash"):
        kiln.save(many, "never.safetensors")
    file = io.BytesIO()
    kiln.save(many, file)
    with pytest.raises(pickle.UnpicklingError, match="at most 32 keys of one hash"):
        kiln.load(io.BytesIO(file.getvalue()))


def test_large_tensors_are_read_where_they_stay() -> None:
    """Every dtype, at both sides of the size from which no copy is made, in a file that is cut too."""
    from kiln.serialization.source import PIECE
    from kiln.serialization.tensor_file import tensor_chunks

    for dtype in (kiln.bool, kiln.int8, kiln.bfloat16, kiln.float64):
        count = PIECE // dtype.itemsize
        tensors = {
            str(n): (kiln.arange(n) % 2).to(dtype).reshape(shape)
            for n, shape in ((count - 1, (-1,)), (count, (2, -1)), (2 * count, (1, -1, 2)))
        }
        file = io.BytesIO(b"".join(map(bytes, tensor_chunks(tensors))))
        loaded = kiln.load(file)
        for name, tensor in tensors.items():
            assert loaded[name].dtype == dtype and loaded[name].shape == tensor.shape
            assert bool((loaded[name] == tensor).all())
            loaded[name].zero_()
        with pytest.raises(ValueError, match="expected"):
            kiln.load(io.BytesIO(file.getvalue()[:-1]))
