"""Follows the run of a function that is traced: nothing computes, calls of ops become steps.

Arguments, parameters and buffers are stand-ins: tensors of the same look without values, so that no value can
be read. What is written into them is a result more; other tensors that are met are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from kiln import _core, ops
from kiln.capture.pure.steps import CAST, DETACH, STRIDED, Step
from kiln.capture.pure.values import user_line
from kiln.graph.graph import Node, Shape
from kiln.graph.size import Dim, Size
from kiln.late import later
from kiln.nn.parameter import Parameter
from kiln.table.kinds import FLOATS
from kiln.table.record import Op
from kiln.tracing.captured import Asks
from kiln.tracing.floats import has_size
from kiln.tracing.places import Place, contiguous, seen
from kiln.tracing.questions import Questions

_made_size = later("kiln.tracing.symbolic", "made_size")
_traced = later("kiln.tracing.symbolic", "Traced")
_nested = later("kiln.tracing.symbolic", "nested")


class TracingError(RuntimeError):
    """What a function does that a trace of it would not do again."""


class SizeSaid(TracingError):
    """What a function says of a size that is left to it: it is a number, or follows from another size."""

    name: str
    reason: str
    size: tuple[str, int, int] | None  # so many times the size by that name, plus so much; None: a number


_NONE: frozenset[int] = frozenset()
_MOVES = {
    "reads a value": "reads the value of a tensor: the trace would keep the one of its example",
    "of a write": "writes to memory that a trace cannot follow",
    "calls backward": "calls backward: take gradients of what the trace gives",
}
WAYS = (
    "compute it with ops of tensors (where(condition, a, b) for a branch), make it an "
    "argument that is no tensor, "
    'keep it and have it checked at each call (on_data="check"), '
    "or use kiln.compile, which runs any Python"
)


class Recorder(Questions):
    """A tracer whose operands are stand-ins."""

    def __init__(self, name: str, on_data: str = "refuse", has_values: bool = True) -> None:
        super().__init__(name, on_data, has_values)
        self.without = ""  # an attribute of arguments that their stand-ins have not
        self.drawn: Dim = 0  # how many random numbers so far
        self._marks: dict[int, dict[str, Any]] = {}  # id of a stand-in -> its attributes
        self._offsets: dict[int, Dim] = {}  # of positions from the first: what they are in general
        self._target: Shape | None = None  # of what is written
        self._shapes_of: dict[int, Shape] = {}  # id of a tensor that the function has -> its sizes in general
        self._views_of: dict[int, list[Node]] = {}  # value -> the views that it is of an operand
        self._places: dict[int, Place] = {}  # id of a view -> where it lies in memory whose sizes vary
        self.pending: Any = None  # of the call that is being made: the op, its operands as they were given
        self.constants: list[int] = []  # operands that stand for nothing: tensors that were met
        # of branches (kiln/scripting)
        self.script: Any = None  # what a script that is called inside keeps
        # results without what only a script knows: of numbers that depend on values tensors
        self.finish_result: Callable[[Any], Any] = lambda result: result
        # value -> operands: it requires a gradient where one of these does, whatever comes to them
        self._asking: dict[int, frozenset[int]] = {}
        self._leaves: set[int] = set()  # views that were made where gradients are off
        self.ended: set[int] = set()  # ids of tensors that a branch made which is over
        self.may_raise = True  # whether the program may raise, depending on values
        self.failed: Any = None  # of a run that may raise: (the number of its exception, the exceptions)
        self._may_be: dict[int, set[int]] = {}  # storage -> storages that may be the same memory
        self._spoiled: set[int] = set()  # storages that may have been written by another name

    def stand_in(
        self, tensor: Any, argument: bool, shape: Shape | None = None, kind: type | None = None
    ) -> Any:
        """A tensor of the same look without values, which becomes an operand when it is used; `shape` where
        some of its sizes vary; `kind`: of which type, if not of the tensor's.
        """
        self._quiet = True
        try:
            sizes = tuple(tensor.shape) if shape is None else tuple(map(self.known.value_of, shape))
            made = ops.empty(sizes, dtype=tensor.dtype)
            own = type(tensor)
            if issubclass(own, _core.Tensor):  # (placeholders only look like one)
                if (kind or own) is not _core.Tensor:
                    made = _core.Tensor._make_subclass(kind or own, made)
                told = hasattr(kind, "__getattr__")  # which attributes it is asked for
                if not told and (argument or own is not _core.Tensor) and (held := vars(tensor)):
                    vars(made).update({k: v for k, v in held.items() if k != self.without})
            if tensor.requires_grad:
                made.requires_grad_()
        finally:
            self._quiet = False
        self._marks[id(made)] = dict(vars(made)) if _core.has_attributes(made) else {}
        self._stand_ins[_core.place(made)[0]] = made, True
        self._examples[id(made)] = tensor
        if argument:
            self._arguments.add(id(made))
            k = self.value(made)
            if shape is not None and any(isinstance(d, Size) for d in shape):
                self.shapes[k] = shape
        return made

    def expect_attributes(self, outputs: list[Any]) -> None:
        """Refuses a function that gives tensors attributes, which a program does not."""
        for made, _ in self._stand_ins.values():
            held, before = vars(made) if _core.has_attributes(made) else {}, self._marks[id(made)]
            other = [k for k in {**held, **before} if k not in held or held[k] is not before.get(k, held)]
            if other:
                self.refuse(f"writes the attribute {other[0]} of a tensor that it is given", "it")
        if any(_core.has_attributes(y) and id(y) not in self._marks for y in outputs):
            self.refuse("returns a tensor that it has given attributes", "it")

    def called(
        self,
        op: Op,
        structure: tuple[Any, ...],
        operands: tuple[Any, ...],
        out: tuple[Any, ...],
        results: tuple[Any, ...],
        history: bool,
    ) -> None:
        before = len(self.steps)
        super().called(op, structure, operands, out, results, history)
        for y in results:
            viewed = self._views.get(id(y))
            if viewed is not None and not history and not out:
                k = self._value[id(y)]
                self._asking[k] = self._asking.get(self.value(viewed.source), _NONE)
                self._leaves.add(k)
        if self.shapes or self.pending is not None:
            self._generalise(before, any(id(x) in self._places for x in operands))
            self._locate(results)

    def _generalise(self, before: int, is_part: bool) -> None:
        """Puts sizes as they were given into the steps that a call has added, and finds those of its
        results.
        """
        symbols = self.pending[1] if self.pending is not None else None
        self.pending = None
        for at in range(before, len(self.steps)):
            step = self.steps[at]
            if isinstance(step.op, str):
                continue  # as it was added
            args = list(step.args)
            if symbols is not None and len(symbols) == len(args):
                args = [
                    ("size", x) if kind == "number" and isinstance(x, Size) else (kind, own)
                    for (kind, own), x in zip(args, symbols)
                ]
                symbols = None
            varies = is_part or any(
                kind == "size" or (kind == "value" and k in self.shapes) for kind, k in args
            )
            if not varies:
                continue
            self.steps[at] = step = step._replace(args=tuple(args))
            self._infer(step, at)

    def _infer(self, step: Any, at: int) -> None:
        given: list[Any] = []
        for kind, k in step.args:
            if kind == "value":
                given.append((self._dtype_of(k), self.shapes.get(k) or self.sizes[k]))
            else:
                given.append(k if kind != "operand" else 0)
        found = self.known.looks(step.op, step.structure, given)
        for a, b in found.checks:
            self._tie(a, b, step.name)
        for k, shape, views in zip(step.outs, found.shapes, found.views):
            if views is not None:
                self._views_of[k] = views
            if k in self.sizes and tuple(map(self.known.value_of, shape)) != self.sizes[k]:
                self.refuse(f"calls {step.name}, whose sizes a trace cannot follow here")
            if any(isinstance(d, Size) for d in shape):
                self.shapes[k] = shape
        self._note_ones(at)

    def _note_ones(self, at: int) -> None:
        """A size that varies is no 1, though the trace's may be."""
        step = self.steps[at]
        ones = [
            tuple([d for d, n in enumerate(self.shapes[k]) if n == 1]) if k in self.shapes else own
            for k, own in zip(step.outs, step.ones)
        ]
        self.steps[at] = step._replace(ones=tuple(ones))

    def _tie(self, a: Dim, b: Dim, what: str) -> None:
        """What an op asks of sizes is more than they were declared to be."""
        names = self.known.fixed_names(a, b)
        a, b = self.known.without_factors(a, b)
        if self.may_equal(a, b, f"calls {what}, where {self.known.text(a)} is {self.known.text(b)}"):
            self.known.guard(a, "==", b, user_line())
            self.known.ties.append((a, b))
            return
        self.refuse(
            f"calls {what}, which makes {self.known.text(a)} equal {self.known.text(b)}: not all sizes that "
            f"{names} may have are right"
        )

    def _generalise_memory(self, at: int) -> None:
        step = self.steps[at]
        sources = [k for kind, k in step.args if kind == "value"]
        (made,) = step.outs
        if step.op == CAST and self._target is not None:
            shape = self._target
            self.steps[at] = step._replace(structure=(shape,))
            if any(isinstance(d, Size) for d in shape):
                self.shapes[made] = shape
            self._note_ones(at)
        elif not any(k in self.shapes for k in sources):
            return
        elif step.op == DETACH:
            self.shapes[made] = self.shapes[sources[0]]
            self._note_ones(at)
        else:
            shape = step.structure[0] if step.op == STRIDED else self.sizes_of(sources[0])
            if any(isinstance(d, Size) for d in shape):
                self.shapes[made] = shape
            self._note_ones(at)

    def _locate(self, results: tuple[Any, ...]) -> None:
        """Finds where views lie in memory whose sizes vary."""
        for y in results:
            viewed = self._views.get(id(y))
            if viewed is None:
                continue
            views, place = self._views_of.get(self._value[id(y)]), self.place(viewed.source)
            for view in views or ():
                place = seen(place, view)
            if views is not None and place is not None:
                self._places[id(y)] = place

    def place(self, tensor: Any) -> Place | None:
        """Where a tensor lies in its memory; None where that cannot be told in general."""
        found = self._places.get(id(tensor))
        if found is not None:
            return found
        storage, offset, sizes, strides = _core.place(tensor)
        whole = self._on[storage][0]
        general = [self.shapes.get(self._value.get(id(x), -1)) for x in (whole, tensor)]
        if general == [None, None]:
            return Place(sizes, strides, offset)
        if whole is not tensor or offset or not tensor.is_contiguous():
            return None
        return contiguous(general[0] or sizes)

    def _where(self, tensor: Any) -> tuple[Any, Any, Any]:
        place = self.place(tensor)
        if place is None or not place.is_at(_core.place(tensor)[1:], self.value_of):
            self.refuse("writes into a part of a tensor whose sizes vary, or reads one that was written so")
            raise AssertionError
        return place

    def sizes_of(self, k: int) -> Shape:
        """The sizes of a value, those that vary in general."""
        return self.shapes.get(k) or self.sizes[k]

    def numbered_shapes(self, again: int) -> dict[int, Shape]:
        """The sizes of values some of whose sizes vary, as `finish` numbers them."""
        return {self._number(k, again): shape for k, shape in self.shapes.items()}

    def during(self, call: Callable[[], Any]) -> Any:
        """What a call of ops gives."""
        return call()

    def keeping(self, call: Callable[[], Any], names: dict[int, str]) -> Any:
        """What a call gives that writes into tensors which stay; `names` by their ids."""
        return call()

    def ask(self, tensor: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """A method that reads values, which the core refuses."""
        return getattr(tensor, name)(*args, **kwargs)

    def text_of(self, tensor: Any) -> str:
        """A tensor some of whose sizes vary, as text."""
        return f"Traced({tensor.dtype}, {self.shape_text(tensor)})"

    # -- functions with a derivative of their own ------------------------------------------------------

    def needs_gradient(self, tensor: Any) -> bool:
        """Whether a gradient may be asked for: what is wanted is decided by the call."""
        return bool(tensor.dtype.is_floating_point)

    def nested(self, data: Any, dtype: str | None) -> Any:
        """A tensor of numbers in sequences, of which some may be sizes that vary; None if none is."""
        return _nested(data, dtype) if has_size(data) else None

    def draws(self, count: Dim, take: Any) -> Any:
        """(seed, position) of so many random numbers that a call draws; a size that varies counts as such."""
        count = count if isinstance(count, int) else Size._interned[count.terms]
        seed, position = take(self.known.value_of(count))
        if self.random[0] == seed and position - self.random[1] == self.known.value_of(self.drawn):
            self._offsets[position - self.random[1]] = self.drawn
            self.drawn = self.drawn + count
        return seed, position

    def _argument(self, name: str, x: Any) -> Any:
        many = len(self.numbers)
        found = super()._argument(name, x)
        if len(self.numbers) > many:
            kind, offset = self.numbers[-1]
            self.numbers[-1] = kind, self._offsets.get(offset, offset)  # type: ignore[assignment]
        return found

    def seed(self, like: Any) -> tuple[Any, int]:
        made, k = super().seed(like)
        shape = self.shapes.get(self.value(like))
        if shape is not None:
            self.shapes[k] = shape
        return self.wrapped(made), k

    # -- what the function asks of sizes ----------------------------------------------------------------

    def shape_of(self, tensor: Any) -> Shape:
        """The sizes of a tensor, in general."""
        found = self._shapes_of.get(id(tensor))
        if found is None:
            found = self.shapes.get(self.value(tensor)) or _core.place(tensor)[2]
        return found

    def shape_text(self, tensor: Any) -> str:
        """The same as text."""
        return f"({', '.join(map(self.known.text, self.shape_of(tensor)))})"

    def wrapped(self, result: Any) -> Any:
        """Results as the function is to see them."""
        if isinstance(result, (tuple, list)):
            return type(result)([self.wrapped(y) for y in result])
        if hasattr(type(result), "whole"):
            return result  # it was wrapped where it was made
        if isinstance(result, _core.Tensor) and (shape := self.shapes.get(self.value(result))):
            self._shapes_of[id(result)] = shape
            return _traced(result, self)
        return result

    def size(self, dim: Dim) -> Any:
        """A size as the function is to see it."""
        return _made_size(self, dim)

    def shown(self, dim: Dim, own: bool) -> str:
        """A size as text, for kiln's own code or the program's, which would keep it."""
        return self.size_text(dim) if own else str(self.fix(dim, "made a text"))

    def size_text(self, dim: Dim) -> str:
        """A size as text."""
        return self.known.text(dim)

    def value_of(self, dim: Dim) -> int:
        """A size as the trace is made with."""
        return self.known.value_of(dim)

    def decide(self, left: Dim, sign: str, right: Dim, holds: Any, own: bool) -> bool:
        """The answer to a question about sizes; a guard where it depends on them."""
        known = self.known.known(left, sign, right)
        if known is not None:
            return known
        if self.script is not None and not own:
            return self.script.asked(self, left, sign, right)  # type: ignore[no-any-return]
        answer = self.known.guard(left, sign, right, user_line())
        fixes = answer if sign == "==" else not answer if sign == "!=" else False
        text = f"{self.known.text(left)} {sign} {self.known.text(right)}"
        told = f"branches on {text}, which is {answer}"
        if fixes and self.on_data != "check" and not self.may_equal(left, right, told):
            raise self.size_read(left - right, f"branches on {text}, which is {answer} for the example alone")
        return answer

    def fix(self, dim: Dim, what: str) -> int:
        """A size that is read as a number."""
        value = self.known.value_of(dim)
        told = f"has the size {self.known.text(dim)} {what}"
        if self.on_data != "check" and not self.may_equal(dim, value, told):
            raise self.size_read(
                dim, f"has the size {self.known.text(dim)} {what}, which would be {value} ever after"
            )
        self.known.guard(dim, "==", value, user_line())
        return value

    def may_equal(self, left: Dim, right: Dim, told: str) -> bool:
        """Whether the function may ask two sizes to be equal; SizeSaid where that says what a size is which
        is left to it.
        """
        found = self.known.solved(left, right)
        if found is not None:
            reason = f"{self.name}: {user_line()} {told}"
            said = SizeSaid(
                f"{reason}; declare {found[0]!r} with one size, or leave it out of dynamic_shapes"
            )
            said.reason, (said.name, said.size) = reason, found
            self.failure = said  # type: ignore[assignment]
            raise said
        return self.known.may_say(left, right)

    def size_read(self, dim: Dim, what: str) -> TracingError:
        """The error for a read of a size."""
        names = self.known.fixed_names(dim)
        ways = f'declare {names} with one size, or on_data="check" keeps it and checks it at each call'
        self.failure = TracingError(f"{self.name}: {user_line()} {what}; {ways}")  # type: ignore[assignment]
        return self.failure  # type: ignore[return-value]

    def fixed(self, attr: Any) -> Any:
        """A setting of an op, in which sizes are numbers."""
        if isinstance(attr, (tuple, list)):
            return type(attr)([self.fixed(a) for a in attr])
        return self.fix(attr, "as a setting of an op") if isinstance(attr, Size) else attr

    # -- branches ---------------------------------------------------------------------------------------

    def value(self, tensor: Any) -> int:
        if self.ended and id(tensor) in self.ended:
            self.refuse(
                "uses a tensor that was made in a branch or loop on values, and is none of its results"
            )
        if self._spoiled and _core.place(tensor)[0] in self._spoiled:
            self.refuse("reads a tensor that may have been written by another name, depending on values")
        return super().value(tensor)

    def placeholder(self, dtype: str, shape: Shape, requires_grad: bool) -> Any:
        """A tensor without values that no step has made: what a loop carries."""
        self._quiet = True
        try:
            made = ops.empty(tuple(map(self.known.value_of, shape)), dtype=getattr(_core, dtype))
            if requires_grad and made.dtype.is_floating_point:
                made.requires_grad_()
            made = made.clone()  # which never runs: no check looks at its values
        finally:
            self._quiet = False
        k = self._new()
        self._hold(made, k)
        self._made.add(_core.place(made)[0])
        self.dtypes[k] = dtype
        if made.dtype.is_floating_point:
            self._flowing.add(k)
        if any(isinstance(d, Size) for d in shape):
            self.shapes[k] = shape
        return made

    def results_of(
        self,
        op: Any,
        structure: tuple[Any, ...],
        given: list[Any],
        looks: list[tuple[str, Shape]],
        sizes: list[Dim],
    ) -> list[Any]:
        """The results of a call that is a step without being made, so that nothing compiles it by itself."""
        args: tuple[Any, ...] = tuple([("value", self.value(x)) for x in given])
        args += tuple([("size", n) for n in sizes])
        history = _core.grad_enabled()
        flows = history and any(x.requires_grad for x in given)
        made = [self.placeholder(dtype, shape, flows) for dtype, shape in looks]
        outs = [self._value[id(y)] for y in made]
        shapes = [tuple(map(self.known.value_of, s)) for _, s in looks]
        self._append(op, structure, args, outs, [d for d, _ in looks], shapes, history)
        if sizes or any(k in self.shapes for k in outs):
            self._note_ones(len(self.steps) - 1)
        seen: list[Any] = self.wrapped(made)
        return seen

    def call_outside(self, op: Any, given: tuple[Any, ...], settings: tuple[Any, ...]) -> list[Any] | None:
        """The results of a function that a library computes, as a step of a program, which has no plan then;
        None where it is to run with values, each of which is read.
        """
        if self._before_backward is not None:
            self.refuse(f"calls {op.name} in the backward of an autograd.Function, which no graph can")
        if self.running is not None and not self.running.may_call(op.name):
            return None
        own = [getattr(x, "whole", x) for x in given]
        looks = op.looks(*((x.dtype.name, self.shape_of(x)) for x in own), *settings)
        return self.results_of(op, (*("t" for _ in given), *settings), own, looks, [])

    def may_be(self, made: Any, other: Any) -> None:
        """A result of a branch may be another tensor's memory: a write to one shows in the other."""
        a, b = _core.place(made)[0], _core.place(other)[0]
        self._may_be.setdefault(a, set()).add(b)
        self._may_be.setdefault(b, set()).add(a)

    def spoil(self, tensor: Any) -> None:
        """A tensor may have been written by another name: it is not read any more."""
        self._spoil(_core.place(tensor)[0])

    def _spoil(self, storage: int) -> None:
        if storage in self._stand_ins:
            self.refuse(
                "writes in place what may be an argument or a buffer, depending on values: write x = x + 1 "
                "instead of x += 1"
            )
        self._spoiled.add(storage)

    def fails(self, code: Any, errors: list[BaseException]) -> None:
        """The program raises one of these, by the number `code` from 1 on, unless it has raised before."""
        if self.script is not None:
            self.script.fails(code, errors)
        elif not self.may_raise:
            self.refuse("calls a script that raises depending on values, which a graph cannot")
        elif self.failed is None:
            self.failed = code, errors
        else:
            before, known = self.failed
            self.failed = ops.where((before == 0) & (code != 0), code + len(known), before), known + errors

    def sizes_read(self, tensor: Any) -> None:
        """Sizes are those of the example."""

    def refuse(self, what: str, line: str = "") -> NoReturn:
        self.failure = TracingError(  # type: ignore[assignment]
            f"{self.name}: {line or user_line()} {_MOVES.get(what, what)}; {WAYS}"
        )
        raise self.failure  # type: ignore[misc]

    def _expect_buffer(self, storage: int) -> None:
        """Refuses a write to what is neither an argument nor the module's own."""
        of = "an argument" if self._is_of_argument(storage) else "a tensor made elsewhere"
        self.refuse(f"writes {of} in place")

    def may_write(self, storage: int) -> bool:
        return storage in self._made or storage in self._stand_ins

    def _write(self, op: Any, structure: Any, args: Any, out: Any, made: Any, history: bool) -> None:
        for target in out if self._may_be else ():
            for other in self._may_be.get(_core.place(target)[0], ()):
                self._spoil(other)
        self._target = self.shape_of(out[0]) if out else None
        super()._write(op, structure, args, out, made, history)

    def _append(self, op: Any, *rest: Any) -> None:
        super()._append(op, *rest)
        if self.shapes and isinstance(op, str):
            self._generalise_memory(len(self.steps) - 1)

    def _with_history(self, before: int, k: int) -> int:
        made = super()._with_history(before, k)
        if before in self.shapes and made != k:
            self.shapes[made] = self.shapes[before]
            self._note_ones(len(self.steps) - 1)
        return made

    def _flow(self, step: Step) -> None:
        super()._flow(step)
        if step.flows:
            own = [self._asking[k] for kind, k in step.args if kind == "value" and k in self._asking]
            self._asking.update((k, _NONE.union(*own)) for k, d in zip(step.outs, step.dtypes) if d in FLOATS)

    def asks(self, tensor: Any, history: tuple[int, ...]) -> Asks | None:
        """From what else than gradients that it gives a result requires one; None if from nothing."""
        k, root = self.value(tensor), tensor
        while (viewed := self._views.get(id(root))) is not None and viewed.op is not None:
            root = viewed.source
        at = self.operand_of(root)
        off = (at,) if at is not None and root is not tensor and root.dtype.is_floating_point else ()
        on = tuple(sorted(self._asking.get(k, _NONE)))
        return None if on == history and not off else Asks(on, off, k in self._leaves)

    def _may_flow(self, operand: Any) -> bool:
        """Whether gradients flow is decided by the call: but for buffers, which are none's."""
        own = operand.requires_grad or id(operand) in self._arguments or isinstance(operand, Parameter)
        return bool(own and operand.dtype.is_floating_point)

    def _shows_history(self, tensor: Any) -> bool:
        return self._is_tied(tensor)

    def written(self, stand_in: Any) -> int | None:
        """The value that a stand-in has at the end, if it was written."""
        first = self._value.get(id(stand_in))
        if first is None:
            return None
        last = self.value(stand_in)
        return None if last < len(self.operands) else last

    def operand_of(self, tensor: Any) -> int | None:
        """The operand that a tensor is."""
        return next((k for k, x in enumerate(self.operands) if x is tensor), None)

    def steps_of(self, results: Sequence[int]) -> Any:
        """The steps that these values need."""
        return self.finish(list(results))

    def _meet(self, tensor: Any) -> int:
        own = self._stand_ins.get(_core.place(tensor)[0])
        if own is not None and own[0] is not tensor:
            self.value(own[0])  # the whole comes first
        k = super()._meet(tensor)
        if k < len(self.operands) and tensor.dtype.is_floating_point:
            self._asking[k] = frozenset((k,))
        return k
