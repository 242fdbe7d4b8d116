"""Tensors as text, laid out as PyTorch lays them out.

    tensor([[1.0000, 2.5000],          every number takes the width of the widest
            [   nan, 3.0000]], ...)    suffixes that do not fit start a line of their own

A large tensor (more elements than `threshold`) shows `edgeitems` at both ends of every dim. Only what is
shown is read, and only once: views cut the corners out, `tolist` reads them, the rest is text.
"""

from __future__ import annotations

import math
from typing import Any

from kiln import _core
from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.tuples import NamedTuple


class PrintOptions(NamedTuple):
    """How tensors print; `sci_mode` None decides by the values."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


PROFILES = {
    "default": PrintOptions(),
    "short": PrintOptions(precision=2, edgeitems=2),
    "full": PrintOptions(threshold=math.inf),
}

_options = PrintOptions()


def get_printoptions() -> dict[str, Any]:
    """The options in force, by name."""
    return _options._asdict()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Change how tensors print; None keeps an option, except `sci_mode`, whose None decides by the values.

    `profile` "default", "short" or "full" sets all of them first.

    >>> import kiln
    >>> kiln.set_printoptions(precision=2)
    >>> kiln.tensor([1.12345])
    tensor([1.12])
    >>> kiln.set_printoptions(profile="default")
    """
    global _options
    chosen = _options
    if profile is not None:
        if profile not in PROFILES:
            raise ValueError(message("set_printoptions", f"profile in {sorted(PROFILES)}", describe(profile)))
        chosen = PROFILES[profile]
    given: dict[str, Any] = {
        "precision": precision,
        "threshold": threshold,
        "edgeitems": edgeitems,
        "linewidth": linewidth,
    }
    chosen = chosen._replace(**{k: v for k, v in given.items() if v is not None})
    _options = chosen._replace(sci_mode=sci_mode)


def tensor_repr(tensor: Tensor) -> str:
    """`repr(tensor)`: values, then what the values do not tell (dtype, size, grad_fn or requires_grad)."""
    kind = type(tensor)  # a class of the program's own is shown by its name
    prefix = f"{'tensor' if kind.__module__.partition('.')[0] in ('kiln', 'torch') else kind.__name__}("
    plain = tensor.detach()
    suffixes = []
    dtype, shape = plain.dtype, tuple(plain.shape)
    if 0 in shape:
        body = "[]"
        if len(shape) != 1:
            suffixes.append(f"size={shape}")
        shown = dtype != _core.get_default_dtype()
    else:
        if not _options.edgeitems:
            suffixes.append(f"size={shape}")
        body = _values(plain, shape, len(prefix), _options)
        shown = dtype not in (_core.get_default_dtype(), _core.int64, _core.bool)
    if shown:
        suffixes.append(f"dtype={dtype}")
    try:
        node = tensor.grad_fn
        made_by = node and node.name()
    except RuntimeError:  # a view that may not follow what became of its base: it can be looked at
        made_by = "Invalid"
    if made_by is not None:
        suffixes.append(f"grad_fn=<{made_by}>")
    elif tensor.requires_grad:
        suffixes.append("requires_grad=True")
    return _with_suffixes(prefix + body, suffixes, len(prefix), _options.linewidth)


def tensor_format(tensor: Tensor, spec: str) -> str:
    """`format(tensor, spec)`: a tensor of no dims as its number, any other only without a `spec`."""
    if tensor.ndim == 0 and type(tensor) is Tensor:
        return format(tensor.item(), spec)
    return object.__format__(tensor, spec)


def _with_suffixes(text: str, suffixes: list[str], indent: int, linewidth: int) -> str:
    """`text` and its suffixes, each on the last line while it fits, else on a new one; closes the bracket."""
    column = len(text) - text.rfind("\n") + 1
    for suffix in suffixes:
        if column + len(suffix) + 2 > linewidth:
            text += ",\n" + " " * indent + suffix
            column = indent + len(suffix)
        else:
            text += ", " + suffix
            column += len(suffix) + 2
    return text + ")"


