"""Programs that go through a file, and files that are edited."""

from __future__ import annotations

import io
import json
from typing import Any

import kiln
from kiln import nn
from kiln.export import load, save


class Memory(nn.Module):
    """State that a call writes: a cache, and how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", kiln.zeros(4, 3))
        self.register_buffer("calls", kiln.tensor(0))

    def forward(self, x: Any) -> Any:
        self.cache[1:] = self.cache[:-1].clone()
        self.cache[0] = x
        self.calls += 1
        return self.cache.mean(0)


def again(program: Any) -> Any:
    """The program after a file."""
    file = io.BytesIO()
    save(program, file)
    file.seek(0)
    return load(file)


def tensors(result: Any) -> list[Any]:
    from kiln.tracing.trees import flatten

    found: list[Any] = []
    flatten(result, found)
    return found


def with_texts(raw: bytes, **texts: Any) -> io.BytesIO:
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    held = header["__metadata__"]
    for key, change in texts.items():
        name = "kiln." + key
        held[name] = change(held[name]) if callable(change) else change
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return io.BytesIO(len(head).to_bytes(8, "little") + head + raw[8 + length :])
