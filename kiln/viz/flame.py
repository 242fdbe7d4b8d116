"""A flame graph: where time went, as boxes on boxes, as wide as what they stand for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from zlib import crc32

from kiln.errors import message
from kiln.files import write_atomically
from kiln.viz import theme, words

_WIDTH, _ROW, _TYPE, _TOP = 1200.0, 18.0, 11.0, 40.0
_LEAST = 0.3  # pixels: thinner boxes are left out
# the colour of what a box stands for, and shades of it, which tell neighbours apart: shares of the page's
_HUES = {
    "all": "#7d8896",
    "phase": "#5f7390",
    "module": "#2f78c8",
    "line": "#2f9a52",
    "kernel": "#d9731f",
}
_LIGHT, _DARK = (0.68, 0.75, 0.8), (0.46, 0.54, 0.6)

# A click on a box makes it and what stands on it as wide as the picture; on the lowest, all is there again.
_SCRIPT = """
(function(){
  var root=document.getElementById("%s");
  if(!root)return;
  var boxes=[].slice.call(root.querySelectorAll("g[data-x]")),all=%r,size=%r;
  function number(b,name){return parseFloat(b.getAttribute("data-"+name))}
  function show(from,width,level){
    boxes.forEach(function(b){
      var x=number(b,"x"),w=number(b,"w"),d=number(b,"d");
      var above=x<=from+1e-6&&x+w>=from+width-1e-6&&d<level;
      var inside=x>=from-1e-6&&x+w<=from+width+1e-6;
      b.style.display=above||inside?"":"none";
      var left=above?0:(x-from)*all/width,wide=above?all:w*all/width;
      var r=b.querySelector("rect"),t=b.querySelector("text");
      r.setAttribute("x",left);r.setAttribute("width",Math.max(wide-0.6,0.1));
      b.style.opacity=above?0.55:1;
      if(t){
        var s=b.getAttribute("data-t"),most=Math.floor((wide-8)/(size*0.6));
        t.setAttribute("x",left+4);
        t.textContent=most<3?"":s.length<=most?s:s.slice(0,most-1)+"\\u2026";
      }
    });
  }
  boxes.forEach(function(b){
    b.style.cursor="pointer";
    b.addEventListener("click",function(){show(number(b,"x"),number(b,"w"),number(b,"d"))});
  });
})();
"""


class Block:
    """A box: what it stands for, its seconds, and the boxes on it by (kind, label)."""

    __slots__ = ("count", "kind", "label", "on", "seconds", "tip")

    def __init__(self, kind: str, label: str, tip: str = "") -> None:
        self.kind, self.label, self.tip = kind, label, tip
        self.seconds = 0.0
        self.count = 0
        self.on: dict[tuple[str, str], Block] = {}

    def add(self, path: Iterable[tuple[str, str, str]], seconds: float) -> None:
        """Adds time to this box and to those along a path of (kind, label, more for the tooltip)."""
        block = self
        block._take(seconds)
        for kind, label, tip in path:
            block = block.on.setdefault((kind, label), Block(kind, label, tip))
            block._take(seconds)

    def _take(self, seconds: float) -> None:
        self.seconds += seconds
        self.count += 1


class FlameGraph:
    """A picture of times; it shows itself in a notebook. A click on a box makes it as wide as the picture."""

    def __init__(self, root: Block, title: str) -> None:
        self._root, self._title = root, title
        self._svg = ""

    @property
    def svg(self) -> str:
        """The picture as SVG text, with what makes it answer to clicks."""
        if not self._svg:
            self._svg = _svg(self._root, self._title)
        return self._svg

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file that ends in .svg or .html, in one move, which needs nothing else; ValueError for
        another ending.
        """
        ending = os.path.splitext(os.fspath(path))[1].lower()
        if ending not in (".svg", ".html"):
            raise ValueError(message("save", "a path that ends in .svg or .html", repr(os.fspath(path))))
        text = self.svg if ending == ".svg" else _page(self.svg, self._title)
        write_atomically(os.fspath(path), iter([text.encode()]))

    def _repr_html_(self) -> str:
        return f'<div style="max-width:100%;overflow-x:auto">{self.svg}</div>'

    def __repr__(self) -> str:
        return (
            f"flame graph of {self._root.seconds * 1e3:.2f} ms in {words.several(self._root.count, 'launch')}"
        )


