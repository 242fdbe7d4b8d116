"""From a trace to boxes and arrows: what is shown, where chains and modules are drawn as one, where the
picture ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Union

from kiln.viz import words
from kiln.viz.defined import Defined, Given
from kiln.viz.fold import MOST_FOLDED, Modules, Path, folded, owners
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
    """Boxes and arrows, a sentence if something was left out, and what is inside boxes of modules."""

    boxes: list[Box]
    arrows: list[Arrow]
    note: str
    inside: dict[int, Picture] = {}  # of a box that stands for a module: a picture of its ops


class _Group:
    """A call, a chain of calls that is drawn as one (the last gives the result), or those of a module."""

    __slots__ = ("calls", "path")

    def __init__(self, calls: list[Call], path: Path | None = None) -> None:
        self.calls = calls
        self.path = path  # of a module

    @property
    def inputs(self) -> list[Input]:
        """What comes in from outside."""
        inside = set(self.calls)
        if self.path is not None:  # parameters are the module's own
            own = ".".join(self.path) + "."
            given = {
                (i.source or i.shape, i.output): i
                for c in self.calls
                for i in c.inputs
                if i.number is None and i.source not in inside
                and not (isinstance(i.source, Leaf) and i.source.name.startswith(own))
            }  # fmt: skip
            return list(given.values())
        if len(self.calls) == 1:
            return self.calls[0].inputs
        found = {(i.source, i.output): i for c in self.calls for i in c.inputs if i.source not in inside}
        return [given for given in found.values() if given.source is not None]


def picture(
    found: Trace,
    max_nodes: int,
    data: bool,
    saved: bool,
    depth: int | None = None,
    modules: Modules | None = None,
) -> Picture:
    """The boxes and arrows of a trace, of at most about `max_nodes` calls; modules that lie `depth` deep,
    or as deep as there is room for, as one box each.
    """
    modules = modules or Modules()
    calls = consumers_first(found.calls)[::-1]
    groups, notes = [_Group([call]) for call in calls], []
    owner = owners(calls, modules) if len(calls) <= MOST_FOLDED else {}
    deepest = max(map(len, owner.values()), default=0)
    if depth is None and deepest and len(calls) > max_nodes:
        depth = next((d for d in range(deepest, 0, -1) if len(folded(calls, owner, d)) <= max_nodes), None)
    if depth is not None and deepest:
        return _modules(found, calls, owner, min(depth, deepest), (data, saved), modules.kinds, max_nodes)
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
    return Picture(maker.boxes, maker.arrows, "; ".join(notes), maker.add_subs(max_nodes))


def _modules(
    found: Trace,
    calls: list[Call],
    owner: dict[Call, Path],
    depth: int,
    shown: tuple[bool, bool],
    kinds: dict[str, str],
    max_nodes: int,
    whole: bool = True,
) -> Picture:
    """A picture with modules as boxes, and of each the picture of what is inside."""
    groups = [_Group(fold.calls, fold.path) for fold in folded(calls, owner, depth)]
    notes = []
    if len(groups) > max_nodes:
        hidden = sum(len(group.calls) for group in groups[:-max_nodes])
        groups = groups[-max_nodes:]
        notes.append(f"{words.several(hidden, 'earlier op')} left out; max_nodes={max_nodes}")
    maker = _Maker(found, *shown, kinds)
    for group in groups:
        maker.add_group(group)
    for group in groups:
        maker.add_arrows(group, outside=not whole)
    if whole:
        maker.add_roots()
    else:
        maker.add_exits(calls, found.calls)
    inside = {
        maker.of[group.calls[0]]: _modules(
            found, group.calls, owner, depth + 1, shown, kinds, max_nodes, whole=False
        )
        for group in groups
        if group.path is not None and len(group.calls) > 1
    }
    inside.update(maker.add_subs(max_nodes))
    return Picture(maker.boxes, maker.arrows, "; ".join(notes), inside)


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
            group_of[call] = _Group([call])
            groups.append(group_of[call])
    return groups


class _Maker:
    """Gathers boxes and arrows."""

    def __init__(self, found: Trace, data: bool, saved: bool, kinds: dict[str, str] | None = None) -> None:
        self.found = found
        self.kinds = kinds or {}
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
        if group.path is not None:
            box = _module_box(group.calls, ".".join(group.path), self.kinds)
        elif len(group.calls) > 1:
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

    def add_arrows(self, group: _Group, outside: bool = False) -> None:
        """The arrows into a call, with leaves, data and saved tensors where they are first used; `outside`:
        what comes from elsewhere is drawn as what is given.
        """
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
            elif source is not None and outside:
                at = self.given_box(source, given)
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

    def given_box(self, source: Call, given: Input) -> int:
        """The box of what comes from outside of the picture."""
        key = ("given", source, given.output)
        shown = words.array(given.dtype, given.shape)
        box = Box("given", "input", (shown,), f"given: {shown}, of {source.title}")
        return self.of[key] if key in self.of else self.add(box, key)

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

    def add_subs(self, max_nodes: int) -> dict[int, Picture]:
        """A box for each graph that a call runs, above the call; what is inside, by box."""
        inside: dict[int, Picture] = {}
        for call, target in list(self.of.items()):
            if not isinstance(call, Defined) or self.boxes[target].kind == "module":
                continue
            for k, sub in enumerate(call.subs):
                counts = Counter(c.name for c in sub.trace.calls).most_common()
                ops = ", ".join(f"{name} ×{n}" if n > 1 else name for name, n in counts[:3])
                ops += ", ..." if len(counts) > 3 else ""
                lines = tuple(filter(None, [ops, words.several(len(sub.trace.calls), "op")]))
                tip = "\n".join(
                    [f"{sub.name}: a graph that {call.name} runs", *(f"{n} ×{c}" for n, c in counts[:20])]
                )
                at = self.add(Box("graph", sub.name, lines, tip))
                self.connect(at, target, 900 + k, 0, f"{call.name} runs it")
                inside[at] = picture(sub.trace, max_nodes, True, False)
        return inside

    def connect(self, source: int, target: int, port: int, output: int, tip: str = "") -> None:
        """An arrow."""
        self.arrows.append(Arrow(source, target, port, output, tip))

    def add_exits(self, calls: Sequence[Call], everything: Sequence[Call]) -> None:
        """What others read of some calls, as results."""
        inside = set(calls)
        exits = {
            (i.source, i.output): i
            for call in everything
            if call not in inside
            for i in call.inputs
            if isinstance(i.source, Call) and i.source in inside
        }
        for root in self.found.roots:
            if isinstance(root.source, Call) and root.source in inside:
                given = Input(root.source, root.output, root.dtype, root.shape)
                exits.setdefault((root.source, root.output), given)
        for (source, output), given in exits.items():
            if source in self.of:
                shown = words.array(given.dtype, given.shape)
                at = self.add(Box("result", "output", (shown,), f"goes on from here: {shown}"))
                self.connect(self.of[source], at, 0, output, shown)

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
    if isinstance(leaf, Given):
        return Box("given", leaf.name, (shown,), f"{leaf.name}\n{shown}\nan input of the graph")
    return Box("leaf", leaf.name or "leaf", (shown,), tip)


def _module_box(calls: Sequence[Call], name: str, kinds: dict[str, str]) -> Box:
    last = calls[-1]
    own = {
        s for call in calls for s in call.sources() if isinstance(s, Leaf) and s.name.startswith(f"{name}.")
    }
    elements = 0
    for leaf in own:
        count = 1
        for size in leaf.shape or ():
            count *= size
        elements += count
    lines = (
        words.array(last.dtype, last.shapes.get(0)),
        ", ".join(filter(None, [words.several(len(calls), "op"), _saves(calls)])),
        words.several(elements, "parameter") if elements else "",
    )
    kind = kinds.get(name, "")
    counts = Counter(call.name for call in calls).most_common(20)
    tip = [f"{name} {kind}".strip(), *(f"{n} ×{c}" for n, c in counts)]
    title = f"{name} {kind}" if len(name) + len(kind) < words.LONGEST else name
    return Box("module", title.strip(), tuple(filter(None, lines)), "\n".join(tip))


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
