"""What a program's file says beside its graph: names, containers, state, sizes that vary. JSON both ways.

    tree := "t" (a tensor) | {"c": constant} | {"tuple": [tree...]} | {"list": [tree...]}
          | {"dict": [[constant, tree]...]} | {"named": name, "fields": [...], "items": [tree...]}

Reading takes what writing gives and nothing else: a TextError names the entry that is wrong.
"""

from __future__ import annotations

import builtins
import json
from collections import namedtuple
from typing import Any

from kiln import _core
from kiln.errors import message
from kiln.graph.graph import Shape
from kiln.graph.size import Dim, Size, slots_named
from kiln.graph.text import DTYPES, TextError, dim_text, parse_dim
from kiln.table.kinds import FLOATS
from kiln.tracing.answers import Condition, is_known, is_plain
from kiln.tracing.captured import Asks, Captured, Check, Expected, Input, Kept, Raises, State
from kiln.tracing.dims import Range
from kiln.tracing.hierarchy import Hierarchy, ModuleCall
from kiln.tracing.sizes import SIGNS, Guard
from kiln.tracing.trees import LEAF, Tree
from kiln.tuples import NamedTuple

_DEPTH = 64
ERRORS: dict[str, type[Exception]] = {
    e.__name__: e for e in (RuntimeError, ValueError, IndexError, TypeError)
}
_DTYPES = {name: getattr(_core, name) for name in DTYPES}


# -- writing ------------------------------------------------------------------------------------------


def signature(captured: Captured, trains: list[bool]) -> dict[str, Any]:
    """All that a graph does not say of a program; `trains`: of every state, whether it takes a gradient."""
    return {
        "name": captured.name,
        "inputs": [x.name for x in captured.inputs],
        "parameters": captured.parameters,
        "arguments": _tree_out(captured.in_tree, "arguments"),
        "aliases": list(captured.aliases),
        "distinct": captured.distinct,
        "results": _tree_out(captured.out_tree, "results"),
        "outputs": captured.outputs,
        "same": [[k, kind, which] for k, (kind, which) in captured.same.items()],
        **_asks_out(captured),
        **({"reasons": [list(x) for x in captured.reasons.items()]} if captured.reasons else {}),
        "state": [[s.name, s.kind, wanted] for s, wanted in zip(captured.state, trains)],
        "unsaved": sorted(captured.unsaved),
        "mutated": [list(x) for x in captured.mutated],
        "random": [[kind, dim_text(n)] for kind, n in captured.random],
        "drawn": dim_text(captured.drawn),
        "raises": [[type(error).__name__, str(error)] for error in captured.raises],
        "dims": [
            [d.name, d.min, d.max, dim_text(d.symbol), d.slot, d.example] for d in captured.dims.values()
        ],
        "asked": asked_rows(captured),
        **_modules_out(captured),
        "ordered": captured.ordered,
        "casts": captured.casts,
        **({"assigned": sorted(captured.assigned)} if captured.assigned else {}),
        "guards": [[dim_text(g.left), g.sign, dim_text(g.right), g.answer, g.line] for g in captured.guards],
    }


def _asks_out(captured: Captured) -> dict[str, Any]:
    """Why results that give no gradients require them, where there are any."""
    rows = [[k, list(x.on), list(x.off), x.is_leaf] for k, x in captured.asks.items()]
    return {"asks": rows} if rows else {}


def _modules_out(captured: Captured) -> dict[str, Any]:
    """The model's modules, further names of its tensors, and the calls by nodes of the graph."""
    held = captured.graph and captured.hierarchy
    if not held or not (held.modules or held.tied):
        return {}
    calls = []
    for c in held.calls:
        trees = [None if t is None else _tree_out(t, c.module) for t in (c.in_tree, c.out_tree)]
        calls.append([
            c.module, c.first, c.last, list(c.given), list(c.returned), [list(x) for x in c.states], *trees
        ])  # fmt: skip
    return {"modules": [list(x) for x in held.modules], "tied": [list(x) for x in held.tied], "calls": calls}


def asked(captured: Captured) -> list[Kept | Expected | Raises | Condition]:
    """What is asked of values and modes beyond what the graph's ops ask."""
    return [check for check in captured.in_one_mode().checks if not isinstance(check, Check)]