def _page(svg: str, title: str) -> str:
    return (
        f'<!doctype html><html><head><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>:root{color-scheme:light dark}body{margin:12px}</style></head>"
        f"<body>{svg}</body></html>"
    )


def _svg(root: Block, title: str) -> str:
    name = theme.new_name()
    drawn: list[str] = []
    deepest = _draw(root, root.seconds, drawn)
    height = _TOP + (deepest + 1) * _ROW + 12
    rules = [
        (f".{kind}{k} rect", theme.mixed(hue, "#ffffff", light), theme.mixed(hue, theme.DARK_PAGE, dark))
        for kind, hue in _HUES.items()
        for k, (light, dark) in enumerate(zip(_LIGHT, _DARK))
    ]
    rules += [("text", theme.INK, theme.DARK_INK), (".head", theme.FAINT, theme.DARK_FAINT)]
    look = f".{name} g[data-x]:hover rect{{stroke:{theme.GREY};stroke-width:1.5}}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" class="{name}" width="{_WIDTH:.0f}" '
            f'height="{height:.0f}" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" font-family="{theme.FONT}" '
            f'font-size="{_TYPE:.0f}" role="img" aria-label="flame graph">',
            theme.style(name, rules, look),
            f'<text x="4" y="17" font-size="14" font-weight="600" fill="{theme.INK}">{escape(title)}</text>',
            f'<text class="head" x="4" y="33" fill="{theme.FAINT}">width: time in kernels; a click on a box '
            "makes it as wide as the picture</text>",
            *drawn,
            f"<script><![CDATA[{_SCRIPT % (name, _WIDTH, _TYPE)}]]></script>",
            "</svg>",
            "",
        ]
    )


def _draw(root: Block, whole: float, drawn: list[str]) -> int:
    """Adds the boxes, each before those on it; the highest level."""
    deepest = 0
    scale = _WIDTH / max(whole, 1e-12)
    waiting: list[tuple[Block, float, int]] = [(root, 0.0, 0)]
    while waiting:
        block, left, level = waiting.pop()
        width = block.seconds * scale
        if width < _LEAST:
            continue
        deepest = max(deepest, level)
        drawn.append(_box(block, left, width, level, whole))
        for inner in _sorted(list(block.on.values())):
            waiting.append((inner, left, level + 1))
            left += inner.seconds * scale
    return deepest


def _sorted(blocks: Sequence[Block]) -> list[Block]:
    """Forward before backward, then the longest first."""
    return sorted(blocks, key=lambda b: (b.kind == "phase" and b.label != "forward", -b.seconds))


def _box(block: Block, left: float, width: float, level: int, whole: float) -> str:
    shade = crc32(block.label.encode()) % len(_LIGHT)
    fill = theme.mixed(_HUES[block.kind], "#ffffff", _LIGHT[shade])
    top = _TOP + level * _ROW
    most = int((width - 8) / (_TYPE * 0.6))
    label = block.label if len(block.label) <= most else block.label[: most - 1] + "…"
    share = 100 * block.seconds / max(whole, 1e-12)
    lines = [block.label, block.tip, f"{block.seconds * 1e3:.3f} ms, {share:.1f}% of all",
             words.several(block.count, "launch")]  # fmt: skip
    tip = "\n".join(filter(None, lines))
    return (
        f'<g class="{block.kind}{shade}" data-x="{left:.3f}" data-w="{width:.3f}" data-d="{level}" '
        f'data-t="{escape(block.label)}"><title>{escape(tip)}</title>'
        f'<rect x="{left:.2f}" y="{top:.1f}" width="{max(width - 0.6, 0.1):.2f}" height="{_ROW - 1:.0f}" '
        f'rx="2" fill="{fill}"/><text x="{left + 4:.2f}" y="{top + 12.5:.1f}" '
        f'fill="{theme.INK}">{escape(label) if most >= 3 else ""}</text></g>'
    )
