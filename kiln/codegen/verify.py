"""Refusing what LLVM must not see, and what the core must not load.

    verify_nest    a nest against its grammar and the target's table of legal (op, type)
    verify_text    LLVM text: allowed intrinsics only, no remainder, no 16-bit float arithmetic, no flags
    verify_object  an ELF object: the functions it is to define, nothing undefined but what it may call

LLVM ends the process on an operation its target cannot do; these checks come first and raise ValueError.
"""

from __future__ import annotations

import struct

from kiln.codegen.ir.memory import MEMORY, compute_type
from kiln.codegen.nests.nest import Nest
from kiln.codegen.target import Target, intrinsic_allowed, legal
from kiln.scalars.scalar import COMPARE, REDUCE, Scalar, topological

# Each pattern opens with literal text, so that scanning runs at the speed of a search for it.
_DECLARED = r"declare [^@\n]*@([\w.]+)\("
_FORBIDDEN = (
    r"invoke [^\n]*",
    r" asm [^\n]*",
    r"= f(?:rem|(?:add|sub|mul|div|neg|cmp)"
    r" [^\n]*?\b(?:half|bfloat|fast|nnan|ninf|nsz|arcp|contract|afn|reassoc))\b[^\n]*",
)
FOLDS = sorted(REDUCE - {"argmax", "argmin"})  # what stores can be folded by
_NUMBERS = frozenset({"i64", "f64"})
_ARITY = {"fma": 3, "select": 3, "neg": 1, "not": 1, "abs": 1, "sqrt": 1, "floor": 1, "ceil": 1, "trunc": 1,
          "rint": 1, "bits": 1, "from_bits": 1, "convert": 1, "round": 1}  # fmt: skip


def refuse(what: str) -> ValueError:
    """The exception for something kiln built wrongly."""
    return ValueError(f"codegen: {what}")


def verify_nest(nest: Nest, target: Target) -> None:
    """Check a nest's grammar, every scalar's types and their legality on `target`; ValueError if it fails."""
    if any(role not in ("p", "r") for role in nest.dims):
        raise refuse(f"dims are 'p' or 'r', got {nest.dims}")
    if not _NUMBERS.issuperset(nest.numbers):
        raise refuse(f"numbers are i64 or f64, got {nest.numbers}")
    for k, operand in enumerate(nest.operands):
        if (
            operand.dtype not in MEMORY
            or operand.mode not in ("in", "out", *FOLDS)
            or not set(operand.strides) <= set("012s")
        ):
            raise refuse(f"operand {k} is {operand}")
    if not nest.stores:
        raise refuse("a nest stores something")
    for k, value in nest.stores:
        if not 0 <= k < len(nest.operands) or nest.operands[k].mode == "in":
            raise refuse(f"store to operand {k}, which is no output")
        mode = nest.operands[k].mode
        if mode != "out" and (nest.dims != ("p", "r") or not legal(mode, value.type, target)):
            raise refuse(f"{mode} of {value.type} down the columns of {nest.dims}")
        if len(nest.operands[k].strides) != len(nest.dims):
            raise refuse(f"output {k} needs a stride class per dim")
        if compute_type(nest.operands[k].dtype) != value.type:
            raise refuse(f"store of {value.type} to operand {k} of {nest.operands[k].dtype}")
    for node in topological([value for _, value in nest.stores]):
        _verify_scalar(nest, node, target)


def _verify_scalar(nest: Nest, node: Scalar, target: Target) -> None:
    op, types = node.op, [a.type for a in node.args]
    if op in ("const", "load", "number", "index"):
        return _verify_leaf(nest, node)
    operand_type = types[1] if op == "select" and len(types) == 3 else types[0] if types else ""
    if len(types) != (1 if op in REDUCE else _ARITY.get(op, 2)) or not legal(op, operand_type, target):
        raise refuse(f"{op} of {', '.join(types)} is not legal on {target.name}")
    if op == "select":
        good = types[0] == "i1" and types[1] == types[2] == node.type
    elif op == "convert":
        good = True
    elif op in ("bits", "from_bits"):
        good = node.type[1:] == operand_type[1:]
    else:
        result = "i1" if op in COMPARE else "i64" if op in ("argmax", "argmin") else types[0]
        good = len(set(types)) == 1 and node.type == result
    if op in REDUCE and "r" not in nest.dims:
        raise refuse(f"{op} in a nest without reduced dims")
    if not good:
        raise refuse(f"{op} of {', '.join(types)} gives {node.type}")
    return None


def _verify_leaf(nest: Nest, node: Scalar) -> None:
    known = {"number": nest.numbers, "load": nest.operands, "index": nest.dims}.get(node.op)
    if known is not None and not 0 <= node.data < len(known):
        raise refuse(f"{node.op} {node.data} of {len(known)}")
    if node.op == "number" and nest.numbers[node.data] != node.type:
        raise refuse(f"number {node.data} is {nest.numbers[node.data]}, read as {node.type}")
    if node.op == "index" and node.type != "i64":
        raise refuse(f"index {node.data} read as {node.type}")
    if node.op != "load":
        return
    operand = nest.operands[node.data]
    if operand.mode != "in" or compute_type(operand.dtype) != node.type:
        raise refuse(f"load of operand {node.data} ({operand.mode} {operand.dtype}) as {node.type}")
    if len(operand.strides) != (len(node.args) if node.args else len(nest.dims)) and len(operand.strides) > 0:
        raise refuse(f"load of operand {node.data} with {len(node.args)} positions of {len(operand.strides)}")
    if any(a.type != "i64" for a in node.args):
        raise refuse(f"load of operand {node.data} at positions that are not i64")


def verify_text(text: str, target: Target, calls: tuple[str, ...] = ()) -> None:
    """Check a module's text before LLVM parses it; ValueError if it names what is neither an intrinsic nor
    one of the functions it `calls`.
    """
    import re  # a warm process checks no text

    for name in re.findall(_DECLARED, text):
        if name not in calls and not intrinsic_allowed(name, target):
            raise refuse(f"{name} is not an intrinsic that {target.name} allows")
    for pattern in _FORBIDDEN:
        found = re.search(pattern, text)
        if found:
            raise refuse(f"not allowed in a kernel: {found.group().strip()}")


def verify_object(data: bytes, defines: tuple[str, ...] = ("kernel",), calls: tuple[str, ...] = ()) -> None:
    """Check that an ELF64 object defines its functions and leaves undefined only what it `calls`; ValueError
    otherwise.
    """
    try:
        names = _symbols(data)
    except (struct.error, IndexError) as error:
        raise refuse(f"the object is damaged ({error})") from error
    undefined = sorted(name for name, section in names if section == 0 and name not in calls)
    if undefined:
        raise refuse(f"the object calls {', '.join(undefined)}")
    missing = sorted({*defines} - {name for name, section in names if section != 0})
    if missing:
        raise refuse(f"the object does not define {', '.join(missing)}")


def _symbols(data: bytes) -> list[tuple[str, int]]:
    """(name, section) of every symbol; section 0 is undefined."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise refuse("the object is not ELF64, little-endian")
    table, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    found = []
    for n in range(count):
        _, kind, _, _, start, length, link = struct.unpack_from("<IIQQQQI", data, table + n * size)
        if kind != 2:
            continue
        strings = struct.unpack_from("<Q", data, table + link * size + 24)[0]
        for place in range(start + 24, start + length, 24):  # the first symbol is the null symbol
            name, _, _, section = struct.unpack_from("<IBBH", data, place)
            end = data.index(b"\0", strings + name)
            found.append((data[strings + name : end].decode("ascii", "replace"), section))
    return found
