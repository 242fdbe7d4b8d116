"""A region in plain words: what was recorded and why anew, what ended each recording, what it costs."""

from __future__ import annotations

from itertools import groupby
from math import isfinite
from typing import Any

SHOWN = 20  # recordings
WIDTH = 160  # letters of a recording's ops


def explain(name: str, region: Any) -> str:
    """The text of `explain()` of a compiled function."""
    counts, known = region.stats(), region.describe()
    lines = [
        f"{name}: {known['made']} different recordings, {counts['compiles']} compiled; "
        f"{counts['runs']} runs of a program, {counts['replays']} op by op"
    ]
    if known["off"]:
        lines.append(f"  switched off: {known['off']}")
    if counts["forgotten"]:
        lines.append(
            f"  {counts['forgotten']} recordings were forgotten to keep the newest {counts['programs']}"
        )
    recordings = sorted(known["recordings"], key=lambda r: int(r["number"]))
    for recording in recordings[:SHOWN]:
        lines += _recording(recording)
    if len(recordings) > SHOWN:
        lines.append(f"  and {len(recordings) - SHOWN} more")
    return "\n".join(lines)


def _recording(r: dict[str, Any]) -> list[str]:
    ops = f"{len(r['ops'])} op{'' if len(r['ops']) == 1 else 's'} ({_names(r['ops'])})"
    program = f" in a program of {r['kernels']} kernels" if r["kernels"] >= 0 else ""
    lines = [
        f"  recording {r['number']}: {ops}{program}; "
        f"seen {r['seen']} times: {r['runs']} by the program, {r['replays']} op by op"
    ]
    if r["anew"]:
        lines.append(f"    recorded anew: {r['anew']}")
    if r["compiles"] > 1:
        lines.append(f"    compiled {r['compiles']} times: more of its values were kept later")
    if r["pending"]:
        lines.append("    its program is being compiled")
    if r["failed"]:
        lines.append("    compiling it failed (logged to kiln.compile): it runs op by op")
    if r["slower"]:
        lines.append(
            f"    its program takes {_microseconds(r['by_program'])} with recording, "
            f"its ops {_microseconds(r['by_ops'])}: it runs op by op"
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


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if isfinite(seconds) else "an unknown time"
