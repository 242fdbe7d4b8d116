"""A region in plain words: what was recorded and why anew, what ended each recording, what it costs. The page
of it is `kiln/viz/compiled.py`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import groupby, takewhile
from typing import Any

from kiln.capture.policy import microseconds
from kiln.late import later

SHOWN = 20  # recordings
WIDTH = 160  # letters of a recording's ops
UNTIL_COMPILED = (1 << 64) - 1  # calls a region rests that waits for its programs


_pages = later("kiln.viz.compiled", "pages")
_text_pages = later("kiln.viz.compiled", "text_pages")
_write = later("kiln.files", "write_atomically")


class Explanation(str):
    """What `explain()` says: text, and the same with pictures as a page, which a notebook shows."""

    _draw: Callable[[Any], tuple[str, str]]  # what names are given for -> the page's part, the page

    def __new__(cls, text: str, draw: Callable[[Any], tuple[str, str]]) -> Explanation:
        made = super().__new__(cls, text)
        made._draw = draw
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)

    def html(self, path: str | os.PathLike[str] | None = None, params: Any = None) -> str:
        """A page that needs nothing else: what ended recordings and what was recorded anew, each place once;
        every program as a picture, its kernels with their lines, loops and share of what this machine can
        do, and how long its arrays live. Written to `path` if that is given.

        A kernel's time is the shortest of the program's first three runs; what the machine can do is measured
        once, in about a second. Names come from the modules that the function names, or from `params`, a
        Module or tensors by name.
        """
        page = self._draw(params)[1]
        if path is not None:
            _write(os.fspath(path), iter([page.encode()]))
        return page

    def _repr_html_(self) -> str:
        return self._draw(None)[0]


def explain(name: str, region: Any, function: Any) -> Explanation:
    """What `explain()` of a compiled function says."""
    counts, known = region.stats(), region.describe(True)
    return Explanation(
        _text(name, counts, known), lambda params: _pages(name, counts, known, function, params)
    )


def in_words(text: str) -> Explanation:
    """One that has no pictures."""
    return Explanation(text, lambda params: _text_pages(text))


def ops_of(recording: dict[str, Any]) -> list[Any]:
    """The ops of a recording: (name, handle, hidden, writes, arguments, results)."""
    ops: list[Any] = recording["recorded"][0][0]
    return ops


def in_order(known: dict[str, Any]) -> list[dict[str, Any]]:
    """The recordings, the first first."""
    return sorted(known["recordings"], key=lambda r: int(r["number"]))


def _text(name: str, counts: dict[str, Any], known: dict[str, Any]) -> str:
    lines = [
        f"{name}: {known['made']} different recordings, {counts['compiles']} compiled; "
        f"{counts['runs']} runs of a program, {counts['replays']} op by op"
    ]
    if known["off"]:
        lines.append(f"  switched off: {known['off']}; {until(known['rest'])}")
        lines += [f"  what would help: {advice}" for advice in helps(known)]
    if known["copied"]:
        lines.append(f"  {copied(known['copied'])}")
    if counts["forgotten"]:
        lines.append(
            f"  {counts['forgotten']} recordings were forgotten to keep the newest {counts['programs']}"
        )
    recordings = in_order(known)
    for k, recording in enumerate(recordings[:SHOWN]):
        lines += _recording(recording, recordings[:k])
    if len(recordings) > SHOWN:
        lines.append(f"  and {len(recordings) - SHOWN} more")
    return "\n".join(lines)


def copied(nbytes: int) -> str:
    """What is copied at each call, and how not to."""
    return (
        f"copied at each call: {nbytes} bytes of arrays that somebody else holds and may "
        "write (clone the tensor, or keep no other reference to the array)"
    )


def helps(known: dict[str, Any]) -> list[str]:
    """What would make a region that is switched off gain."""
    recordings = known["recordings"]
    reads = sum(times for r in recordings for cause, _, times in r["ends"] if cause == "a value was read")
    calls = sum(times for r in recordings for cause, _, times in r["ends"] if cause == "the call returned")
    if known["rest"] == UNTIL_COMPILED:
        return ["wait: its programs are being compiled; compiled.wait() returns when they are there"]
    found = []
    if reads > calls:
        found.append("read values after the call, or not at every step: each read ends a recording")
    if "seen again" in known["off"]:
        found.append(
            "keep what changes from call to call out of it (dtypes, numbers of dims, dims of size 1, lengths "
            "of lists and loops, Python branches): sizes above 1 may change"
        )
    else:
        found.append(
            "more work in a call: larger tensors, or the whole step with backward and optimizer; calls that "
            "take microseconds gain nothing, and cost nothing while it is switched off"
        )
    return found


def until(calls: int) -> str:
    """When a region that is off records again."""
    if calls == UNTIL_COMPILED:
        return "it is called as it is until one of them is there"
    return f"after {calls} more calls it is recorded again for a few, to see whether that is so still"


def _recording(r: dict[str, Any], earlier: list[dict[str, Any]]) -> list[str]:
    names = [op[0] for op in ops_of(r)]
    ops = f"{len(names)} op{'' if len(names) == 1 else 's'} ({short(names)})"
    program = f" in a program of {r['kernels']} kernels" if r["kernels"] >= 0 else ""
    lines = [
        f"  recording {r['number']}: {ops}{program}; "
        f"seen {r['seen']} times: {r['runs']} by the program, {r['replays']} op by op"
    ]
    if earlier:
        lines.append(f"    recorded anew: {_why_anew(r, earlier)}")
    lines += [f"    {told}" for told in state(r)]
    for cause, line, times in r["ends"]:
        lines.append(f"    ended because {cause}{f' at {line}' if line else ''}, {times} times")
    return lines


def state(r: dict[str, Any]) -> list[str]:
    """What became of a recording."""
    lines = []
    if r["compiles"] > 1:
        lines.append(f"compiled {r['compiles']} times: more of its values were kept later")
    if r["pending"]:
        lines.append("its program is being compiled")
    if r["failed"]:
        lines.append("compiling it failed (logged to kiln.compile): it runs op by op")
    if r["slower"]:
        lines.append(
            f"its program takes {microseconds(r['program'] + r['record'])} with recording, "
            f"its ops {microseconds(r['replay'])}: it runs op by op"
        )
    return lines


def short(ops: list[str]) -> str:
    """ "mul, 3 x add, tanh": the names in order, as far as they fit in a line."""
    text = ""
    for name, run in groupby(ops):
        if len(text) > WIDTH:
            return f"{text}, ..."
        count = len(list(run))
        text += (", " if text else "") + (f"{count} x {name}" if count > 1 else name)
    return text


def _why_anew(r: dict[str, Any], earlier: list[dict[str, Any]]) -> str:
    """What is not as in the recording before it that has the most ops in common, the latest of such."""
    k, before, number, now = changed(r, earlier)
    return f"op {k + 1} was {before} in recording {number} and is {now}"


def changed(r: dict[str, Any], earlier: list[dict[str, Any]]) -> tuple[int, str, int, str]:
    """Which op of a recording is other than in one before, what it was in which one, and what it is."""
    same, nearest = max(((_common(r, other), other) for other in earlier), key=_by_ops_then_number)
    return same, _op(ops_of(nearest), same), nearest["number"], _op(ops_of(r), same)


def _by_ops_then_number(found: tuple[int, dict[str, Any]]) -> tuple[int, int]:
    return found[0], found[1]["number"]


def _common(a: dict[str, Any], b: dict[str, Any]) -> int:
    """With how many ops two recordings begin alike."""
    pairs = zip(ops_of(a), ops_of(b), strict=False)
    return sum(1 for _ in takewhile(lambda pair: _look(pair[0]) == _look(pair[1]), pairs))


def _look(op: Any) -> Any:
    """An op but for where its sizes stand."""
    *what, args, _ = op
    return what, [(*arg[:4], *arg[5:]) for arg in args]


_VIEWS = {
    "whole": "", "squeeze": " squeezed", "reshape": " reshaped", "expand": " expanded", "strided": " strided"
}  # fmt: skip
_NUMBERS = {"float64": "a float", "bool": "a bool", "int64": "an int"}


def _op(ops: Any, k: int) -> str:
    """ "mul(float32[n, 1] strided #2, a float)": op `k`, with the values it reads by number."""
    if k >= len(ops):
        return "nothing"
    name, _, _, writes, args, _ = ops[k]
    return f"{name}{'_' * writes}({', '.join(map(_arg, args))})"


def _arg(arg: Any) -> str:
    look, dtype, ndim, value, _, ones, _ = arg
    if look == "number":
        return _NUMBERS[dtype]
    sizes = ", ".join("1" if ones >> d & 1 else "n" for d in range(ndim))
    return f"{dtype}[{sizes}]{_VIEWS[look]} #{value}"
