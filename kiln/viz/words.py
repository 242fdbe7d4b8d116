"""A recorded call in words: its arguments as in a program, its kind, and how long a text is on paper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unicodedata import east_asian_width

from kiln.viz.trace import Call, Input, Shape

_VIEWS = ("reshape", "permute", "expand", "slice", "as_strided")  # kinds, and names of views of parts
_PARTS = ("select", "unbind", "split", "split_with_sizes")
# room or module of the table -> kind of picture
_KINDS = {
    "products": "product", "reductions": "reduction", "losses": "reduction",
    "softmax_and_layer_norm": "reduction", "group_norms": "reduction",
}  # fmt: skip
_SHOWN = {"write": "write to a view", "concat": "cat"}
LONGEST = 30  # characters of a box's title
_SILENT = ("reshape", "expand", "as_strided", "write", "layer_norm")  # what they are given shows in shapes


def kind_of(call: Call) -> str:
    """Which colour a call has: pointwise, product, reduction, view, write, function or op."""
    if call.record is None:
        return getattr(call, "kind", "") or "function"
    kind = call.record.kind
    if call.name in ("write", "overwrite"):
        return "write"
    if kind in _VIEWS or call.name in _PARTS:
        return "view"
    if kind in ("reduce", "matmul"):
        return "reduction" if kind == "reduce" else "product"
    names = call.record.body.__module__.split(".") if call.record.body else []
    known = next((_KINDS[name] for name in names if name in _KINDS), None)
    return known or ("pointwise" if kind == "pointwise" else "op")


def arguments(call: Call) -> list[tuple[str, Any]]:
    """Each argument with its parameter's name: an Input, a tuple of Inputs, or a piece of structure."""
    if call.record is None:
        return [(f"argument {k}", given) for k, given in enumerate(call.inputs)]
    found: list[tuple[str, Any]] = []
    inputs = iter(call.inputs)
    params = call.record.params
    structure: Iterable[Any] = call.structure or ["t"] * len(params)
    if call.record.kind == "pointwise":  # which has pieces of structure alone
        pieces = iter(call.structure)
        structure = [next(pieces, None) if p.kind == "S" else "t" for p in params]
    for param, piece in zip(params, structure):
        if param.kind == "S":
            if piece != param.default:
                found.append((param.name, piece))
        elif param.kind in "LZ":
            found.append((param.name, tuple(next(inputs, None) for _ in range(piece))))
        elif piece is not None:
            found.append((param.name, next(inputs, None)))
    return [(name, value) for name, value in found if value is not None]


def called(call: Call) -> str:
    """The call as a program would write it, tensors left out where they are not missed: `mul(3)`,
    `sub(1, ·)`, `sum(dim=0)`, `[:, 1:3]`.
    """
    if told := getattr(call, "told", ""):
        return str(told)
    if call.name == "slice" and call.record is not None:
        return _sliced(call)
    if call.name == "select" and call.record is not None and call.structure:
        return f"[{':, ' * call.structure[1]}{call.inputs[1].number}]"
    name = _SHOWN.get(call.name, call.name)
    if call.name in _SILENT:
        return name
    shown: list[str] = []
    positional = call.structure == ()
    usual = {p.name: p.default for p in call.record.params} if call.record else {}
    for parameter, value in arguments(call):
        if isinstance(value, Input):
            word = "·" if value.number is None else _number(value.number)
            if value.number is not None and value.number == usual.get(parameter):
                continue
        elif isinstance(value, tuple) and value and isinstance(value[0], Input):
            word = "·" if value[0].number is None else f"({', '.join(_number(v.number) for v in value)})"
        else:
            word = str(value)
        if word == "·" or positional:
            shown.append(word)
        else:
            shown.append(f"{parameter}={word}")
    if shown and shown[0] == "·":
        del shown[0]
    full = f"{name}({', '.join(shown)})"
    return full if len(full) <= LONGEST and any(word != "·" for word in shown) else name


