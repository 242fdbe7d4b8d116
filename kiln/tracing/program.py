"""A captured function as a callable: arguments checked by name, one op, results in their containers."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from kiln import _core
from kiln.errors import describe
from kiln.graph.graph import Value
from kiln.graph.size import Size, evaluate
from kiln.late import later
from kiln.table.arguments import TRACES, recorder_here
from kiln.tracing.captured import Asks, Captured, Check
from kiln.tracing.trees import Tree, alike, build, constants, flatten

_OFTEN, _EVERY = (
    16,
    64,
)  # of the calls that the core does not know, the first are told it, then one of so many

_called = later("kiln.tracing.ops", "called")
_inlined, _within = later("kiln.tracing.nested", "inlined"), later("kiln.tracing.nested", "within")
_of_batch = later("kiln.tracing.batches", "results_of_batch")
_unreached = later("kiln.capture.pure.variant", "unreached")
_cast_arguments = later("kiln.amp.autocast_mode", "cast_arguments")

above: dict[str, Any] = {}  # what makes a program of converted tensors: kiln/export's
Home = tuple[dict[str, Any], str]  # where a tensor of a program is: the dict that holds it, and its key


def _flows(y: Any, operands: list[Any], history: tuple[int, ...]) -> bool:
    """Whether a result has the history it is to have: gradients that come to it reach one of these."""
    return not y.requires_grad or any(operands[j].requires_grad for j in history)


class Program:
    """What runs a `Captured`, whose state is in `homes`, in the order of `captured.state`.

    `fast` is the call: the core runs those that look like an earlier one (dtypes, sizes, containers, modes,
    the program's tensors where they were) by itself. The others, one of every 256, and those that fail come
    here. Where the tensors were converted since (`half()`, `to(dtype)`), it becomes the program of those.
    """

    def __init__(self, captured: Captured, homes: list[Home]) -> None:
        self.homes = homes
        self.fast = _core.Cell(self._slow)
        self._set(captured)
        self._first = captured, self._looks

    def _set(self, captured: Captured) -> None:
        self.captured = captured
        self._looks = [(s.name, s.tensor.dtype, tuple(s.tensor.shape)) for s in captured.state]
        self._is_one = captured.out_tree.kind == "leaf"
        self._is_tuple = captured.out_tree.kind == "tuple" and captured.out_tree.type is None
        self._is_tuple = self._is_tuple and all(item.kind == "leaf" for item in captured.out_tree.items)
        positional, named = captured.in_tree.items
        self._is_flat = not named.items and all(item.kind == "leaf" for item in positional.items)
        self._is_plain = _is_plain(captured)
        self._missed = 0
        self._told: tuple[int, ...] = ()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the function gives of these arguments."""
        return self.fast(*args, **kwargs)

    def state(self) -> list[Any]:
        """The tensors it has, as they are now; RuntimeError where there is no such program of them."""
        found = [held[key] for held, key in self.homes]
        for x, (name, dtype, shape) in zip(found, self._looks):
            if x.dtype is not dtype or tuple(x.shape) != shape:
                try:
                    self._set(above["converted"](*self._first, found))
                except Exception as error:
                    raise RuntimeError(
                        f"{name}: was {dtype.name}{list(shape)} when it was traced, is {describe(x)}, which "
                        f"its program cannot become ({error}): trace it again"
                    ) from None
                self.fast.forget()
                break
        return found

    def current(self) -> Captured:
        """What it computes with its tensors as they are, or did where they are of no such program."""
        with suppress(RuntimeError):
            self.state()
        return self.captured

    def _slow(self, due: bool | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state = self.state()
        leaves = self.leaves(args, kwargs)
        found = self.captured.in_modes()
        operands = [*leaves, *state]
        returned = {k for kind, k in found.same.values() if kind == "state"}
        for k in found.assigned if _core.grad_enabled() else found.assigned & returned:
            operands[len(leaves) + k] = state[k].clone()  # what was there before stays
        if any(type(x) is Value for x in leaves):
            return _inlined(found, operands)
        if found is self.captured:
            results = self._results(found, operands)
        else:
            with _core.ModeSwitch(True, False):  # each step does as it did
                results = self._results(found, operands)
        if due is False and found is self.captured and self._is_told(operands, results):
            self._tell(args, kwargs, operands, results)
        written = zip(found.mutated, results[len(found.outputs) :], found.written)
        for (kind, which), y, history in written:
            target = leaves[which] if kind == "input" else state[which]
            _write(target, y, _flows(y, operands, history))
        return self._given(found, operands, results)

    def _results(self, found: Captured, operands: list[Any]) -> tuple[Any, ...]:
        """What the steps give of all tensors."""
        if found.op is None:
            found.draw(operands)
            for check in found.checks:
                check.before(operands)
            return ()
        tensors = [*operands, *(operands[k] for k in found.again)]
        recorder = recorder_here(*tensors)
        if recorder is not None:
            followed: tuple[Any, ...] = recorder.during(partial(_within, found, recorder, tensors))
            return followed
        if not _are_tensors(tensors):
            of_batch: tuple[Any, ...] = _of_batch(found, operands, tensors)
            return of_batch
        numbers = found.draw(operands)
        for check in found.checks:
            check.before(operands)
        plain = _core.modes()[2] is None or found.casts
        if plain and found.by_steps:
            results = found.replay(tensors, numbers)
        elif plain:
            results = _core.call_op(found.op.handle, found.op.structure, (*tensors, *numbers))
        else:  # each op as autocast has it, which was off when the program was made
            results = found.replay(tensors, numbers, call=_in_mode)
        for check in found.checks:
            check.after(operands, results)
        return results

    def _given(self, found: Captured, operands: list[Any], results: tuple[Any, ...]) -> Any:
        """The results in their containers."""
        count = len(found.inputs)
        outputs: list[Any] = []
        for k, history in enumerate(found.history):
            if k in found.same:
                kind, which = found.same[k]
                outputs.append(operands[which if kind == "input" else count + which])
                continue
            y = results[k]
            y = y if _flows(y, operands, history) else y.detach()
            asks = found.asks.get(k)
            outputs.append(y if asks is None or y.requires_grad else self._asking(y, asks, found, operands))
        if self._is_one:
            return outputs[0]
        tree = found.out_tree
        if found.gives_sizes:
            sizes = [n for x in operands for n in x.shape]
            tree = constants(tree, lambda x: evaluate(x, sizes.__getitem__) if isinstance(x, Size) else x)
        return build(tree, iter(outputs))

    def _asking(self, y: Any, asks: Asks, found: Captured, operands: list[Any]) -> Any:
        """A result that gives no gradients, as one that requires one where it is to."""
        on = _core.grad_enabled() or found is not self.captured  # (whose modes are those of its steps)
        if not any(operands[j].requires_grad for j in (asks.on if on else asks.off)):
            return y
        return _unreached(y, asks.is_leaf or not on)

    # -- calls that the core runs by itself -------------------------------------------------------------

    def _is_told(self, operands: list[Any], results: tuple[Any, ...]) -> bool:
        """Whether the core can run such a call, and is to be told of it: where all differ, of a few."""
        found = self.captured
        if (
            not self._is_plain
            or recorder_here() is not None
            or (_core.modes()[2] is not None and not found.casts)
        ):
            return False
        tensors = [*operands, *(operands[k] for k in found.again)]
        if not _are_tensors(tensors):
            return False
        first = len(found.outputs)
        written = zip(results[first:], found.written)
        if any(y.requires_grad and _flows(y, operands, history) for y, history in written):
            return False  # into the program's own history
        self._missed += 1
        return self._missed <= _OFTEN or self._missed % _EVERY == 0

    def _tell(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Any], results: tuple[Any, ...]
    ) -> None:
        found = self.captured
        count = len(found.inputs)
        given: list[Any] = []
        flatten((args, kwargs), given)
        place: dict[int, int] = {}  # as the core has them: every tensor once, in the order of the call
        for x in given:
            place.setdefault(id(x), len(place))
        order = [place[id(x)] for x in operands[:count]]
        state = tuple(map(id, operands[count:]))
        if state != self._told:  # tensors that were exchanged are not kept alive by calls of before
            self.fast.forget()
            self._told = state
        part = [*(("leaf", k) for k in order), *(("met", x) for x in operands[count:])]
        checks = [
            (check.op, check.structure, [_part(part, *p) for p in check.parts])
            for check in found.checks
            if isinstance(check, Check)
        ]
        sizes = [(k, d, n) for k, x in zip(order, operands) for d, n in enumerate(x.shape)]
        plain = (self._is_one or self._is_tuple) and not found.same and not found.asks
        plain = plain and all(_flows(y, operands, history) for y, history in zip(results, found.history))

        def give(results: tuple[Any, ...], leaves: list[Any]) -> Any:
            return self._returned(self._given(found, [*(leaves[k] for k in order), *self.state()], results))

        self.fast.add(
            args, kwargs, *self._guards(), sizes,
            [*part, *(part[k] for k in found.again), *found.random], found.drawn,
            found.op.handle, found.op.structure, plain and self._is_one, None if plain else give,
            checks, {}, set(), [operands[count + k] for _, k in found.mutated],
        )  # fmt: skip

    def _returned(self, given: Any) -> Any:
        """What a call returns, of the results in their containers."""
        return given

    def _guards(self) -> tuple[Any, Any]:
        """That every tensor of the program is where it was, and nothing is traced."""
        held: dict[int, tuple[dict[str, Any], list[tuple[str, Any]]]] = {}
        for home, key in self.homes:
            held.setdefault(id(home), (home, []))[1].append((key, home[key]))
        own = _core.Guards(
            [
                *((home, tuple(entries), False) for home, entries in held.values()),
                (TRACES, (("now", 0),), False),
            ]
        )
        return own, _core.Guards([])

    # -- arguments --------------------------------------------------------------------------------------

    def leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The tensors among the arguments, checked; TypeError or RuntimeError in the input's own name."""
        found = self.captured
        given: list[Any] = []
        plain = self._is_flat and not kwargs and len(args) == len(found.aliases)
        if plain and all(isinstance(x, _core.Tensor) for x in args):
            given = list(args)
        elif not alike(tree := found.tree_of(args, kwargs, given), found.in_tree):
            raise TypeError(f"{found.name}: {found.difference(args, kwargs, tree)}")
        leaves = [given[k] for k in found.distinct]
        if len(leaves) < len(given):
            found.check_aliases(given)
        if len(leaves) > 1 and any(kind != "state" for kind, _ in found.mutated):
            found.check_apart(leaves)
        sizes: list[int] = []
        for x, own in zip(leaves, found.inputs):
            if getattr(x.dtype, "name", x.dtype) != own.dtype:
                raise RuntimeError(f"{own.name}: expected {own.dtype}, got {describe(x)}")
            came = tuple(x.shape)
            if came != own.shape and (len(came) != len(own.shape) or not found.dims):
                raise RuntimeError(_other_shape(found, own, came))
            sizes += came
        if found.dims:
            self._check_dims(sizes)
        return leaves

    def _check_dims(self, sizes: list[int]) -> None:
        """RuntimeError, in the input's own name, for sizes that are none of those declared."""
        found = self.captured

        def of(slot: int) -> int:
            return sizes[slot]

        at = 0
        for own in found.inputs:
            for d, size in enumerate(own.shape):
                expected = size if isinstance(size, int) else evaluate(size, of)
                if expected != sizes[at]:
                    told = found.size_text(size)
                    more = "" if isinstance(size, int) else f" = {expected}"
                    why = found.why(own.name, d)
                    raise RuntimeError(f"{own.name}: dim {d} must be {told}{more}, got {sizes[at]}{why}")
                at += 1
        for dim in found.dims.values():
            n = evaluate(dim.symbol, of)
            if n < dim.min or (dim.max is not None and n > dim.max):
                most = "any" if dim.max is None else dim.max
                raise RuntimeError(
                    f"{found.place_of(dim)} is {n}, {dim.name} must be from {dim.min} to {most}"
                )
        for guard in found.guards:
            if not guard.holds(of):
                asked = f"{found.size_text(guard.left)} {guard.sign} {found.size_text(guard.right)}"
                raise RuntimeError(
                    f"{found.name}: was made where {asked} is {guard.answer} ({guard.line}), which it is not "
                    f"here"
                )


def _in_mode(step: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """One step, in the modes that are on."""
    if not isinstance(step.op, str):
        given = _cast_arguments(step.name, given)
    made: tuple[Any, ...] = _called(step, given)
    return made


def _other_shape(found: Captured, own: Any, came: tuple[int, ...]) -> str:
    if len(came) != len(own.shape):
        return f"{own.name}: must have {len(own.shape)} dims, got {len(came)}: {list(came)}"
    dim = next(d for d, (a, b) in enumerate(zip(own.shape, came)) if a != b)
    return f"{own.name}: dim {dim} must be {own.shape[dim]}, got {came[dim]}{found.why(own.name, dim)}"


def held_in(captured: Captured) -> list[Home]:
    """Homes of what was captured, beside any module."""
    held = {s.name: s.tensor for s in captured.state}
    return [(held, s.name) for s in captured.state]


def _is_plain(found: Captured) -> bool:
    """Whether the core can run calls by itself: it checks operands alone, writes into no argument, and draws
    as many numbers each time.
    """
    checks = [check for check in found.checks if isinstance(check, Check) and not check.late]
    numbers = [x for check in checks for kind, x in check.parts if kind == "number"]
    varies = any(kind in ("varies", "size") for check in checks for kind, _ in check.parts)
    counts = [found.drawn, *(n for _, n in found.random)]
    return (
        found.op is not None
        and not found.by_steps
        and not found.assigned
        and not _has_objects(found.in_tree)
        and len(checks) == len(found.checks)
        and all(kind == "state" for kind, _ in found.mutated)
        and not varies
        and not found.ordered
        and not any(isinstance(n, Size) for n in (*numbers, *counts))
    )


def _has_objects(tree: Tree) -> bool:
    """Whether tensors are attributes of objects, which the core does not look into."""
    return tree.kind == "data" or any(map(_has_objects, tree.items))


def _are_tensors(tensors: list[Any]) -> bool:
    return all(issubclass(type(x), _core.Tensor) for x in tensors)


def _part(parts: list[tuple[str, Any]], kind: str, x: Any) -> tuple[str, Any]:
    """What a check looks at, as the core has it."""
    return parts[x] if kind == "operand" else ("met" if kind == "like" else kind, x)


def _write(target: Any, value: Any, flows: bool) -> None:
    """Puts a value where a buffer or an argument is, without history where it has none."""
    before = _core.set_grad_enabled(flows and value.requires_grad)
    try:
        target.copy_(value)
    finally:
        _core.set_grad_enabled(before)