def asked_rows(captured: Captured) -> list[list[Any]]:
    """What is asked of values, of each which operand, or which of the graph's results after the others."""
    rows: list[list[Any]] = []
    results = 0
    for check in asked(captured):
        if isinstance(check, Condition):
            rows.append(["condition", check.which, check.what, json.dumps([check.answer, check.line])])
            continue
        of_result = not isinstance(check, Kept) or check.kind == "result"
        which = results if of_result else check.which
        results += of_result
        if isinstance(check, Raises):
            rows.append(["raises", which, "", ""])
        elif isinstance(check, Expected):
            rows.append(["true", which, check.error.__name__, check.text])
        else:
            rows.append([check.kind, which, "", check.line])
    return rows


def asked_last(captured: Captured) -> tuple[list[int], list[Any]]:
    """The outputs of its graph that a program keeps, by number: results, what is written, what is asked for;
    and what is asked, of those.
    """
    kept = list(range(len(captured.outputs) + len(captured.mutated)))
    checks: list[Any] = []
    for check in asked(captured):
        if not isinstance(check, Condition) and (not isinstance(check, Kept) or check.kind == "result"):
            kept.append(check.which)
            check = check._replace(which=len(kept) - 1)
        checks.append(check)
    return kept, checks


def read_name(k: int) -> str:
    """What a file calls the value that was read by number `k` of what is asked."""
    return f"value read ({k})"


def _read_asked(found: Captured, entries: _Entries, graph: Looks, tensors: dict[str, Any]) -> None:
    first = len(found.outputs) + len(found.mutated)
    rows = entries.rows("asked", str, int, str, str)
    results = graph.outputs[first:]
    errors = tuple([_error_of(*row) for row in entries.rows("raises", str, str)])
    _need(
        len(results) == sum(kind not in ("operand", "condition") for kind, *_ in rows),
        f"the graph returns {len(graph.outputs)} values",
    )
    operands = [v for v in graph.inputs if not v.weak]
    for k, (kind, which, error, told) in enumerate(rows):
        if kind == "condition":
            found.checks.append(_condition(found, which, error, told))
            continue
        _need(kind in ("true", "raises", "operand", "result"), f"nothing is asked as {kind!r:.20}")
        held = operands if kind == "operand" else results
        _need(0 <= which < len(held), f"nothing to ask for at {which}")
        look = held[which].dtype, tuple(held[which].shape)
        if kind == "raises":
            _need(bool(errors) and not found.raises and look == ("int64", ()), f"what is raised is {look}")
            found.checks.append(Raises(first + which, errors))
            continue
        if kind == "true":
            _need(error in ERRORS and look == ("bool", ()), "what is asked is no truth, or no error")
            found.checks.append(Expected(first + which, ERRORS[error], told))
            continue
        name = read_name(k)
        _need(name in tensors and _look(tensors[name]) == look, f"no value called {name}")
        at = which if kind == "operand" else first + which
        found.checks.append(Kept(kind, at, tensors[name], told))


def _condition(found: Captured, which: int, what: str, told: str) -> Condition:
    """What is assumed of an operand or a mode."""
    try:
        answer, line = json.loads(told)
    except (ValueError, TypeError, RecursionError):
        raise TextError("signature: a condition without an answer") from None
    names = [*(x.name for x in found.inputs), *(s.name for s in found.state)]
    known = is_known(which, what, answer, len(names)) and is_plain(answer) and isinstance(line, str)
    _need(known, f"nothing is assumed as {what!r:.40}")
    return Condition(which, what, answer, line, found.name if which < 0 else names[which])


def _tree_out(tree: Tree, where: str) -> Any:
    if tree.kind == "leaf":
        return "t"
    if tree.kind == "constant":
        return {"c": _constant_out(tree.value, where)}
    items = [_tree_out(item, f"{where}[{k}]") for k, item in enumerate(tree.items)]
    if tree.kind in ("dict", "data"):
        return {"dict": [[_constant_out(k, where), item] for k, item in zip(tree.keys, items)]}
    if tree.kind == "named":
        return {"named": tree.type.__name__, "fields": list(tree.keys), "items": items}
    return {tree.kind: items}


def _constant_out(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) is int:
        return value
    if isinstance(value, float):
        return {"f": repr(value)}
    if isinstance(value, Size):
        return {"size": dim_text(value)}
    if isinstance(value, _core.dtype):
        return {"dtype": value.name}
    raise TypeError(
        message("export.save", "None, numbers, texts and dtypes beside tensors", f"{value!r:.60} in {where}")
    )


# -- reading ------------------------------------------------------------------------------------------


