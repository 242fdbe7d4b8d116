"""A picture of modules as a page: each box of a module opens a part below, with the picture of what is
inside.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from kiln.viz import theme
from kiln.viz.picture import Picture

# A link to a part opens it, and the parts around it.
_SCRIPT = """
(function(){
  var root=document.getElementById("%s");
  if(!root)return;
  root.addEventListener("click",function(event){
    var link=event.target.closest?event.target.closest("a[href]"):null;
    var part=link&&document.getElementById(link.getAttribute("href").slice(1));
    if(!part)return;
    event.preventDefault();
    for(var p=part;p&&p!==root;p=p.parentElement)if(p.tagName==="DETAILS")p.open=true;
    part.scrollIntoView({behavior:"smooth",block:"nearest"});
  });
})();
"""


def page(picture: Picture, summary: str, draw: Callable[[Picture, dict[int, str]], str]) -> str:
    """The part of a page that shows a picture; `draw` makes SVG of one, with links of boxes to ids."""
    name = theme.new_name()
    parts = [
        f'<div id="{name}" style="font-family:{escape(theme.FONT)};font-size:13px">',
        f"<style>#{name} details{{margin:6px 0 6px 14px;padding-left:8px;"
        f"border-left:2px solid {theme.GREY}55}}"
        f"#{name} summary{{cursor:pointer;padding:2px 0}}#{name} .kiln-fold{{overflow-x:auto}}"
        f"#{name} a:hover rect{{stroke-width:2.4}}</style>",
        f"<div>{escape(summary)}</div>",
        *_level(picture, name, draw),
        f"<script>{_SCRIPT % name}</script></div>",
    ]
    return "\n".join(parts)


def alone(part: str) -> str:
    """A file that shows it, light or dark as its reader's system is."""
    return (
        '<!doctype html>\n<html><head><meta charset="utf-8"><title>kiln graph</title>'
        "<style>:root{color-scheme:light dark}body{margin:16px}</style></head>\n"
        f"<body>{part}</body></html>\n"
    )


def _level(picture: Picture, name: str, draw: Callable[[Picture, dict[int, str]], str]) -> list[str]:
    opens = {k: f"{name}-{k}" for k in picture.inside}
    parts = [f'<div class="kiln-fold">{draw(picture, opens)}</div>']
    for k, inner in picture.inside.items():
        box = picture.boxes[k]
        said = ", ".join([box.title, *box.lines])
        parts.append(f'<details id="{opens[k]}"><summary>{escape(said)}</summary>')
        parts += [*_level(inner, opens[k], draw), "</details>"]
    return parts
