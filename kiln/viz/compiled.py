"""What `explain()` of a compiled function says, as a page: regions and what ended them, programs as pictures,
kernels with what they cost, memory over time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from math import isfinite
from typing import Any

from kiln.capture import explain
from kiln.capture.policy import microseconds
from kiln.viz import theme, words
from kiln.viz.machine import Limits, limits
from kiln.viz.programs import Kernel, Names, Program, program

_MOST = 12  # recordings with pictures, those that were seen most often
_ROWS = 40  # of a table of places or changes
_KERNELS = 200  # rows, those that take longest
_MOST_LINES = 4  # of a kernel

_STYLE = """
.%(n)s{font:14px/1.45 %(font)s;color:light-dark(%(ink)s,%(dark_ink)s);max-width:1200px;text-align:left}
.%(n)s h1{font-size:20px;margin:0 0 4px}
.%(n)s h2{font-size:16px;margin:24px 0 6px}
.%(n)s h3{font-size:14px;margin:14px 0 4px}
.%(n)s p{margin:4px 0}
.%(n)s .quiet{color:light-dark(%(faint)s,%(dark_faint)s)}
.%(n)s .tiles{display:flex;flex-wrap:wrap;gap:8px;margin:10px 0}
.%(n)s .tile{border:1px solid %(grey)s66;border-radius:6px;padding:6px 12px}
.%(n)s .tile b{display:block;font-size:18px;font-weight:600}
.%(n)s .note{border-left:3px solid light-dark(#b7791f,#e0b050);padding:4px 10px;margin:10px 0;
  background:light-dark(#fff7e2,#2c2614)}
.%(n)s .wide{overflow-x:auto}
.%(n)s table.t{border-collapse:collapse;font-size:13px;margin:4px 0;background:none;color:inherit}
.%(n)s table.t tr{background:none}
.%(n)s table.t th{font-weight:600;text-align:left;border-bottom:1px solid %(grey)s;padding:3px 12px 3px 0;
  vertical-align:bottom;background:none}
.%(n)s table.t td{border-bottom:1px solid %(grey)s33;padding:4px 12px 4px 0;vertical-align:top;
  text-align:left;max-width:640px;overflow-wrap:anywhere}
.%(n)s table.t .r{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.%(n)s table.t .ops{min-width:210px}
.%(n)s .bar{width:110px;height:8px;border-radius:4px;background:%(grey)s44;margin:6px 0 2px}
.%(n)s .bar i{display:block;height:8px;border-radius:4px;background:light-dark(#2f78c8,#5b9de0)}
.%(n)s .bar i.c{background:light-dark(#d9731f,#e8924a)}
.%(n)s details{margin:4px 0}
.%(n)s summary{cursor:pointer}
.%(n)s details.rec{border:1px solid %(grey)s66;border-radius:6px;padding:6px 12px;margin:8px 0}
.%(n)s details.rec>summary{font-weight:600}
.%(n)s pre{font:12px/1.35 ui-monospace,Menlo,Consolas,monospace;overflow:auto;max-height:340px;margin:4px 0;
  padding:6px 8px;background:light-dark(#f3f5f8,#1e242c);color:inherit;white-space:pre}
.%(n)s .kiln-fold{overflow:auto;max-height:640px}
"""


# A picture that is wider than its place begins at its highest box.
_SCRIPT = """
(function(){
  var root=document.querySelector(".%s");
  function begin(){
    [].forEach.call(root.querySelectorAll(".kiln-fold"),function(place){
      if(!place.clientWidth||place.begun)return;
      place.begun=true;
      var top=null;
      [].forEach.call(place.querySelectorAll("rect"),function(box){
        var at=box.getBoundingClientRect();
        if(!top||at.top<top.top)top=at;
      });
      if(top)place.scrollLeft+=(top.left+top.right)/2-place.getBoundingClientRect().left-place.clientWidth/2;
    });
  }
  if(root){begin();root.addEventListener("toggle",begin,true);}
})();
"""


def pages(
    name: str, counts: dict[str, Any], known: dict[str, Any], function: Any, params: Any
) -> tuple[str, str]:
    """The part of a page, for a notebook, and the page, of a region."""
    names = Names(function, params)
    recordings = explain.in_order(known)
    parts = [
        f"<h1>{escape(name)}</h1>",
        f'<p class="quiet">{_state(counts, known)}</p>',
        _tiles(counts, known),
        *_notes(known),
        *_ends(recordings),
        *_changes(recordings),
        *_recordings(recordings, names),
    ]
    return _both(parts, name)


def text_pages(text: str) -> tuple[str, str]:
    """The same of what has words only."""
    first, _, rest = text.partition("\n")
    return _both([f"<h1>{escape(first)}</h1>", f"<pre>{escape(rest)}</pre>" if rest else ""], first)


def _both(parts: Iterable[str], title: str) -> tuple[str, str]:
    n = theme.new_name()
    named = {
        "n": n, "font": theme.FONT, "grey": theme.GREY, "ink": theme.INK, "dark_ink": theme.DARK_INK,
        "faint": theme.FAINT, "dark_faint": theme.DARK_FAINT,
    }  # fmt: skip
    body = [*parts, f"<script>{_SCRIPT % n}</script>"]
    part = f'<div class="{n}">{theme.style(n, (), _STYLE % named)}\n' + "\n".join(body) + "</div>"
    whole = (
        f'<!doctype html>\n<html><head><meta charset="utf-8"><title>{escape(title)}: kiln.compile</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>:root{{color-scheme:light dark}}body{{margin:16px;"
        f"background:light-dark(#ffffff,{theme.DARK_PAGE})}}</style></head>\n<body>{part}</body></html>\n"
    )
    return part, whole


def _state(counts: dict[str, Any], known: dict[str, Any]) -> str:
    if known["off"]:
        return f"switched off: calls run as they are written; {escape(explain.until(known['rest']))}"
    if not known["made"]:
        return "not called yet"
    return "what kiln.compile recorded, and what it made of it"


def _tiles(counts: dict[str, Any], known: dict[str, Any]) -> str:
    shown = [
        ("different recordings", known["made"]),
        ("compiled", counts["compiles"]),
        ("runs of a program", counts["runs"]),
        ("runs op by op", counts["replays"]),
    ]
    if counts["forgotten"]:
        shown.append(("forgotten", counts["forgotten"]))
    tiles = (f'<div class="tile"><b>{number:,}</b>{told}</div>' for told, number in shown)
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _notes(known: dict[str, Any]) -> list[str]:
    found = []
    if known["off"]:
        found.append(f"<b>Switched off:</b> {escape(known['off'])}")
        found += [f"What would help: {escape(advice)}" for advice in explain.helps(known)]
    if known["copied"]:
        found.append(escape(explain.copied(known["copied"])))
    return [f'<div class="note">{"<br>".join(found)}</div>'] if found else []


def _ends(recordings: Sequence[dict[str, Any]]) -> list[str]:
    """What ended recordings: each place once, with how often."""
    times: Counter[tuple[str, str]] = Counter()
    for r in recordings:
        for cause, line, count in r["ends"]:
            times[cause, line or ""] += count
    if not times:
        return []
    rows = [(f"{count:,}", cause, _place(line)) for (cause, line), count in times.most_common(_ROWS)]
    return ["<h2>What ended recordings</h2>", _table(("r times", " why", " where"), rows), *_rest(len(times))]


def _changes(recordings: list[dict[str, Any]]) -> list[str]:
    """What was recorded anew: each change once, with how often."""
    times: Counter[tuple[str, str, str]] = Counter()
    for k, r in enumerate(recordings):
        if not k:
            continue
        at, before, _, now = explain.changed(r, recordings[:k])
        lines = r["recorded"][2]
        times[before, now, lines[at] if at < len(lines) else ""] += 1
    if not times:
        return []
    rows = [(f"{n:,}", before, now, _place(line)) for (before, now, line), n in times.most_common(_ROWS)]
    heads = ("r recordings", " was", " is", " where")
    told = '<p class="quiet">n stands for any size above 1: sizes are no reason, what is 1 is one.</p>'
    return ["<h2>What was recorded anew</h2>", told, _table(heads, rows), *_rest(len(times))]


def _rest(count: int) -> list[str]:
    return [f'<p class="quiet">and {count - _ROWS:,} more</p>'] if count > _ROWS else []


def _place(line: str) -> str:
    """The end of a path, which says enough in a table."""
    folders = line.replace("\\", "/").split("/")
    return "/".join(folders[-2:])


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Heads say the class of a column, then its name."""
    classes, names = zip(*(head.split(" ", 1) for head in heads))
    head = "".join(f'<th class="{c}">{escape(n)}</th>' for c, n in zip(classes, names))
    body = ""
    for row in rows:
        cells = (f'<td class="{c}">{escape(x)}</td>' for c, x in zip(classes, row))
        body += f"<tr>{''.join(cells)}</tr>"
    return f'<div class="wide"><table class="t"><tr>{head}</tr>{body}</table></div>'


# -- recordings -----------------------------------------------------------------------------------------


def _recordings(recordings: Sequence[dict[str, Any]], names: Names) -> list[str]:
    if not recordings:
        return []
    pictured = sorted(recordings, key=lambda r: (-r["seen"], r["number"]))[:_MOST]
    chosen = {r["number"] for r in pictured}
    parts = ["<h2>Recordings</h2>"]
    for r in recordings:
        if r["number"] in chosen:
            parts += _recording(r, names, r is pictured[0])
    if len(recordings) > _MOST:
        seen = f"the {_MOST} that were seen most often"
        parts.append(f'<p class="quiet">{seen}; {len(recordings) - _MOST:,} more are not shown</p>')
    return parts


def _recording(r: dict[str, Any], names: Names, first: bool) -> list[str]:
    ops = [op[0] for op in explain.ops_of(r)]
    made = words.several(r["kernels"], "kernel") if r["kernels"] >= 0 else "no program"
    title = f"recording {r['number']}: {words.several(len(ops), 'op')}, {made}, seen {r['seen']:,} times"
    told = [f"{r['runs']:,} times by the program, {r['replays']:,} op by op", *explain.state(r)]
    if isfinite(r["program"]) and isfinite(r["replay"]) and not r["slower"]:
        recording = r["record"] if isfinite(r["record"]) else 0.0
        told.append(
            f"its program takes {microseconds(r['program'] + recording)} with recording, "
            f"its ops {microseconds(r['replay'])}"
        )
    parts = [
        f'<details class="rec"{" open" if first else ""}><summary>{escape(title)}</summary>',
        *(f"<p>{escape(line)}</p>" for line in told),
        f'<p class="quiet">{escape(explain.short(ops))}</p>',
    ]
    found = program(r, names, f"recording {r['number']}")
    if found is not None:
        parts += [
            "<h3>Operations</h3>",
            found.drawing.html,
            "<h3>Kernels</h3>",
            *_kernels(found.kernels),
            "<h3>Memory</h3>",
            f'<p class="quiet">{_memory(found)}</p>',
            f'<div class="wide">{found.memory}</div>',
        ]
    return [*parts, "</details>"]


def _memory(found: Program) -> str:
    alone, together = found.temporaries
    return (
        f"temporaries take {words.amount(together)} at once"
        + (f", of {words.amount(alone)} if each had its own" if alone > together else "")
        + "; at the sizes that were first seen"
    )


def _kernels(kernels: Sequence[Kernel]) -> list[str]:
    if not kernels:
        return ['<p class="quiet">none: every result is a view, or was there</p>']
    machine = limits()
    whole = sum(k.seconds for k in kernels)
    order = sorted(range(len(kernels)), key=lambda k: -kernels[k].seconds)[:_KERNELS]
    rows = "".join(_row(k, kernels[k], whole, machine) for k in sorted(order))
    heads = (
        ("r", "#"),
        ("ops", "computes"),
        ("r", "time"),
        ("r", "bytes"),
        ("r", "operations"),
        ("", "of the machine"),
    )
    head = "".join(f'<th class="{c}">{n}</th>' for c, n in heads)
    peak = f"{machine.operations / 1e9:.0f} billion operations a second"
    memory = f"{machine.bandwidth[-1][1] / 1e9:.1f} GB/s of memory"
    told = f"measured limits of this machine, with kiln's threads: {memory}, more in caches; {peak}"
    timed = (
        f"all kernels together: {microseconds(whole)}" if whole else "not timed yet: its program has not run"
    )
    more = len(kernels) - len(order)
    return [
        f'<p class="quiet">{timed}; {told}. A tanh counts as one operation, a multiply-add as two.</p>',
        f'<div class="wide"><table class="t"><tr>{head}</tr>{rows}</table></div>',
        *([f'<p class="quiet">{more} that take the least are not shown</p>'] if more else []),
    ]


def _row(k: int, kernel: Kernel, whole: float, machine: Limits) -> str:
    lines = [escape(_place(line)) for line in kernel.lines[:_MOST_LINES]]
    if len(kernel.lines) > _MOST_LINES:
        lines.append(f"and {len(kernel.lines) - _MOST_LINES} more lines")
    nest = (
        f"<details><summary>loops</summary><pre>{escape(kernel.text)}</pre></details>" if kernel.text else ""
    )
    places = f'<div class="quiet">{"<br>".join(lines)}</div>' if lines else ""
    share = f"<br>{100 * kernel.seconds / whole:.0f} %" if whole else ""
    time = f"{microseconds(kernel.seconds)}{share}" if kernel.seconds else "-"
    operations = "-" if kernel.operations is None else _short(kernel.operations)
    return (
        f'<tr><td class="r">{k}</td><td class="ops">{escape(kernel.ops)}{places}{nest}</td>'
        f'<td class="r">{time}</td><td class="r">{words.amount(kernel.nbytes)}</td>'
        f'<td class="r">{operations}</td>'
        f"<td>{_limit(kernel, machine)}</td></tr>"
    )


def _limit(kernel: Kernel, machine: Limits) -> str:
    if not kernel.seconds:
        return "-"
    least, of = machine.least(kernel.nbytes, kernel.operations or 0)
    share = min(least / kernel.seconds, 1.0)
    kind = ' class="c"' if of == "arithmetic" else ""
    return f'<div class="bar"><i{kind} style="width:{100 * share:.0f}%"></i></div>{100 * share:.0f} % of {of}'


def _short(count: int) -> str:
    size, unit = words.scaled(count, ("", "k", "M", "G", "T"), 1000)
    return f"{size:.0f}{unit}" if size >= 100 or not unit else f"{size:.1f}{unit}"
