"""`kiln.viz.graph`: the dynamic graph behind a tensor, as a picture."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from kiln.errors import message
from kiln.files import write_atomically
from kiln.table.callables import hide_frames
from kiln.viz import dot, words
from kiln.viz.fold import Modules
from kiln.viz.layout import Link, place
from kiln.viz.page import alone, page
from kiln.viz.picture import Picture, held, picture
from kiln.viz.svg import size_of, svg
from kiln.viz.trace import Leaf, Trace, trace


class Drawing:
    """A picture of a graph; it shows itself in a notebook. It holds text only, nothing of the graph."""

    def __init__(self, picture: Picture, summary: str, folded: Picture | None = None) -> None:
        self._picture, self._summary = picture, summary
        self._folded = folded or picture  # for a page, where boxes of modules can be opened
        self._svg = ""

    @property
    def svg(self) -> str:
        """The picture as SVG text: laid out by Graphviz if its program `dot` is there, else by kiln."""
        if not self._svg:
            self._svg = _drawn(self._picture)
        return self._svg

    @property
    def html(self) -> str:
        """The picture as a part of a page, with modules as boxes; a click opens one, and shows what is
        inside.
        """
        return page(self._folded, self._summary, _drawn)

    @property
    def dot(self) -> str:
        """The picture in the language of Graphviz."""
        return dot.text(self._picture)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture to a file that ends in .svg, .html (where modules can be opened), .dot or .gv,
        in one move; ValueError for another ending.
        """
        ending = os.path.splitext(os.fspath(path))[1].lower()
        if ending not in (".svg", ".html", ".dot", ".gv"):
            wanted = "a path that ends in .svg, .html, .dot or .gv"
            raise ValueError(message("save", wanted, repr(os.fspath(path))))
        content = self.svg if ending == ".svg" else alone(self.html) if ending == ".html" else self.dot
        write_atomically(os.fspath(path), iter([content.encode()]))

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_html_(self) -> str | None:
        """What a notebook shows in place of the picture: if it is folded, one whose boxes open."""
        return self.html if self._picture.inside else None

    def __repr__(self) -> str:
        return self._summary


def graph(
    y: Any,
    params: Any = None,
    *,
    depth: int | None = None,
    max_nodes: int = 300,
    data: bool = True,
    saved: bool = False,
) -> Drawing:
    """A picture of the graph that backward from `y` would pass through: a tensor, a `grad_fn`, or a tuple,
    list or dict of these (the keys are the names of the results).

    From leaves at the top to results at the bottom: the way the data went; arguments stand in order. A box
    has the op with its numbers, the shape and dtype of its result, the bytes it saved for backward and the
    line that recorded it; its tooltip has every detail. Names come from `params`, a Module or tensors by
    name (`dict(model.named_parameters())`): leaves, results of ops, data. `data=False` leaves out tensors
    without gradients, `saved=True` draws what was kept for backward.

    `depth` draws modules that lie so deep as one box each (1: those that the outermost calls); saved as
    .html, or by `.html`, the picture has boxes that open. An op that reads a module's parameters is the
    module's; another one is found by its line and by what stands around it. A graph of more than
    `max_nodes` ops is folded as far as it must be; without names of modules chains are drawn as one box,
    and only the latest are shown: a note below says so.

    Nothing is computed, and the drawing keeps nothing of the graph alive. TypeError for another `y`,
    ValueError for no depth.

    >>> x = kiln.tensor(2.0, requires_grad=True)
    >>> picture = kiln.viz.graph(x * x + 3 * x + 1, {"x": x})
    >>> picture
    graph of 4 ops (add 2, mul 2) and 1 leaf (x); saves 4 B; result: float32 ()
    >>> picture.svg[:5]
    '<svg '
    """
    if hasattr(y, "draw") and hasattr(y, "raw"):
        return y.draw(depth=depth)  # type: ignore[no-any-return]  # a kiln.graph.Graph
    if max_nodes < 1:
        raise ValueError(message("viz.graph", "max_nodes of at least 1", str(max_nodes)))
    if depth is not None and depth < 1:
        raise ValueError(message("viz.graph", "depth of at least 1, or None", str(depth)))
    found = trace(y, params)
    modules = Modules(params)
    drawn = picture(found, max_nodes, data, saved, depth, modules)
    folded = drawn if drawn.inside else picture(found, max_nodes, data, saved, depth or 1, modules)
    return Drawing(drawn, _summary(found), folded)


def defined(found: Trace, model: Any, depth: int | None, summary: str, max_nodes: int = 300) -> Drawing:
    """The picture of a graph that was defined, whose calls are in `found`."""
    if depth is not None and depth < 1:
        raise ValueError(message("Graph.draw", "depth of at least 1, or None", str(depth)))
    modules = Modules(model)
    whole = picture(found, max_nodes, True, False, depth, modules)
    folded = whole if whole.inside else picture(found, max_nodes, True, False, depth or 1, modules)
    return Drawing(whole, summary, folded)


def _drawn(picture: Picture, opens: dict[int, str] | None = None) -> str:
    """The text of a picture, laid out by Graphviz or by kiln."""
    sizes = [size_of(box) for box in picture.boxes]
    links = [Link(a.source, a.target, a.port, a.exit) for a in picture.arrows]
    return svg(picture, dot.layout(sizes, links) or place(sizes, links), opens)


def _summary(found: Trace) -> str:
    """One line: how many ops of which kinds, which leaves, how much is saved, which results."""
    counts = Counter(words.printable(call.name, 40) for call in found.calls).most_common()
    kinds = ", ".join(f"{name} {count}" for name, count in counts[:4]) + (", ..." if len(counts) > 4 else "")
    leaves = dict.fromkeys(s for call in found.calls for s in call.sources() if isinstance(s, Leaf))
    leaves.update(dict.fromkeys(root.source for root in found.roots if isinstance(root.source, Leaf)))
    names = [words.printable(leaf.name, 40) for leaf in leaves if leaf.name]
    named = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    more = "more than " if found.unread else ""
    results = [
        f"{words.printable(root.name, 40)}: {words.array(root.dtype, root.shape)}"
        for root in found.roots[:3]
        if root.dtype
    ]
    parts = [
        f"graph of {more}{words.several(len(found.calls), 'op')}" + (f" ({kinds})" if kinds else "")
        + f" and {words.several(len(leaves), 'leaf')}" + (f" ({named})" if named else ""),
        f"saves {words.amount(held(found.calls))}",
        *results,
        *(["..."] if len(found.roots) > 3 else []),
    ]  # fmt: skip
    return "; ".join(parts)


hide_frames(globals(), ("graph",))