class _Entries:
    """The entries of a signature, each checked as it is taken."""

    def __init__(self, source: str) -> None:
        try:
            held = json.loads(source, parse_constant=_no_float, parse_float=_no_float)
            if "\\ud" in source.lower():
                json.dumps(held, ensure_ascii=False).encode()  # half a pair is no text
        except (ValueError, RecursionError) as error:
            raise TextError(f"signature: no JSON: {str(error)[:100]}") from None
        if not isinstance(held, dict):
            raise TextError("signature: expected an object")
        self.held = held

    def take(self, key: str) -> Any:
        """An entry, which must be there."""
        if key not in self.held:
            raise TextError(f"signature: no entry {key!r}")
        return self.held[key]

    def rows(self, key: str, *kinds: Any) -> list[Any]:
        """A list whose items are of a type, or lists of items of these types."""
        rows = self.take(key)
        if not isinstance(rows, list):
            raise TextError(f"signature: {key} must be a list")
        for k, row in enumerate(rows):
            items = [row] if len(kinds) == 1 else row
            if not isinstance(items, list) or len(items) != len(kinds):
                raise TextError(f"signature: {key}[{k}] must have {len(kinds)} items")
            for item, kind in zip(items, kinds):
                if not isinstance(item, kind) or (isinstance(item, bool) and kind is int):
                    raise TextError(f"signature: {key}[{k}] holds {item!r:.40}")
        return rows


def _no_float(text: str) -> Any:
    raise ValueError(f"a number {text[:20]}")


def _need(holds: bool, what: str) -> None:
    if not holds:
        raise TextError(f"signature: {what}")


class Looks(NamedTuple):
    """What a signature is read by: how a graph's inputs and outputs look; a Graph says so too."""

    inputs: list[Any]
    outputs: list[Any]
    slots: int


def from_signature(graph: Looks, source: str, tensors: dict[str, Any]) -> tuple[Captured, list[bool]]:
    """A program without what runs it, of what is said beside its graph, and which state takes gradients.
    TextError for what does not fit together.
    """
    entries = _Entries(source)
    name = entries.take("name")
    _need(isinstance(name, str), "name must be a text")
    found = Captured(name)
    names = entries.rows("inputs", str)
    state = entries.rows("state", str, str, bool)
    values = [v for v in graph.inputs if not v.weak]
    numbers = [v for v in graph.inputs if v.weak]
    _need(
        len(values) == len(names) + len(state),
        f"{len(names)} inputs and {len(state)} tensors, graph has {len(values)}",
    )
    _need(all(v.layout is None for v in values), "an input that states its strides")
    found.inputs = [Input(n, v.dtype, tuple(v.shape)) for n, v in zip(names, values)]
    for (own, kind, wanted), v in zip(state, values[len(names) :]):
        _need(kind in ("parameter", "buffer", "constant"), f"{own}: no kind {kind!r:.20}")
        _need(own in tensors, f"no tensor called {own!r:.60} in the file")
        tensor = tensors[own]
        came = _look(tensor)
        _need(
            came == (v.dtype, tuple(v.shape)),
            f"{own} is {came[0]}{list(came[1])} in the file, the graph has {v!r}",
        )
        _need(not wanted or v.dtype in FLOATS, f"{own} takes no gradient")
        _need(all(own != s.name for s in found.state), f"{own} stands twice")
        parts = own.split(".")
        _need(kind == "constant" or (all(parts) and len(parts) <= _DEPTH), f"no name {own!r:.60}")
        found.state.append(State(own, kind, tensor))
    found.unsaved = set(entries.rows("unsaved", str))
    found.parameters = entries.rows("parameters", str)
    found.in_tree = _tree_in(entries.take("arguments"), 0)
    found.out_tree = _tree_in(entries.take("results"), sum(v.ndim for v in values))
    found.gives_sizes = _gives_sizes(found.out_tree)
    found.outputs = entries.rows("outputs", str)
    found.aliases = tuple(entries.rows("aliases", int))
    found.distinct = entries.rows("distinct", int)
    found.mutated = [tuple(row) for row in entries.rows("mutated", str, int)]
    found.same = {k: (kind, which) for k, kind, which in entries.rows("same", int, str, int)}
    if "reasons" in entries.held:
        found.reasons = dict(entries.rows("reasons", str, str))
    if "asks" in entries.held:
        rows = entries.rows("asks", int, list, list, bool)
        found.asks = {k: Asks(tuple(on), tuple(off), is_leaf) for k, on, off, is_leaf in rows}
    _check_counts(found, graph, numbers)
    _read_asked(found, entries, graph, tensors)
    slots = found.number_sizes()
    _need(slots + len(numbers) <= graph.slots, "fewer slots than sizes")
    _read_dims(found, entries, slots)
    found.random = [(str(kind), _count(n, slots)) for kind, n in entries.rows("random", str, str)]
    found.drawn = _count(entries.take("drawn"), slots)
    flags = [entries.held.get(key, False) for key in ("ordered", "casts")]  # (not in files of before)
    _need(all(isinstance(x, bool) for x in flags), "ordered and casts must be true or false")
    found.ordered, found.casts = flags
    if "assigned" in entries.held:
        found.assigned = set(entries.rows("assigned", int))
        _need(all(0 <= k < len(state) for k in found.assigned), "no such tensor is assigned")
    found.hierarchy = _read_modules(entries, sum(v.ndim for v in values))
    _need(len(numbers) == len(found.random), f"{len(numbers)} numbers, {len(found.random)} that are drawn")
    _need(all(kind in ("seed", "position") for kind, _ in found.random), "a number that is not drawn")
    return found, [wanted for _, _, wanted in state]


