"""From a trace to boxes and arrows: what is shown, where chains are drawn as one, where the picture ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Union

from kiln.viz import words
from kiln.viz.trace import Call, Input, Leaf, Trace, consumers_first

_LONGEST_TIP = 400  # of one line


class Box(NamedTuple):
    """What is drawn of a call, a leaf, a result: its kind is its colour."""

    kind: str
    title: str
    lines: tuple[str, ...] = ()
    tip: str = ""


class Arrow(NamedTuple):
    """From box to box, the way data went; `port` is the place among the target's arguments, `exit` among
    the source's results.
    """

    source: int
    target: int
    port: int
    exit: int
    tip: str = ""


class Picture(NamedTuple):
    """Boxes and arrows, and a sentence if something was left out."""

    boxes: list[Box]
    arrows: list[Arrow]
    note: str


class _Group:
    """A call, or a chain of calls that is drawn as one: the last of them gives the result."""

    __slots__ = ("calls",)

    def __init__(self, call: Call) -> None:
        self.calls = [call]

    @property
    def inputs(self) -> list[Input]:
        """What comes in from outside."""
        if len(self.calls) == 1:
            return self.calls[0].inputs
        inside = set(self.calls)
        found = {(i.source, i.output): i for c in self.calls for i in c.inputs if i.source not in inside}
        return [given for given in found.values() if given.source is not None]


def picture(found: Trace, max_nodes: int, data: bool, saved: bool) -> Picture:
    """The boxes and arrows of a trace, of at most about `max_nodes` calls."""
    calls = consumers_first(found.calls)[::-1]
    groups, notes = [_Group(call) for call in calls], []
    if len(groups) > max_nodes:
        groups = _in_chains(calls)
        data = saved = False
        notes.append("chains of ops are drawn as one box")
    if len(groups) > max_nodes:
        hidden = sum(len(group.calls) for group in groups[:-max_nodes])
        groups = groups[-max_nodes:]
        more = " and more" if found.unread else ""
        notes.append(f"{words.several(hidden, 'earlier op')}{more} left out")
    if notes:
        more = "more than " if found.unread else ""
        notes.insert(0, f"{more}{words.several(len(calls), 'op')}")
        notes.append(f"max_nodes={max_nodes}")
    maker = _Maker(found, data, saved)
    for group in groups:
        maker.add_group(group)
    for group in groups:
        maker.add_arrows(group)
    maker.add_roots()
    return Picture(maker.boxes, maker.arrows, "; ".join(notes))


def _in_chains(calls: list[Call]) -> list[_Group]:
    """Calls joined with the one call they come from, where nobody else uses that. Producers come first."""
    uses: Counter[Call] = Counter()
    for call in calls:
        uses.update({s for s in call.sources() if isinstance(s, Call)})
    group_of: dict[Call, _Group] = {}
    groups = []
    for call in calls:
        before = {s for s in call.sources() if isinstance(s, Call)}
        group = group_of.get(before.pop()) if len(before) == 1 else None
        if group and uses[group.calls[-1]] == 1 and not group.calls[-1].named and not call.named:
            group_of[call] = group
            group.calls.append(call)
        else:
            group_of[call] = _Group(call)
            groups.append(group_of[call])
    return groups


class _Maker:
    """Gathers boxes and arrows."""

    def __init__(self, found: Trace, data: bool, saved: bool) -> None:
        self.found = found
        self.data, self.saved = data, saved
        self.boxes: list[Box] = []
        self.arrows: list[Arrow] = []
        self.of: dict[object, int] = {}  # box of a call, a leaf, a piece of memory
        self.exits: dict[tuple[int, int], int] = {}

    def add(self, box: Box, key: object = None) -> int:
        """A new box, found again under `key`."""
        title = words.printable(box.title.replace("\n", " "), words.LONGEST)
        tip = "\n".join(words.printable(line, _LONGEST_TIP) for line in box.tip.split("\n"))
        lines = tuple(words.printable(line.replace("\n", " "), words.LONGEST + 10) for line in box.lines)
        self.boxes.append(Box(box.kind, title, lines, tip))
        if key is not None:
            self.of[key] = len(self.boxes) - 1
        return len(self.boxes) - 1

    def add_group(self, group: _Group) -> None:
        """The box of a call or of a chain."""
        last = group.calls[-1]
        if len(group.calls) > 1:
            box = _chain_box(group.calls)
        else:
            name = next(iter(last.named.values()), "")
            shape = last.shapes.get(min(last.shapes))
            many = len([s for s in last.shapes.values() if s is not None]) > 1
            lines = [words.array(last.dtype, shape) + (", ..." if many else "")]
            lines.append(", ".join(filter(None, [_saves([last]), _short(last.line)])))
            called = words.called(last)
            title = f"{_cut(name)} = {called}" if name else called
            tip = "\n".join(words.explained(last))
            box = Box(words.kind_of(last), title, tuple(filter(None, lines)), tip)
        at = self.add(box)
        for call in group.calls:
            self.of[call] = at

    def add_arrows(self, group: _Group) -> None:
        """The arrows into a call, with leaves, data and saved tensors where they are first used."""
        target = self.of[group.calls[-1]]
        memory = {s.place: s.memory for s in group.calls[-1].saved if s.role == "input"}
        for port, given in enumerate(group.inputs):
            if given.number is not None:
                continue
            source = given.source
            if isinstance(source, Leaf):
                at = self.of[source] if source in self.of else self.add(_leaf_box(source), source)
            elif source in self.of:
                at = self.of[source]
            elif source is not None:  # beyond the edge of the picture
                key = ("more", target)
                at = self.of[key] if key in self.of else self.add(Box("more", "…", (), "earlier ops"), key)
            elif self.data:
                at = self.data_box(given, memory.get(port, 0))
            else:
                continue
            self.connect(at, target, port, given.output, words.array(given.dtype, given.shape))
        if self.saved:
            self.add_saved(group.calls[-1], target)

    def data_box(self, given: Input, memory: int) -> int:
        """The box of a tensor without gradient; one that is known to be the same has one."""
        name = self.found.names_of_memory.get((memory, given.shape), "")
        key = ("data", memory, given.shape, given.dtype) if memory else None
        if key in self.of:
            return self.of[key]
        shown = words.array(given.dtype, given.shape)
        tip = "\n".join(filter(None, [name, f"{shown}: data, no gradient goes there"]))
        return self.add(Box("data", name or "data", (shown,), tip), key)

    def add_saved(self, call: Call, target: int) -> None:
        """A small box for each tensor a call keeps for backward."""
        for saved in call.saved:
            shown = words.array(saved.dtype, saved.shape)
            which = "result" if saved.role == "output" else f"{saved.role} {saved.place}"
            lines = (shown, words.amount(saved.nbytes))
            at = self.add(Box("saved", f"saved {which}", lines, f"kept for backward: {which}, {shown}"))
            self.connect(at, target, 1000 + at, 0)

    def connect(self, source: int, target: int, port: int, output: int, tip: str = "") -> None:
        """An arrow."""
        self.arrows.append(Arrow(source, target, port, output, tip))

    def add_roots(self) -> None:
        """The results, below what gave them."""
        for root in self.found.roots:
            if root.shape is None and root.dtype == "":
                continue  # a node was given, which has its box
            shown = words.array(root.dtype, root.shape)
            name = root.name
            if root.source is None:
                self.add(Box("data", name, (shown, "requires no gradient"), f"{name}\n{shown}"))
                continue
            if root.source not in self.of and isinstance(root.source, Leaf):
                self.add(_leaf_box(root.source), root.source)
            at = self.add(Box("result", name, (shown,), f"{name}\n{shown}"))
            if root.source in self.of:
                self.connect(self.of[root.source], at, 0, root.output, shown)


def _cut(name: str) -> str:
    return words.printable(name, 18)


def _short(line: str) -> str:
    """`train.py:12` of a path; a notebook's `cell In[3], line 12` stays."""
    return line.replace("\\", "/").rpartition("/")[2]


