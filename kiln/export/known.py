"""Programs that this machine has read before: what reading found, kept by a hash of the texts.

A file's texts are read and verified once; what a call needs of that is written beside the kernels, where only
this user writes, under a hash of the texts and of kiln's own source. The same texts again are a program at
once, of tensors that look as they did: its graph and steps are read when something asks for them.

    {"inputs": looks, "outputs": looks, "slots": n, "history": [[operand...]...],
     "written": as history, "again": [operand...], "op": [identity, tensors] or null,
     "checks": [[op, structure, parts, late]...], "guards": [...]}
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from kiln.codegen.store import kept
from kiln.codegen.store.identity import digest
from kiln.export.signature import Looks, asked_last, from_signature
from kiln.graph.size import Dim
from kiln.graph.text import dim_text, parse_dim
from kiln.late import later
from kiln.table.record import find
from kiln.tracing.captured import Captured, Check, like
from kiln.tracing.sizes import Guard
from kiln.tracing.stored import StoredOp
from kiln.tuples import NamedTuple

_read = later("kiln.export.reading", "read")
_MOST = 1 << 20  # bytes of what is kept of one program
_ops: dict[str, StoredOp] = {}  # by identity: ops live as long as the process


class Look(NamedTuple):
    """A value of a graph, by what a signature asks of it."""

    dtype: str
    shape: tuple[Dim, ...]
    weak: bool
    layout: None = None

    @property
    def ndim(self) -> int:
        """How many dims it has."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def program(text: str, signature: str, tensors: dict[str, Any]) -> tuple[Captured, list[bool]]:
    """The program of a graph's text and a signature, and which of its state takes gradients. TextError."""
    key = digest(b"program file", text.encode(), signature.encode())
    known = kept.load(key)
    if known is not None:
        return _from_known(json.loads(known), text, signature, tensors)
    found, trains = _read(text, signature, tensors)
    told = _told(found)
    if told is not None and len(told) < _MOST:
        kept.store(key, told)
    return found, trains


def _from_known(
    known: dict[str, Any], text: str, signature: str, tensors: dict[str, Any]
) -> tuple[Captured, list[bool]]:
    slots = known["slots"]
    inputs, outputs = ([_look_in(x, slots) for x in known[kind]] for kind in ("inputs", "outputs"))
    looks = Looks(inputs, outputs, slots)
    found, trains = from_signature(looks, signature, tensors)
    found.history = [tuple(operands) for operands in known["history"]]
    found.written = [tuple(operands) for operands in known["written"]]
    found.again = tuple(known["again"])
    found.guards = [
        Guard(_dim_in(a, slots), sign, _dim_in(b, slots), answer, line)
        for a, sign, b, answer, line in known["guards"]
    ]
    found.checks += [
        Check(
            find(op).handle, _tuples(structure), tuple([_part_in(kind, x, slots) for kind, x in parts]), late
        )
        for op, structure, parts, late in known["checks"]
    ]
    # tensors that only look like its own, for ops are never freed; made now, as a trace may be what reads it
    alike = {name: like(x.dtype.name, tuple(x.shape)) for name, x in tensors.items()}
    found.whole = whole = cache(lambda: _read(text, signature, alike)[0])
    if known["op"] is not None:
        identity, count = known["op"]
        if identity not in _ops:
            _ops[identity] = StoredOp(found.name, identity, count, len(found.random), lambda: whole().op)
        found.op = _ops[identity]
    return found, trains


def _told(found: Captured) -> bytes | None:
    """What is kept of a program; None where it cannot be said in a text."""
    if found.op is not None and (found.op.identity is None or found.by_steps):
        return None
    graph = found.graph
    outputs, _ = asked_last(found)
    try:
        return json.dumps({
            "inputs": [_look_out(v) for v in graph.inputs],
            "outputs": [_look_out(v) for v in graph.outputs[: len(outputs)]],
            "slots": graph.slots,
            "history": found.history,
            "written": found.written,
            "again": found.again,
            "op": None if found.op is None else [found.op.identity, found.op.structure[0]],
            "checks": [
                [c.op.record.name, c.structure, [_part_out(*part) for part in c.parts], c.late]
                for c in found.checks
                if isinstance(c, Check)
            ],
            "guards": [
                [_dim_out(g.left), g.sign, _dim_out(g.right), g.answer, g.line]
                for g in found.guards
            ],
        }).encode()  # fmt: skip
    except (TypeError, ValueError):
        return None


def _dim_out(dim: Dim) -> Any:
    return dim if isinstance(dim, int) else dim_text(dim)


def _dim_in(dim: Any, slots: int) -> Dim:
    return dim if isinstance(dim, int) else parse_dim(dim, slots)


def _look_out(value: Any) -> Any:
    return value.dtype, list(map(_dim_out, value.shape)), value.weak


def _look_in(look: Any, slots: int) -> Look:
    dtype, shape, weak = look
    return Look(dtype, tuple([_dim_in(n, slots) for n in shape]), weak)


def _part_out(kind: str, x: Any) -> Any:
    if kind == "like":
        return kind, [x.dtype.name, list(x.shape)]
    if kind == "varies":
        return kind, [x[0], list(map(_dim_out, x[1]))]
    return kind, _dim_out(x) if kind == "size" else x


def _part_in(kind: str, x: Any, slots: int) -> tuple[str, Any]:
    if kind not in ("like", "varies"):
        return kind, _dim_in(x, slots) if kind == "size" else x
    dtype, sizes = x
    shape = tuple([_dim_in(n, slots) for n in sizes])
    return kind, like(dtype, shape) if kind == "like" else (dtype, shape)


def _tuples(x: Any) -> Any:
    return tuple(map(_tuples, x)) if isinstance(x, list) else x