def _read_modules(entries: _Entries, slots: int) -> Hierarchy | None:
    """The modules of a program; None of a file that says nothing of them. Numbers of nodes are checked by who
    looks at the graph.
    """
    if not all(key in entries.held for key in ("modules", "tied", "calls")):
        return None
    modules = [tuple(row) for row in entries.rows("modules", str, str)]
    tied = [tuple(row) for row in entries.rows("tied", str, int)]
    for name in [name for name, _ in (*modules, *tied)]:
        _need(all(parts := name.split(".")) and len(parts) <= _DEPTH, f"no name {name!r:.60}")
    names = {name for name, _ in modules}
    _need(len(names) == len(modules), "a module that stands twice")
    _need(all(own in names for _, own in modules), "another name of a module that is none")
    calls = []
    for row in entries.rows("calls", str, int, int, list, list, list, *[(str, dict, type(None))] * 2):
        module, first, last, given, returned, states, *trees = row
        _need(module in names, f"a call of {module!r:.60}, which is no module")
        pairs = all(isinstance(x, list) and len(x) == 2 for x in states)
        numbers = [*given, *returned, *(k for x in states for k in x)] if pairs else [None]
        _need(all(type(k) is int for k in numbers), f"a call of {module} with values that are no numbers")
        in_tree, out_tree = (None if t is None else _tree_in(t, slots) for t in trees)
        calls.append(
            ModuleCall(
                module,
                first,
                last,
                tuple(given),
                tuple(returned),
                tuple(map(tuple, states)),
                in_tree,
                out_tree,
            )
        )
    return Hierarchy(tuple(modules), tuple(tied), tuple(calls))


def _error_of(name: str, told: str) -> BaseException:
    """An exception that a program raises; one of a type that Python has not is a RuntimeError."""
    kind = getattr(builtins, name, RuntimeError)
    plain = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UnicodeError)
    try:
        return kind(told) if plain else RuntimeError(told)
    except TypeError:  # one that a text does not make
        return RuntimeError(told)


def _check_counts(found: Captured, graph: Looks, numbers: list[Any]) -> None:
    """Every index is of something, every count is the same wherever it is said."""
    inputs, state = len(found.inputs), len(found.state)
    tree = found.in_tree
    shaped = tree.kind == "tuple" and len(tree.items) == 2 and tree.items[0].kind == "tuple"
    _need(shaped and tree.items[1].kind == "dict", "arguments must be a tuple and a dict")
    leaves = found.in_tree.leaves
    _need(len(found.aliases) == leaves, f"{len(found.aliases)} aliases of {leaves} tensors")
    _need(all(0 <= k <= at for at, k in enumerate(found.aliases)), "an alias of a later tensor")
    _need(found.distinct == sorted(set(found.aliases)), "distinct tensors that are not those of the aliases")
    _need(
        len(found.distinct) == inputs,
        f"{inputs} inputs, {len(found.distinct)} distinct tensors among the arguments",
    )
    count = found.out_tree.leaves
    _need(len(found.outputs) == count, f"{count} tensors in the results")
    least = count + len(found.mutated)
    _need(len(graph.outputs) >= least, f"the graph returns {len(graph.outputs)} values")
    of = {"input": inputs, "state": state}
    for kind, k in [*found.mutated, *found.same.values()]:
        _need(kind in of and 0 <= k < of[kind], f"there is no {kind!r:.20} {k}")
    _need(all(0 <= k < count for k in (*found.same, *found.asks)), "a result that is none")
    asked = [j for asks in found.asks.values() for j in (*asks.on, *asks.off)]
    _need(all(type(j) is int and 0 <= j < inputs + state for j in asked), "asks of no operand")
    for (kind, k), value in zip(found.mutated, graph.outputs[count:]):
        target = found.inputs[k] if kind == "input" else None
        look = (target.dtype, target.shape) if target else _look(found.state[k].tensor)
        _need((value.dtype, tuple(value.shape)) == look, f"{kind} {k} becomes {value!r}")
    _need(all(v.dtype == "int64" for v in numbers), "a number that is no integer")


