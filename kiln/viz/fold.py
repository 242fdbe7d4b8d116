"""Which module a recorded op belongs to, and the ops of a module as one group.

The graph does not know modules. What is known of each op are the parameters it reads, whose names say modules
("blocks.0.attn.weight"), and its line. An op that reads a module's parameters is the module's. Another one,
on a line of a class's forward, is of the instance of that class whose ops stand around it; and what lies
between two ops belongs to the innermost module that both are in. What none of this tells is no module's.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kiln.errors import place
from kiln.viz.trace import Call, Leaf

MOST_FOLDED = 20_000  # calls; of more, chains are drawn
_OWN = os.path.dirname(os.path.dirname(__file__))  # whose lines graphs do not name
_MOST_NEAR = 16  # modules that are looked at around an op

Path = tuple[str, ...]


class Modules:
    """The modules of a model: names as paths, classes, and which lines are of which class's forward.

    Of a list or dict of modules, which is never called, the name goes with that of what it holds.
    """

    def __init__(self, model: Any = None) -> None:
        self.kinds: dict[str, str] = {}
        self.instances: dict[str, list[Path]] = {}  # by class
        self.forwards: dict[str, tuple[str, int]] = {}  # of a line as graphs name it: class, number
        for name, module in getattr(model, "named_modules", tuple)():
            kind = type(module)
            self.kinds[name] = kind.__name__
            code = getattr(getattr(kind, "forward", None), "__code__", None)
            if code is None or code.co_filename.startswith(_OWN):
                continue
            if kind.__qualname__ not in self.instances:
                last = max((n for *_, n in code.co_lines() if n), default=code.co_firstlineno)
                for number in range(code.co_firstlineno, last + 1):
                    self.forwards[place(code.co_filename, number)] = kind.__qualname__, number
            self.instances.setdefault(kind.__qualname__, []).append(self.path(name))

    def path(self, name: str) -> Path:
        """A module's name in parts, each one level of modules that call each other."""
        parts: list[str] = []
        prefix, open_ = "", ""
        for part in name.split(".") if name else ():
            prefix = f"{prefix}.{part}" if prefix else part
            open_ = f"{open_}.{part}" if open_ else part
            if self.kinds.get(prefix) not in ("ModuleList", "ModuleDict"):
                parts.append(open_)
                open_ = ""
        return (*parts, open_) if open_ else tuple(parts)


class _Near(NamedTuple):
    """An op of a module that stands around another: when it was, its module, and its line's number."""

    when: int
    path: Path
    number: int


def owners(calls: Sequence[Call], modules: Modules) -> dict[Call, Path]:
    """The module of each call, as the parts of its name; calls stand in an order that runs."""
    own: dict[Call, Path] = {}
    users: dict[Call, list[Call]] = {}
    for call in calls:
        names = [s.name.rpartition(".")[0] for s in call.sources() if isinstance(s, Leaf) and "." in s.name]
        if names:
            own[call] = _common([modules.path(name) for name in names])
        for source in set(call.sources()):
            if isinstance(source, Call):
                users.setdefault(source, []).append(call)
    sources = {call: [s for s in call.sources() if isinstance(s, Call)] for call in calls}
    above = _nearest(calls, sources, own, modules)
    below = _nearest(calls[::-1], users, own, modules)
    return {call: own.get(call) or _between(call, above[call], below[call], modules) for call in calls}


def _nearest(
    calls: Sequence[Call], beside: dict[Call, list[Call]], own: dict[Call, Path], modules: Modules
) -> dict[Call, list[_Near]]:
    """Of each call the nearest with a module, in one direction; `calls` stand so that those come first."""
    found: dict[Call, list[_Near]] = {}
    when = {call: k for k, call in enumerate(calls)}  # the later, the nearer to those that come after it
    for call in calls:
        near: dict[_Near, None] = {}
        for other in beside.get(call, ()):
            if other in own:
                number = modules.forwards.get(other.line, ("", 0))[1]
                near[_Near(when[other], own[other], number)] = None
            else:
                near.update(dict.fromkeys(found.get(other, ())))
        found[call] = sorted(near, reverse=True)[:_MOST_NEAR]
    return found


def _between(call: Call, above: list[_Near], below: list[_Near], modules: Modules) -> Path:
    """The module of a call that reads no parameter."""
    kind, number = modules.forwards.get(call.line, ("", 0))
    around: Path = ()
    if kind:
        instances = modules.instances[kind]
        before, after = _instances(above, instances), _instances(below, instances)
        both = [p for p in before if p in after]
        begins = any(n.number > number for n in above if before and n.path[: len(before[0])] == before[0])
        chosen = both or (after if after and (begins or not before) else before)
        around = chosen[0] if chosen else instances[0] if len(instances) == 1 else ()
    inner = _common([n.path for n in [*above, *below]]) if above and below else ()
    return inner if inner[: len(around)] == around else around


def _common(paths: Sequence[Path]) -> Path:
    """The parts that all begin with."""
    found = paths[0]
    for path in paths[1:]:
        same = 0
        for a, b in zip(found, path):
            if a != b:
                break
            same += 1
        found = found[:same]
    return found


def _instances(near: list[_Near], instances: list[Path]) -> list[Path]:
    """Those that hold what stands around, the nearest first."""
    found = [max((p for p in instances if n.path[: len(p)] == p), key=len, default=None) for n in near]
    return list(dict.fromkeys(p for p in found if p is not None))


class Fold:
    """Calls of one module, down to a depth, that can be one box; a call above that depth is alone."""

    __slots__ = ("after", "calls", "path")

    def __init__(self, path: Path | None) -> None:
        self.path = path  # None: a call by itself
        self.calls: list[Call] = []
        self.after: set[Fold] = set()  # what reads its results


def folded(calls: Iterable[Call], owner: dict[Call, Path], depth: int) -> list[Fold]:
    """The calls in groups, each before those that read it: no two groups read each other's results. A module
    whose ops would have to stand before and after another's has a group for each time.
    """
    folds: list[Fold] = []
    of: dict[Call, Fold] = {}
    latest: dict[Path, Fold] = {}
    for call in calls:
        sources = {of[s] for s in call.sources() if isinstance(s, Call) and s in of}
        path = owner[call][:depth]
        fold = latest.get(path) if len(owner[call]) >= depth > 0 else None
        if fold is None or _reaches(fold, sources - {fold}):
            fold = Fold(path if len(owner[call]) >= depth > 0 else None)
            folds.append(fold)
            if fold.path is not None:
                latest[path] = fold
        fold.calls.append(call)
        of[call] = fold
        for source in sources - {fold}:
            source.after.add(fold)
    return _in_order(folds)


def _reaches(start: Fold, ends: set[Fold]) -> bool:
    """Whether one of some groups reads what comes of a group."""
    seen, waiting = {start}, [start]
    while waiting and ends:
        fold = waiting.pop()
        if fold in ends:
            return True
        new = fold.after - seen
        seen |= new
        waiting += new
    return False


def _in_order(folds: list[Fold]) -> list[Fold]:
    """Producers first; else in the order of their first call."""
    missing = Counter(after for fold in folds for after in fold.after)
    place = {fold: k for k, fold in enumerate(folds)}
    ready = sorted((fold for fold in folds if not missing[fold]), key=place.__getitem__, reverse=True)
    found = []
    while ready:
        fold = ready.pop()
        found.append(fold)
        new = []
        for after in fold.after:
            missing[after] -= 1
            if not missing[after]:
                new.append(after)
        ready += sorted(new, key=place.__getitem__, reverse=True)
    return found
