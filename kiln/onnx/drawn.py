"""Random numbers: all draws are made of a few ops, which are a runtime's own generator in a model.

    draw_uniform(position .., seed)         RandomUniform, in [0, 1)
    draw_open(position .., seed)            RandomUniform, from the least number on that kiln draws
    draw_normal(position .., seed)          RandomNormal
    draw_below(position .., seed, count)    floor(RandomUniform * count)

So dropout, bernoulli, multinomial, randint and the others are written by what they are made of. Positions and
seeds say which numbers kiln would draw; a model has none of them. What draws twice from one position, as a
gradient does that needs the mask of a dropout, reads the same draw.
"""

from __future__ import annotations

from kiln.graph.graph import Node, Value
from kiln.graph.size import Size
from kiln.onnx.builder import Builder
from kiln.onnx.forms import form
from kiln.onnx.protobuf import TYPES

DRAWS = frozenset({"draw_uniform", "draw_open", "draw_normal", "draw_below"})


def is_draw(b: Builder, node: Node) -> bool:
    """Whether a node draws where a call says, and so reads neither positions nor seed here."""
    return node.op.name in DRAWS and bool(_stream(b, node.inputs[0]))


def _drawn(b: Builder, y: Value, position: Value, kind: str, dtype: str, **settings: float) -> str | None:
    """Independent draws of the result's shape."""
    stream = _stream(b, position)
    if not stream:
        return None
    key = stream, kind, dtype, y.shape
    if key not in b.draws:
        to = TYPES[dtype]
        if any(isinstance(n, Size) for n in y.shape):
            like = b.op("ConstantOfShape", b.shape(y.shape))
            b.draws[key] = b.op(f"{kind}Like", like, dtype=to, **settings)
        else:
            b.draws[key] = b.op(kind, shape=list(y.shape), dtype=to, **settings)
    return b.draws[key]


def _stream(b: Builder, position: Value) -> str:
    """The name of the number of the call that positions begin at; "" where it is another one."""
    while position.node is not None and position.node.inputs:
        position = position.node.inputs[0]
    name = b.names.get(id(position), "")
    return name if name in b.streams else ""


@form("draw_uniform")
def _draw_uniform(b: Builder, y: Value, position: Value, seed: Value, dtype: str) -> str | None:
    return _drawn(b, y, position, "RandomUniform", y.dtype)


@form("draw_open")
def _draw_open(b: Builder, y: Value, position: Value, seed: Value, dtype: str) -> str | None:
    least = 2.0**-53 if y.dtype == "float64" else 2.0**-24
    return _drawn(b, y, position, "RandomUniform", y.dtype, low=least)


@form("draw_normal")
def _draw_normal(b: Builder, y: Value, position: Value, seed: Value, dtype: str) -> str | None:
    return _drawn(b, y, position, "RandomNormal", y.dtype)


@form("draw_below")
def _draw_below(b: Builder, y: Value, position: Value, seed: Value, count: Value, dtype: str) -> str | None:
    u = _drawn(b, y, position, "RandomUniform", "float64")
    if u is None:
        return None
    limit = b.cast(b.of(count), count.dtype, "int64")
    whole = b.op("Cast", b.op("Mul", u, b.cast(limit, "int64", "float64")), to=TYPES["int64"])  # truncates
    least, most = b.constant(0), b.op("Sub", limit, b.constant(1))  # the product may round to the count
    return b.op("Max", b.op("Min", whole, most), least)
