"""Floating-point operations of what runs, by module and by function, as `torch.utils.flop_counter` counts
them: those of products, a multiply-add as two (`kiln.capture.flops`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from kiln.autograd import watch
from kiln.capture.flops import multiply_adds
from kiln.errors import warn

__all__ = ["FlopCounterMode"]

_GLOBAL = "Global"


class FlopCounterMode:
    """Counts between entry and exit; `display` prints the table at the exit, of modules down to `depth`.

    Products are counted in what ran, whoever called it: matrix products, convolutions, attention, recurrent
    layers, with their gradients, eager or in `kiln.compile`. Other work counts as none. What backward does is
    counted for the module whose forward it is the derivative of. NotImplementedError for `custom_mapping`:
    functions are counted by what they are made of.

    >>> model = kiln.nn.Sequential(kiln.nn.Linear(4, 5), kiln.nn.ReLU())
    >>> with kiln.utils.flop_counter.FlopCounterMode(display=False) as counter:
    ...     y = model(kiln.ones(2, 4))
    >>> counter.get_total_flops()
    80
    >>> counter.get_flop_counts()["Sequential.0"]
    {'linear': 80}
    """

    def __init__(
        self, mods: Any = None, depth: int = 2, display: bool = True, custom_mapping: Any = None
    ) -> None:
        if custom_mapping:
            raise NotImplementedError(
                "FlopCounterMode: custom_mapping: kiln counts the products that functions are made of, and "
                "has no formulas of functions to exchange"
            )
        if mods is not None:
            warn("mods argument is not needed anymore, you can stop passing it")
        self.depth, self.display = depth, display
        self._places = watch.Places()
        self._of: dict[int, watch.Place] = {}
        self._counts: dict[str, dict[str, int]] = {}

    def _count(
        self, number: int, name: str, handle: Any, operands: tuple[Any, ...], forward: int, recorded: bool
    ) -> None:
        place = self._of.get(forward) if forward else None
        place = self._of[number] = place or self._places.here()
        flops = 2 * multiply_adds(handle, operands)
        if not flops:
            return
        names = [_GLOBAL]
        for layer in place.modules:
            names.append(".".join(filter(None, [place.modules[0].kind, layer.name])))
        for module in dict.fromkeys(names):
            counts = self._counts.setdefault(module, {})
            counts[name] = counts.get(name, 0) + flops

    def __enter__(self) -> FlopCounterMode:
        self._counts, self._of = {}, {}
        watch.begin(self._count)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        watch.end(self._count)
        if self.display:
            print(self.get_table(self.depth))

    def get_total_flops(self) -> int:
        """All of them."""
        return sum(self._counts.get(_GLOBAL, {}).values())

    def get_flop_counts(self) -> dict[str, dict[str, int]]:
        """By module ("Global" for all, then "Model", "Model.layer", ...), by function."""
        return {module: dict(counts) for module, counts in self._counts.items()}

    def get_table(self, depth: int | None = None) -> str:
        """Modules down to `depth` with their operations and their share of all."""
        deepest = self.depth if depth is None else depth
        total = max(self.get_total_flops(), 1)
        rows = [("Module", "FLOP", "% Total")]
        order = sorted(self._counts, key=lambda name: (name != _GLOBAL, name))
        for name in order or [_GLOBAL]:
            level = 0 if name == _GLOBAL else name.count(".") + 1
            if level > deepest:
                continue
            counts = self._counts.get(name, {})
            rows.append((" " * level + name, *_cells(sum(counts.values()), total)))
            rows += [
                (" " * level + f" - {function}", *_cells(count, total)) for function, count in counts.items()
            ]
        widths = [max(len(row[k]) for row in rows) for k in range(3)]
        lines = [f"{a:{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows]
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _cells(flops: int, total: int) -> tuple[str, str]:
    value, unit = float(flops), ""
    for larger in ("K", "M", "B", "T"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return (f"{value:.3f}{unit}" if unit else str(flops)), f"{100 * flops / total:.2f}%"