def _count(given: Any, slots: int) -> Dim:
    """How many random numbers."""
    _need(isinstance(given, str), "a count of random numbers must be a text")
    count = parse_dim(given, slots)
    _need(not isinstance(count, int) or 0 <= count < 1 << 62, "no count of random numbers")
    return count


def _look(tensor: Any) -> tuple[str, Shape]:
    return tensor.dtype.name, tuple(tensor.shape)


def _read_dims(found: Captured, entries: _Entries, slots: int) -> None:
    for name, least, most, symbol_text, slot, example in entries.rows(
        "dims", str, int, (int, type(None)), str, int, int
    ):
        _need(name.isidentifier() and name not in found.dims, f"no name of a size: {name!r:.40}")
        _need(0 <= slot < slots and least >= 0 and (most is None or most >= least), f"no range of {name}")
        own = found.dims[name] = Range(name, least, most)
        own.symbol, own.slot = parse_dim(symbol_text, slots), slot
        own.example = own.hint = example
    named = {d.slot for d in found.dims.values()}
    for given in found.inputs:
        known = all(isinstance(n, int) or slots_named(n) <= named for n in given.shape)
        _need(known, f"{given.name} has a size that no name is given for")
    for left, sign, right, answer, line in entries.rows("guards", str, str, str, bool, str):
        _need(sign in SIGNS, f"no comparison {sign!r:.10}")
        found.guards.append(Guard(parse_dim(left, slots), sign, parse_dim(right, slots), answer, line))


def _tree_in(tree: Any, slots: int, depth: int = 0) -> Tree:
    _need(depth < _DEPTH, "containers nested too deeply")
    if tree == "t":
        return LEAF
    _need(isinstance(tree, dict) and len(tree) in (1, 3), "a container that is none")
    if "c" in tree:
        return Tree("constant", value=_constant_in(tree["c"], slots))
    if "named" in tree:
        name, fields, items = tree["named"], tree.get("fields"), tree.get("items")
        right = isinstance(name, str) and isinstance(fields, list) and isinstance(items, list)
        _need(
            right and all(isinstance(f, str) for f in fields) and len(fields) == len(items), "a named tuple"
        )
        try:
            made = namedtuple(name, fields)  # type: ignore[misc]
        except ValueError as error:
            raise TextError(f"signature: {error}") from None
        return Tree("named", tuple([_tree_in(x, slots, depth + 1) for x in items]), tuple(fields), made)
    ((kind, items),) = tree.items()
    _need(kind in ("tuple", "list", "dict") and isinstance(items, list), f"no container {kind!r:.20}")
    if kind != "dict":
        return Tree(kind, tuple([_tree_in(x, slots, depth + 1) for x in items]))
    _need(all(isinstance(pair, list) and len(pair) == 2 for pair in items), "a dict of pairs")
    keys = tuple([_constant_in(k, 0) for k, _ in items])
    _need(len(set(keys)) == len(keys), "a dict with a key twice")
    return Tree("dict", tuple([_tree_in(x, slots, depth + 1) for _, x in items]), keys)


def _gives_sizes(tree: Tree) -> bool:
    return isinstance(tree.value, Size) or any(map(_gives_sizes, tree.items))


def _constant_in(value: Any, slots: int) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    _need(isinstance(value, dict) and len(value) == 1, "a constant that is none")
    ((kind, text),) = value.items()
    if kind == "size" and isinstance(text, str):
        return parse_dim(text, slots)
    _need(kind in ("f", "dtype") and isinstance(text, str) and len(text) < 40, "a constant that is none")
    if kind == "dtype":
        _need(text in _DTYPES, f"no dtype {text!r}")
        return _DTYPES[text]
    try:
        return float(text)
    except ValueError:
        raise TextError(f"signature: no number {text!r}") from None
