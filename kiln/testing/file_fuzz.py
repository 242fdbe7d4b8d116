"""Files that were changed at random, read by `kiln.load`: each is read, or refused by an error that says why.

    python -m kiln.testing.file_fuzz --count 10000 --seed 1

A file is one of a few small ones, in every format, with bytes changed, cut out, doubled or moved, or with its
pickle made of opcodes drawn at random. Anything but a result or one of `ERRORS` is a finding, and so is a
read that takes seconds, or many times the file's size of memory. What a finding needs to be seen again is
printed: the seed and the number.
"""

from __future__ import annotations

import argparse
import io
import pickle
import random
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from typing import Any

import kiln
from kiln.serialization.tensor_file import tensor_chunks

ERRORS = (ValueError, RuntimeError, pickle.UnpicklingError, EOFError, NotImplementedError)
SECONDS = 2.0
BYTES = 20_000_000
OPCODES = b"(.0125NKMJGXTUCBhjqr)]}aesutRbcQ" + bytes([*range(0x81, 0x97)])
NAMES = (
    b"torch._utils\n_rebuild_tensor_v2", b"torch._utils\n_rebuild_parameter", b"torch\nFloatStorage",
    b"torch._tensor\n_rebuild_from_type_v2", b"torch._utils\n_rebuild_tensor_v3", b"collections\nOrderedDict",
    b"torch\nSize", b"torch\nTensor", b"__builtin__\nset", b"_codecs\nencode", b"torch\ndevice",
    b"os\nsystem", b"__builtin__\nbytearray", b"collections\nCounter", b"torch\nfloat32",
    b"torch\nUntypedStorage",
)  # fmt: skip


def seeds() -> list[bytes]:
    """Small files in every format."""
    x = kiln.arange(6.0).reshape(2, 3)
    obj = {
        "x": x,
        "row": x[1],
        "p": kiln.nn.Parameter(kiln.ones(2)),
        "flags": x > 2,
        "n": [1, 2.5, "a", None],
    }
    obj["more"] = ({1: (2,)}, b"ab", kiln.Size([1]), kiln.int8, kiln.zeros(0, 2), 10**20, {3})
    files = []
    for options in ({}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False}):
        file = io.BytesIO()
        kiln.save(obj, file, **options)
        files.append(file.getvalue())
    files.append(b"".join(map(bytes, tensor_chunks({"x": x, "b": [x > 2, 1.5, {"k": None}]}))))
    return files


def changed(raw: bytes, rng: random.Random) -> bytes:
    """A file with a few changes."""
    found = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(found) + 1)
        kind = rng.randrange(6)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(found):
            found[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 2:
            del found[at : at + rng.choice((1, 2, 8, 100))]
        elif kind == 3:
            found[at:at] = found[at : at + rng.choice((1, 8, 100))]
        elif kind == 4:
            found[at : at + 8] = rng.choice(
                (b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", bytes(7) + b"\x80")
            )
        else:
            found[at:at] = rng.randbytes(rng.choice((1, 2, 8)))
    return bytes(found)


def drawn(rng: random.Random) -> bytes:
    """An archive whose pickle is a row of opcodes, most with what they take after them."""
    parts = [b"\x80" + bytes([rng.choice((2, 2, 4, 5))])]
    for _ in range(rng.randrange(2, 60)):
        code = rng.choice(OPCODES)
        parts.append(bytes([code]))
        if code == ord("c"):
            parts.append(rng.choice(NAMES) + b"\n")
        elif code in b"KhqUC\x8c\x8a":
            parts.append(bytes([rng.choice((0, 1, 2, 3, 255))]))
        elif code in b"XTBjrJ\x8b":
            parts.append(rng.choice((0, 1, 3, 2**31, 2**32 - 1)).to_bytes(4, "little"))
        elif code in b"\x8d\x8e\x95\x96G":
            parts.append(rng.choice((0, 1, 3, 2**40, 2**63)).to_bytes(8, "little"))
    parts.append(b".")
    return archived({"data.pkl": b"".join(parts), "data/0": bytes(8), "version": b"3\n"})


def archived(records: dict[str, bytes]) -> bytes:
    """An archive of some records."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in records.items():
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), content)
    return file.getvalue()


def inside(raw: bytes, rng: random.Random) -> bytes:
    """A whole archive whose pickle was changed."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        records = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    return archived({**records, "data.pkl": changed(records["data.pkl"], rng)})


def draw(files: list[bytes], seed: int, number: int) -> bytes:
    """The file of one try."""
    rng = random.Random(f"{seed} {number}")
    kind = rng.randrange(4)
    if kind == 0:
        return drawn(rng)
    return inside(files[rng.randrange(2)], rng) if kind == 1 else changed(rng.choice(files), rng)


def finding(raw: bytes, memory: bool = False) -> str | None:
    """What is wrong with how a file is read; None if it is read, or refused as it should be."""
    found = None
    start = time.process_time()
    if memory:
        tracemalloc.start()
    try:
        _use(kiln.load(io.BytesIO(raw)))
    except ERRORS as error:
        if not str(error):
            found = f"{type(error).__name__} without a word"
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    if memory:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if peak > BYTES:
            found = f"{peak} bytes for a file of {len(raw)}"
    if (took := time.process_time() - start) > SECONDS:
        found = f"{took:.1f} s"
    return found


def _use(obj: Any) -> None:
    """Reads the tensors of a dict that was loaded: what they name has to be there."""
    if isinstance(obj, dict):
        for value in obj.values():
            if isinstance(value, kiln.Tensor) and value.numel() < 1000:
                value.tolist()


def run(count: int, seed: int, say: Callable[[str], Any] = print) -> int:
    """How many findings there are among so many files."""
    files, bad = seeds(), 0
    for number in range(count):
        found = finding(draw(files, seed, number), memory=number % 16 == 0)
        if found is not None:
            bad += 1
            say(f"--seed {seed}, file {number}: {found}")
    return bad


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    bad = run(options.count, options.seed)
    print(f"{options.count} files, {bad} findings")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
