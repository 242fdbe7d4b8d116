"""Records the ops on placeholders. There is no function whose end would end it, so this recorder stays.

    placeholder ----> Traced --op--> Traced --op--> Traced        every op is one step more of the definition
                                                       `---- taken.py takes the steps that outputs need

All placeholders of a thread that are alive share one definition, so any of them can be used together. It
lives as long as one of its tensors does. A size that varies is followed with a size of its own (`HINT`) as
traces follow those of an example; what that size alone would decide is refused, or checked at each run.
"""

from __future__ import annotations

import weakref
from _thread import _local
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from kiln import _core
from kiln.capture.pure.values import user_line
from kiln.errors import describe, message
from kiln.graph.equal import Equalities
from kiln.graph.graph import Shape
from kiln.graph.size import Dim as Expression
from kiln.graph.size import Size, slots_named, symbol
from kiln.table.arguments import is_traced, without_values
from kiln.tracing.dims import Dim, Range
from kiln.tracing.recorder import Recorder, TracingError
from kiln.tracing.symbolic import Traced, plain

HINT = 240  # sizes that vary are taken to be large, and to have many divisors
_LARGEST = 1 << 62

_READS = {
    "a value was read": "reads the value of a node, which has none before the graph is run",
    "calls backward": "calls backward on a node, which has no values: Graph.gradient gives the graph of "
    "gradients",
}
_RETOLD = (RuntimeError, ValueError, IndexError, TypeError)  # errors of ops
_WAYS = (
    "choose between values with kiln.where or kiln.graph.cond, loop with kiln.graph.while_loop or scan, "
    "or run the "
    "graph and look at what it gives"
)


class Overwritten(NamedTuple):
    """What a tensor of the program was before a call wrote into it."""

    operand: int  # the tensor
    value: int  # what was in it
    call: int
    name: str