def _values(tensor: Tensor, shape: tuple[int, ...], indent: int, options: PrintOptions) -> str:
    """The nested brackets of a tensor that is not empty."""
    edge = options.edgeitems if math.prod(shape) > options.threshold else None
    nested = _shown(tensor, shape, edge)
    flat: list[Any] = []
    _flatten(nested, flat)
    style = _Style(flat, options) if tensor.dtype.is_floating_point else _Style.of_exact(flat)
    return _layout(nested, shape, indent, edge, style, options.linewidth)


def _shown(tensor: Tensor, shape: tuple[int, ...], edge: int | None) -> Any:
    """The elements to show as nested lists: all, or the corners where dims are longer than 2 * edge."""
    if edge is None or all(size <= 2 * edge for size in shape):
        return tensor.tolist()
    size = shape[0]
    if size <= 2 * edge:
        rows = range(size)
        return [_shown(tensor[k], shape[1:], edge) for k in rows]
    if len(shape) == 1:
        return tensor[:edge].tolist() + tensor[size - edge :].tolist()
    return [_shown(tensor[k], shape[1:], edge) for k in [*range(edge), *range(size - edge, size)]]


def _flatten(nested: Any, into: list[Any]) -> None:
    """Append the leaves of nested lists to `into`."""
    if not isinstance(nested, list):
        into.append(nested)
    elif nested and not isinstance(nested[0], list):
        into.extend(nested)
    else:
        for part in nested:
            _flatten(part, into)


class _Style:
    """How all numbers of one tensor are written: `form` for those that are finite, padded to `width`."""

    __slots__ = ("form", "point", "scientific", "width")

    def __init__(self, values: list[float], options: PrintOptions) -> None:
        """The style of floats: as integers with a point, with fixed digits, or scientific."""
        finite = [abs(v) for v in values if v != 0 and math.isfinite(v)]
        low, high = min(finite, default=1.0), max(finite, default=1.0)
        spread = high / low > 1000.0 or high > 1e8 or low < 1e-4
        whole = all(v == math.floor(v) for v in finite)
        self.scientific = bool(finite) and (spread if options.sci_mode is None else options.sci_mode)
        self.point = whole and not self.scientific
        self.form = f".{options.precision}{'e' if self.scientific else 'f'}" if not self.point else ".0f"
        written = (len(format(v, self.form)) for v in values if v != 0 and math.isfinite(v))
        self.width = max(1, max(written, default=1 - self.point) + self.point)

    @classmethod
    def of_exact(cls, values: list[Any]) -> _Style:
        """The style of integers and bools: as Python writes them."""
        style = cls([], PrintOptions())
        style.scientific = style.point = False
        style.form = ""
        style.width = max((len(str(v)) for v in values), default=1)
        return style

    def write(self, value: Any) -> str:
        """One element, right-aligned."""
        if not self.form:
            return str(value).rjust(self.width)
        text = format(value, self.form)
        if self.point and math.isfinite(value):
            text += "."
        return text.rjust(self.width)


def _layout(
    nested: Any, shape: tuple[int, ...], indent: int, edge: int | None, style: _Style, linewidth: int
) -> str:
    """Nested lists as brackets, contents from column `indent` + 1 on; " ..." where elements are left out."""
    if not shape:
        return style.write(nested)
    cut = edge is not None and shape[0] > 2 * edge
    if len(shape) == 1:
        items = [style.write(v) for v in nested]
        if cut and edge is not None:
            items[edge:edge] = [" ..."] if edge else ["..."]
        per_line = max(1, (linewidth - indent) // (style.width + 2))
        lines = [", ".join(items[k : k + per_line]) for k in range(0, len(items), per_line)]
        return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
    rows = [_layout(row, shape[1:], indent + 1, edge, style, linewidth) for row in nested]
    if cut and edge is not None:
        rows[edge:edge] = ["..."]
    return "[" + ("," + "\n" * (len(shape) - 1) + " " * (indent + 1)).join(rows) + "]"
