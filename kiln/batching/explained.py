"""What was batched, in words."""

from __future__ import annotations

from kiln import _core
from kiln.batching import strands


def explain(clear: bool = False) -> str:
    """What this thread's `batching` blocks have done so far: how many calls ran in how many launches, of
    which functions, and which could not run together, and why. `clear`: counts begin anew.

    >>> kiln.batching.explain(clear=True).splitlines()[-1]  # doctest: +ELLIPSIS
    '...'
    >>> with kiln.batching():
    ...     squares = [kiln.full((2,), float(n)).square().sum() for n in range(3)]
    >>> print(kiln.batching.explain(clear=True))
    6 calls in 2 launches, 3.0 rows on average; the list ran once.
      square  3 calls in 1 launch
      sum     3 calls in 1 launch
    """
    runs, launched, refused = _core.batching_statistics()
    if clear:
        _core.clear_batching_statistics()
    if not launched and not refused:
        return "Nothing was batched yet on this thread."
    calls = sum(row[1] for row in launched)
    launches = sum(row[2] for row in launched)
    times = "once" if runs == 1 else f"{runs} times"
    lines = [
        f"{_count(calls, 'call')} in {_count(launches, 'launch')}, {calls / max(launches, 1):.1f} rows on "
        f"average; the list ran {times}."
    ]
    totals: dict[str, list[int]] = {}
    reasons: dict[str, dict[str, int]] = {}
    for name, count, runs_of, alone, why in launched:
        total = totals.setdefault(name, [0, 0, 0])
        for k, value in enumerate((count, runs_of, alone)):
            total[k] += value
        if alone and why:
            of_name = reasons.setdefault(name, {})
            of_name[why] = of_name.get(why, 0) + alone
    width = max(map(len, totals), default=0)
    for name, (count, runs_of, alone) in sorted(totals.items(), key=lambda item: -item[1][0]):
        apart = f", {alone} of them alone" if alone else ""
        lines.append(f"  {name:{width}}  {_count(count, 'call')} in {_count(runs_of, 'launch')}{apart}")
        lines += [
            f"  {'':{width}}    {times_} because {why}" for why, times_ in reasons.get(name, {}).items()
        ]
    if refused:
        lines.append("Run at once, not batched:")
        lines += [f"  {name}: {_count(count, 'call')}: it {why}" for name, why, count in refused]
    if strands.used:
        lines.append(strands.described())
    return "\n".join(lines)


def _count(number: int, what: str) -> str:
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number} {what}{ending}"