class Definition(Recorder):
    """The steps that ops on placeholders have made."""

    def __init__(self) -> None:
        super().__init__("graph")
        self.name = "graph"
        self.may_raise = False
        self.names: dict[int, str] = {}  # of placeholders, by value
        self.dims: dict[tuple[str, int, int | None], Range] = {}  # sizes that vary, by name and bounds
        self.slots = 0
        self.placed: dict[int, int] = {}  # by id of its tensor: a placeholder's own value, written or not
        self.declared: dict[int, tuple[Any, ...]] = {}  # of placeholders, by value: sizes as they were given
        self.drawn_by: list[Expression] = []  # how many random numbers each op draws
        # of numbers that are positions: which draw, and how far behind its first; of a seed: (0, 0)
        self.places: list[tuple[int, int]] = []
        # what was asked of sizes: the lines
        self.asked_of_sizes: dict[tuple[Expression, str, Expression], set[str]] = {}
        self._counts: dict[int, Expression] = {}  # of draws, by position: how many in general
        self._last = (0, 0)  # the last draw before an op: from, to
        self._rewound = -1  # where the generator was before it
        self._inside = False
        self.calls: list[int] = []  # of each step: the number of the call of an op that it is of; 0: of none
        self.overwritten: dict[int, Overwritten] = {}  # by what is in it then: tensors that stay
        self._call = 0
        self._kept: dict[int, str] = {}  # by id: names of tensors that stay, in a call that writes them
        self.expected_at: list[str] = []  # the lines on which ops asked what `expected` holds

    def given(self, name: str, shape: tuple[Any, ...], dtype: Any) -> Traced:
        """A new operand; see `placeholder`."""
        given = [Dim(self._free(f"{name}_{d}")) if n is None else n for d, n in enumerate(shape)]
        given = [Dim(n) if isinstance(n, str) else n for n in given]
        sizes = tuple(map(self._size, given))
        like = _Like(sizes, dtype)
        made = self.during(lambda: self.stand_in(like, True, sizes))
        k = self.value(made)
        self.placed[id(made)] = k
        self.names[k], self.declared[k] = name, tuple(given)
        return Traced(made, self)

    def call_outside(self, op: Any, given: tuple[Any, ...], settings: tuple[Any, ...]) -> list[Any]:
        """A graph that is defined has a plan."""
        self.refuse(f"calls {op.name}, which NumPy and SciPy compute: no graph can")
        raise AssertionError

    def _size(self, given: Any) -> Expression:
        """The size of one dim: a number, or what stands for one that varies."""
        if not isinstance(given, Dim):
            return int(given)
        # (another graph's size of the same name may have other bounds)
        key = given.__name__, given.min or 0, given.max
        own = self.dims.get(key)
        if own is None:
            own = self.dims[key] = Range(given.__name__, given.min or 0, given.max)
            own.slot, self.slots = self.slots, self.slots + 1
            own.symbol = symbol(own.slot)
            most = _LARGEST if own.max is None else own.max
            own.hint = own.example = min(max(HINT, own.min), most)
            self.known.hints[own.slot] = own.hint
            self.known.names[own.slot] = own.name
            self.known.ranges[own.slot] = own.min, most
        return own.symbol * given.times + given.plus

    def _free(self, name: str) -> str:
        found, k = name, 1
        while any(found == key[0] for key in self.dims):
            found, k = f"{name}_{k}", k + 1
        return found

    # -- one op ---------------------------------------------------------------------------------------------

    def during(self, call: Callable[[], Any]) -> Any:
        """What a call of ops gives, which become steps: nothing computes."""
        if self._inside:
            return call()
        if is_traced():
            raise TracingError(
                f"{user_line()}: uses a node of a graph while a function is traced: give it to the function "
                "as an argument, or make the graph a part of the function, graph(x)"
            )
        self._inside = True
        self.number_steps(0)
        self._call += 1
        state = _core.random_state()
        self.random = state
        self.failure = None
        try:
            with without_values(self):
                result, _ = _core.trace(self, True, call, (), {}, ())
        except BaseException as error:
            if self.failure is not None:
                raise self.failure from None
            if isinstance(error, Exception) and type(error) in _RETOLD:
                raise self._told(error) from None
            raise
        finally:
            self._inside = False
            self.number_steps(self._call)
            drawn = _core.random_state()[1] - state[1]
            _core.set_random_state(state[0], state[1] if self._rewound < 0 else self._rewound)
            self._rewound = -1
            if drawn:
                self.drawn_by.append(self._counts.pop(state[1], drawn))
        return result

    def number_steps(self, call: int) -> None:
        """Says of which call the last steps are."""
        del self.calls[len(self.steps) :]
        self.calls += [call] * (len(self.steps) - len(self.calls))

    def keeping(self, call: Callable[[], Any], names: dict[int, str]) -> Any:
        """One call of ops that writes into tensors of the program: they are state of graphs."""
        before = self._kept
        self._kept = {**before, **names}
        try:
            return self.during(call)
        finally:
            self._kept = before

    def read(self, tensor: Any, for_others: bool) -> Any:
        """Tensors of the program have values, but for those that a call writes which each run does again."""
        if id(tensor) in self._kept:
            self.refuse("reads a value that is another one at each run")
        return super().read(tensor, for_others)

    def _written(self, target: Any, k: int, history: bool) -> None:
        if id(target) in self._kept:
            operand = self.operand_of(target)
            assert operand is not None
            name = self._kept[id(target)]
            self.overwritten[k] = Overwritten(operand, self.value(target), self._call, name)
        super()._written(target, k, history)

    def _argument(self, name: str, x: Any) -> Any:
        """Random numbers are drawn when the graph is run: seed and position are numbers that it is given."""
        if type(x) is not int or name not in ("seed", "position"):
            return super()._argument(name, x)
        seed, now = _core.random_state()
        if self.random[1] <= now and name == "seed":
            if x != seed:
                self.refuse(
                    "draws from a generator of its own: a graph draws from the default one at each run"
                )
            self._number_drawn("seed", 0, 0)
        elif self.random[1] <= x < now:  # drawn while ops are followed
            self._number_drawn("position", len(self.drawn_by), x - self.random[1])
        else:  # drawn just before the op was called
            first, end = self._last
            if x < now:
                first, end = self._last = x, now
                self.drawn_by.append(self._counts.pop(first, end - first))
                self._rewound = x
            if not first <= x < end:
                self.refuse(
                    "draws from a generator of its own: a graph draws from the default one at each run"
                )
            self._number_drawn("position", len(self.drawn_by) - 1, x - first)
        return "operand", len(self.numbers) - 1

    def _number_drawn(self, kind: str, which: int, offset: int) -> None:
        self.numbers.append((kind, offset))
        self.places.append((which, offset))
        self.letters += "i"

    def draws(self, count: Expression, take: Callable[[int], tuple[int, int]]) -> tuple[int, int]:
        """(seed, position) of as many random numbers as a size that varies says."""
        seed, position = take(self.known.value_of(plain(count)))
        self._counts[position] = plain(count)
        return seed, position

    def wrapped(self, result: Any) -> Any:
        """Every tensor is a node."""
        if isinstance(result, (tuple, list)):
            return type(result)([self.wrapped(y) for y in result])
        if type(result) is _core.Tensor:
            self._shapes_of[id(result)] = self.shape_of(result)
            return Traced(result, self)
        return result

    def expect(self, holds: Any, kind: type[Exception], text: str) -> None:
        """What an op asks of values: graphs that have steps of this line raise where it does not hold."""
        super().expect(holds, kind, text)
        self.expected_at.append(user_line())

    # -- what is asked of sizes and values -----------------------------------------------------------------

    def text_of(self, tensor: Any) -> str:
        return f"node {self.look_text(tensor)}"

    def ask(self, tensor: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """A value is asked for, and there is none."""
        told = f"{name.strip('_')}()"
        raise self._refused(
            f"{told} reads the value of a node ({self.look_text(tensor)}), which has none before the "
            f"graph is run; "
            f"{_WAYS}"
        )

    def asked(self, tensor: Any, what: str, frame: Any = None) -> None:
        """Nodes have no gradients (those of a graph are a graph), and lie in order."""

    def asked_mode(self, what: str, answer: Any) -> Any:
        """A graph is defined once, by what is asked then."""
        return answer

    def _refused(self, what: str, kind: Any = TracingError, line: str = "") -> Any:
        self.failure = kind(f"{line or user_line()}: {what}")
        return self.failure

    def refuse(self, what: str, line: str = "") -> NoReturn:
        raise self._refused(_READS.get(what, what), line=line)

    def _expect_buffer(self, storage: int) -> None:
        whole = self._on[storage][0]
        if id(whole) in self._kept and not whole.requires_grad:
            return
        self.refuse(
            "writes into a tensor of the program, which the graph would have to do at each run: write "
            "into a copy, "
            "x = x.clone() of a node, or make the graph of a function, kiln.graph.from_function"
        )

    def look_text(self, tensor: Any) -> str:
        """`float32[n, 3]`"""
        sizes = [self.known.text(n).replace(" + -", " - ") for n in self.shape_of(tensor)]
        return f"{tensor.dtype.name}[{', '.join(sizes)}]"

    def _tie(self, a: Expression, b: Expression, what: str) -> None:
        """An op asks that sizes be equal: checked at each run of a graph that has it, if both may vary."""
        work = self.known.work  # which is not to take them for equal in what another graph may have
        work.checks.clear()
        work.equal = Equalities()
        if self.known.value_of(a) != self.known.value_of(b):
            self.refuse(f"{what} needs {self.known.text(a)} to equal {self.known.text(b)}")
        if isinstance(a, int) or isinstance(b, int):
            n, size = (a, b) if isinstance(a, int) else (b, a)
            self.refuse(
                f"{what} needs {self.known.text(size)} to be {n}: declare {self.known.fixed_names(size)} so"
            )
        self._ask(a, "==", b, user_line())

    def _ask(self, left: Expression, sign: str, right: Expression, line: str) -> bool:
        """The answer for the sizes that ops are followed with, checked at each run; "": of all graphs."""
        self.asked_of_sizes.setdefault((left, sign, right), set()).add(line)
        return self.known.guard(left, sign, right, line or user_line())

    def decide(self, left: Expression, sign: str, right: Expression, holds: Any, own: bool) -> bool:
        """A comparison of sizes; what is asked by an op of kiln's is checked at each run."""
        known = self.known.known(left, sign, right)
        if known is not None:
            return known
        if self.script is not None and not own:
            return self.script.asked(self, left, sign, right)  # type: ignore[no-any-return]
        answer = self._ask(left, sign, right, user_line() if own else "")
        if not own and (answer if sign == "==" else not answer if sign == "!=" else False):
            raise self.size_read(
                left - right, f"asks whether {self.known.text(left)} {sign} {self.known.text(right)}"
            )
        return answer

    def fix(self, dim: Expression, what: str) -> int:
        raise self.size_read(dim, f"has the size {self.known.text(dim)} {what}")

    def shown(self, dim: Expression, own: bool) -> str:
        return self.known.text(dim).replace(" + -", " - ")  # nothing runs that could keep it

    def size_read(self, dim: Expression, what: str) -> Any:
        names = self.known.fixed_names(dim)
        declare = f"declare {names} as a number" if names else "declare them as numbers"
        return self._refused(
            f"{what}, which is not known before the graph is run: {declare}, or compute with sizes as "
            f"they are "
            "(arange, full, reshape and slices take them) and with whole tensors (kiln.graph.map and scan "
            "go along "
            "a dim)"
        )

    def _told(self, error: Exception) -> Exception:
        """An error of an op, with the sizes as they were declared."""
        nodes = [x for x in (self.pending or (None, ()))[1] if type(x) is Traced]
        if not any(self.value(x.whole) in self.shapes for x in nodes):
            return error
        looks = " and ".join(self.look_text(x.whole) for x in nodes)
        slots = sorted(
            {s for x in nodes for n in self.shape_of(x.whole) if isinstance(n, Size) for s in slots_named(n)}
        )
        taken = " and ".join(f"{self.known.names[s]} is taken to be {self.known.hints[s]}" for s in slots)
        return type(error)(f"{error}\n(of {looks}; while the graph is built {taken})")


class _Like(NamedTuple):
    """What a stand-in looks like."""

    shape: Shape
    dtype: Any
    requires_grad: bool = False


class _Current(_local):
    """Of a thread: the definition that its placeholders are of, as long as one of them is alive."""

    def __init__(self) -> None:
        self.definition: Any = lambda: None


_current = _Current()


@_core.Function
def placeholder(name: str, shape: Any = (), dtype: Any = None) -> Any:
    """A node of a graph that is given when the graph is run: a tensor without values.

    Ops, methods and operators of tensors take it, and give nodes: nothing is computed, shapes and dtypes are
    known at once, and errors of shapes are raised where the node is made. `kiln.graph.Graph(inputs, outputs)`
    makes a graph of nodes.

    `shape`: sizes, each a number, None (any), a name (the same name is the same size) or a
    `kiln.export.Dim`, which has bounds. `dtype`: float32 if None. ValueError for a name that is none.

    >>> import kiln
    >>> x = kiln.graph.placeholder("x", ("n", 3))
    >>> (x @ kiln.ones(3, 2)).relu()
    node float32[n, 2]
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(message("placeholder", "a name as variables have", repr(name)))
    if isinstance(shape, (int, str, Dim)) or shape is None:
        shape = (shape,)
    for d, n in enumerate(shape):
        ok = (
            n is None
            or isinstance(n, (str, Dim))
            or (isinstance(n, int) and not isinstance(n, bool) and n >= 0)
        )
        if not ok or (isinstance(n, str) and not n.isidentifier()):
            raise ValueError(
                message("placeholder", "sizes: numbers, None, names or Dim", f"{n!r} for dim {d}")
            )
    dtype = getattr(_core, _core.default_dtype_name()) if dtype is None else dtype
    if not isinstance(dtype, _core.dtype):
        raise TypeError(message("placeholder", "a dtype", describe(dtype)))
    definition = _current.definition()
    if definition is None:
        definition = Definition()
        _current.definition = weakref.ref(definition)
    return definition.given(name, tuple(shape), dtype)
