"""The same picture for Graphviz: its language as text, and its layout if its program is there.

The program is given numbered boxes of given sizes, never a text of the user's; it says where they go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

from kiln.viz.layout import Layout, Link, Point
from kiln.viz.picture import Picture
from kiln.viz.svg import COLOURS

_SECONDS = 20  # the program's time; after it the layout is kiln's own
_INCH = 72.0


def text(picture: Picture) -> str:
    """The picture in the language of Graphviz."""
    lines = [
        "digraph kiln {",
        '  graph [rankdir=TB, bgcolor="transparent", ordering=in];',
        '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=11];',
        '  edge [color="#8a93a0"];',
    ]
    for k, box in enumerate(picture.boxes):
        fill, border, _ = COLOURS[box.kind]
        label = _quoted("\n".join([box.title, *box.lines]))
        tip = _quoted(box.tip)
        lines.append(f'  n{k} [label={label}, tooltip={tip}, fillcolor="{fill}", color="{border}"];')
    for arrow in sorted(picture.arrows, key=lambda a: (a.target, a.port)):
        lines.append(f"  n{arrow.source} -> n{arrow.target} [tooltip={_quoted(arrow.tip)}];")
    if picture.note:
        lines.append(f"  label={_quoted(picture.note)};")
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    """A string of that language that stands for exactly this text; lines are centred. Graphviz reads names
    such as &lt; in labels, so & is written as one.
    """
    text = text.replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return '"' + text.replace("\n", "\\n") + '"'


def layout(sizes: Sequence[tuple[float, float]], links: Sequence[Link]) -> Union[Layout, None]:
    """Where `dot` puts boxes of these sizes; None where there is no such program or it does not manage."""
    import shutil
    import subprocess

    program = shutil.which("dot")
    if program is None or not sizes:
        return None
    lines = ["digraph {"]
    lines += [
        "graph [ordering=in, nodesep=0.3, ranksep=0.45];",
        "node [shape=box, fixedsize=true];",
        "edge [dir=none];",
    ]
    lines += [
        f'{k} [width={w / _INCH:.4f}, height={h / _INCH:.4f}, label=""];' for k, (w, h) in enumerate(sizes)
    ]
    order = sorted(range(len(links)), key=lambda k: (links[k].target, links[k].port))
    lines += [f"{links[k].source} -> {links[k].target};" for k in order]
    try:
        done = subprocess.run(
            [program, "-Tplain"],
            input="\n".join([*lines, "}"]),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
        return _read(done.stdout, len(sizes), links)
    except (OSError, ValueError, LookupError, subprocess.SubprocessError):
        return None


def _read(plain: str, boxes: int, links: Sequence[Link]) -> Layout:
    """A Layout from `dot -Tplain`: inches, with y from the bottom up."""
    centres: list[Point] = [(0.0, 0.0)] * boxes
    found: dict[tuple[int, int], list[list[Point]]] = {}
    width = height = 0.0
    for words in map(str.split, plain.splitlines()):
        if words[0] == "graph":
            width, height = float(words[2]) * _INCH, float(words[3]) * _INCH
        elif words[0] == "node":
            centres[int(words[1])] = (float(words[2]) * _INCH, height - float(words[3]) * _INCH)
        elif words[0] == "edge":
            numbers = [float(word) * _INCH for word in words[4 : 4 + 2 * int(words[3])]]
            points = [(x, height - y) for x, y in zip(numbers[::2], numbers[1::2])]
            found.setdefault((int(words[1]), int(words[2])), []).append(points)
    curves = [found[link.source, link.target].pop() for link in links]
    return Layout(centres, curves, width, height)