def _saves(calls: Sequence[Call]) -> str:
    if all(call.freed for call in calls):
        return "freed"
    nbytes = held(calls)
    return f"saves {words.amount(nbytes)}" if nbytes else ""


def _leaf_box(leaf: Leaf) -> Box:
    shown = words.array(leaf.dtype, leaf.shape)
    tip = "\n".join(filter(None, [leaf.name, shown, "a leaf: gradients are added up in its .grad"]))
    return Box("leaf", leaf.name or "leaf", (shown,), tip)


def _chain_box(calls: Sequence[Call]) -> Box:
    counts = Counter(call.name for call in calls)
    most = counts.most_common()
    inside = ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in most[:3])
    last = calls[-1]
    lines = (
        inside + (", ..." if len(most) > 3 else ""),
        words.array(last.dtype, last.shapes.get(0)),
        ", ".join(filter(None, [_saves(calls), _short(last.line)])),
    )
    tip = [f"a chain of {words.several(len(calls), 'op')}", *(f"{n} ×{c}" for n, c in most[:20])]
    return Box("chain", words.several(len(calls), "op"), lines, "\n".join([*tip, f"ends at {last.line}"]))


def held(calls: Sequence[Call]) -> int:
    """The bytes calls keep for backward; memory that several saved counts once."""
    largest: dict[Union[int, tuple[Call, int]], int] = {}
    for call in calls:
        for k, saved in enumerate(call.saved):
            key = saved.memory or (call, k)
            largest[key] = max(largest.get(key, 0), saved.nbytes)
    return sum(largest.values())