def _sliced(call: Call) -> str:
    """`[:, 1:3]` of a slice, which is of some dims from a start, so many, by a step."""
    dims = (call.structure or ("t", (), 0))[1]
    numbers = [i.number for i in call.inputs if i.number is not None]
    count, whole = len(dims), call.inputs[0].shape or ()
    parts = [":"] * (max(dims, default=-1) + 1)
    for k, dim in enumerate(dims):
        start, length, step = numbers[k], numbers[count + k], numbers[2 * count + k]
        stop = start + (length - 1) * step + 1 if length else start
        if length == 1 and step == 1:
            parts[dim] = f"{start}:{stop}"
        else:
            end = "" if dim < len(whole) and stop + step > whole[dim] >= stop else str(stop)
            parts[dim] = f"{start or ''}:{end}" + (f":{step}" if step != 1 else "")
    return f"[{', '.join(parts)}]" if len(numbers) == 3 * count else "slice"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def array(dtype: str, shape: Shape) -> str:
    """`float32 (3, 4)`; a shape that nobody knows is left out."""
    return f"{dtype} {shape}".strip() if shape is not None else dtype


def scaled(count: int, units: Sequence[str], step: int) -> tuple[float, str]:
    """A number in the first unit in which it is below 1000, or the last; each is `step` of the one before."""
    size, unit = float(count), units[0]
    for larger in units[1:]:
        if size < 1000:
            break
        size, unit = size / step, larger
    return size, unit


def amount(nbytes: int) -> str:
    """A number of bytes as people read it: `96 B`, `1.5 KB`, `2 MB`."""
    size, unit = scaled(nbytes, ("B", "KB", "MB", "GB", "TB"), 1024)
    return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}".replace(".0 ", " ")


def several(count: int, word: str) -> str:
    """`1 op`, `2 ops`, `1 leaf`, `2 leaves`, `2 launches`."""
    many = word[:-1] + "ves" if word.endswith("f") else word + ("es" if word.endswith("ch") else "s")
    return f"{count:,} {word if count == 1 else many}"


def explained(call: Call) -> Iterator[str]:
    """The lines of a call's tooltip."""
    yield f"{call.title}: {called(call)}"
    for output, shape in sorted(call.shapes.items()):
        if shape is not None:
            which = f"result {output}" if len(call.shapes) > 1 else "result"
            name = f" = {call.named[output]}" if output in call.named else ""
            yield f"{which}{name}: {array(call.dtype, shape)}"
    for name, value in arguments(call):
        if isinstance(value, Input):
            yield f"{name}: {_input(value)}"
        elif isinstance(value, tuple) and value and isinstance(value[0], Input):
            shown = [_input(v) for v in value[:4]] + ["..."] * (len(value) > 4)
            yield f"{name}: {'; '.join(shown)}"
        else:
            yield f"{name}: {value}"
    for saved in call.saved:
        which = f"{saved.role} {saved.place}"
        hooked = "" if saved.memory else ", with hooks"
        yield f"saves {which}: {array(saved.dtype, saved.shape)}, {amount(saved.nbytes)}{hooked}"
    if call.freed:
        yield "what it saved was freed by backward"
    if call.line:
        yield f"at {call.line}"


def _input(given: Input) -> str:
    if given.number is not None:
        return _number(given.number)
    history = "" if given.source is not None else ", without gradient"
    return array(given.dtype, given.shape) + history


def printable(text: str, most: int) -> str:
    """Text that is fit for a picture: no control characters, the middle left out if it is longer than
    `most`.
    """
    if len(text) > most:
        text = f"{text[: most // 2 - 1]}…{text[len(text) - (most - most // 2) :]}"
    return "".join(
        c if c.isprintable() or c in "\n\u200c\u200d" else " " if c.isspace() else "\ufffd" for c in text
    )


_NARROW, _SLIM, _BROAD = frozenset("ijl.,:;'`|!I·"), frozenset('()[]{}ftr-"/ *'), frozenset("mwMW@%…")


def width(text: str, size: float, bold: bool = False) -> float:
    """About how wide a line of text is, in pixels, in the sans-serif fonts people have."""
    total = 0.0
    for c in text:
        if c in _NARROW:
            total += 0.33
        elif c in _SLIM:
            total += 0.42
        elif c in _BROAD:
            total += 0.95
        elif east_asian_width(c) in "WF" or c > "\u1fff":
            total += 1.05
        else:
            total += 0.7 if c.isupper() else 0.62
    return total * size * (1.08 if bold else 1.0)
