"""A region in plain words: what was recorded and why anew, what ended each recording, what it costs."""

from __future__ import annotations

from itertools import groupby, takewhile
from typing import Any

from kiln.capture.policy import microseconds

SHOWN = 20  # recordings
WIDTH = 160  # letters of a recording's ops
UNTIL_COMPILED = (1 << 64) - 1  # calls a region rests that waits for its programs


def explain(name: str, region: Any) -> str:
    """The text of `explain()` of a compiled function."""
    counts, known = region.stats(), region.describe()
    lines = [
        f"{name}: {known['made']} different recordings, {counts['compiles']} compiled; "
        f"{counts['runs']} runs of a program, {counts['replays']} op by op"
    ]
    if known["off"]:
        lines.append(f"  switched off: {known['off']}; {_until(known['rest'])}")
    if known["copied"]:
        lines.append(
            f"  copied at each call: {known['copied']} bytes of arrays that somebody else holds and may "
            "write (clone the tensor, or keep no other reference to the array)"
        )
    if counts["forgotten"]:
        lines.append(
            f"  {counts['forgotten']} recordings were forgotten to keep the newest {counts['programs']}"
        )
    recordings = sorted(known["recordings"], key=lambda r: int(r["number"]))
    for k, recording in enumerate(recordings[:SHOWN]):
        lines += _recording(recording, recordings[:k])
    if len(recordings) > SHOWN:
        lines.append(f"  and {len(recordings) - SHOWN} more")
    return "\n".join(lines)


def _until(calls: int) -> str:
    """When a region that is off records again."""
    if calls == UNTIL_COMPILED:
        return "it is called as it is until one of them is there"
    return f"after {calls} more calls it is recorded again for a few, to see whether that is so still"


def _recording(r: dict[str, Any], earlier: list[dict[str, Any]]) -> list[str]:
    ops = f"{len(r['ops'])} op{'' if len(r['ops']) == 1 else 's'} ({_names([op[0] for op in r['ops']])})"
    program = f" in a program of {r['kernels']} kernels" if r["kernels"] >= 0 else ""
    lines = [
        f"  recording {r['number']}: {ops}{program}; "
        f"seen {r['seen']} times: {r['runs']} by the program, {r['replays']} op by op"
    ]
    if earlier:
        lines.append(f"    recorded anew: {_why_anew(r, earlier)}")
    if r["compiles"] > 1:
        lines.append(f"    compiled {r['compiles']} times: more of its values were kept later")
    if r["pending"]:
        lines.append("    its program is being compiled")
    if r["failed"]:
        lines.append("    compiling it failed (logged to kiln.compile): it runs op by op")
    if r["slower"]:
        lines.append(
            f"    its program takes {microseconds(r['program'] + r['record'])} with recording, "
            f"its ops {microseconds(r['replay'])}: it runs op by op"
        )
    for cause, line, times in r["ends"]:
        lines.append(f"    ended because {cause}{f' at {line}' if line else ''}, {times} times")
    return lines


def _names(ops: list[str]) -> str:
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
    same, nearest = max(((_common(r, other), other) for other in earlier), key=_by_ops_then_number)
    return (
        f"op {same + 1} was {_op(nearest['ops'], same)} in recording {nearest['number']} "
        f"and is {_op(r['ops'], same)}"
    )


def _by_ops_then_number(found: tuple[int, dict[str, Any]]) -> tuple[int, int]:
    return found[0], found[1]["number"]


def _common(a: dict[str, Any], b: dict[str, Any]) -> int:
    """With how many ops two recordings begin alike."""
    pairs = zip(a["ops"], b["ops"], strict=False)
    return sum(1 for _ in takewhile(lambda pair: _look(pair[0]) == _look(pair[1]), pairs))


def _look(op: Any) -> Any:
    """An op but for where its sizes stand."""
    *what, args = op
    return what, [(*arg[:4], *arg[5:]) for arg in args]


_VIEWS = {
    "whole": "", "squeeze": " squeezed", "reshape": " reshaped", "expand": " expanded", "strided": " strided"
}  # fmt: skip
_NUMBERS = {"float64": "a float", "bool": "a bool", "int64": "an int"}


def _op(ops: Any, k: int) -> str:
    """ "mul(float32[n, 1] strided #2, a float)": op `k`, with the values it reads by number."""
    if k >= len(ops):
        return "nothing"
    name, _, _, writes, args = ops[k]
    return f"{name}{'_' * writes}({', '.join(map(_arg, args))})"


def _arg(arg: Any) -> str:
    look, dtype, ndim, value, _, ones, _ = arg
    if look == "number":
        return _NUMBERS[dtype]
    sizes = ", ".join("1" if ones >> d & 1 else "n" for d in range(ndim))
    return f"{dtype}[{sizes}]{_VIEWS[look]} #{value}"
