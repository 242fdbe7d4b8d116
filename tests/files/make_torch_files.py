"""Writes torch_files/: files of PyTorch, which tests read where PyTorch is not. Needs PyTorch.

python tests/files/make_torch_files.py
"""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "torch_files"
DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()


def tensors(lib: Any) -> dict[str, Any]:
    """A tensor of each dtype and layout; what shares memory; what a checkpoint has beside tensors."""
    made = {name: lib.arange(6).reshape(2, 3).to(getattr(lib, name)) for name in DTYPES}
    base = lib.arange(12.0).reshape(3, 4)
    made.update(base=base, row=base[1], columns=base.t()[1:3, ::2], wide=base[0].expand(2, 4))
    made.update(none=lib.zeros(0, 3), one=lib.tensor(2.5), leaf=lib.ones(2, requires_grad=True))
    made["parameter"] = made["tied"] = lib.nn.Parameter(lib.ones(2, 2), requires_grad=False)
    made["plain"] = [1, 2**40, -(10**30), 1.5, True, None, "ü", b"\x00\xff", (1, (2,)), {"a": {1: 2}}, {1, 2}]
    made["types"] = [lib.float32, lib.Size([1, 2]), lib.device("cpu")]
    return made


def checkpoint(lib: Any) -> dict[str, Any]:
    """A model and its optimizer after a step."""
    model = lib.nn.Sequential(lib.nn.BatchNorm1d(3), lib.nn.Linear(3, 2))
    with lib.no_grad():
        for k, p in enumerate(model.parameters()):
            p.copy_(lib.arange(p.numel()).reshape(p.shape) / 8 + k)
    optimizer = lib.optim.Adam(model.parameters(), lr=0.25)
    model(lib.arange(6.0).reshape(2, 3)).pow(2).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def changed(raw: bytes, change: Any) -> bytes:
    """An archive whose records `change(name, content)` replaces."""
    found = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(found, "w") as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name), change(name, old.read(name)))
    return found.getvalue()


def main() -> None:
    """Writes the files."""
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is not installed")

    def saved(obj: Any, **options: Any) -> bytes:
        file = io.BytesIO()
        torch.save(obj, file, **options)
        return file.getvalue()

    def elsewhere(name: str, content: bytes) -> bytes:
        return content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")

    def swapped(name: str, content: bytes) -> bytes:
        if name.endswith("byteorder"):
            return b"big"
        return content[::-1] if "/data/" in name else content  # elements and their bytes

    def no_source(obj: Any) -> Any:
        raise OSError("a file of a module would hold its source")

    torch.serialization.get_source_lines_and_file = no_source
    files = {
        "archive": saved(tensors(torch)),
        "row": saved(tensors(torch), _use_new_zipfile_serialization=False),
        "protocol5": saved(tensors(torch), pickle_protocol=5),
        "no_byteorder": saved(torch.arange(3), _disable_byteorder_record=True),
        "checkpoint": saved(checkpoint(torch)),
        "cuda": changed(saved({"x": torch.arange(3.0)}), elsewhere),
        "big_endian": changed(saved({"x": torch.arange(3), "y": torch.arange(3.0) / 2}), swapped),
        "module": saved(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()).eval()),
        "module_row": saved(torch.nn.Linear(3, 2), _use_new_zipfile_serialization=False),
        "complex": saved(torch.ones(2, dtype=torch.complex64)),
        "sparse": saved(torch.eye(2).to_sparse()),
        "uint16": saved(torch.ones(2, dtype=torch.uint16)),
        "meta": saved(torch.ones(2, device="meta")),
        "quantized": saved(torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.quint8)),
    }
    x = torch.arange(4.0)
    x.note = "kept"
    plain = pickle.dumps([x, torch.nn.Parameter(torch.ones(2)), torch.arange(6).view(2, 3).t()])
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "plain.pkl").write_bytes(plain)
    for name, raw in files.items():
        (FOLDER / f"{name}.pt").write_bytes(raw)


if __name__ == "__main__":
    main()
