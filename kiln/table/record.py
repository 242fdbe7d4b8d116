"""One record per op, and the decorators that make it.

A record is everything kiln knows about an op: its mathematics, its derivative, its reference, its
samples. From it come the eager kernel, the fused kernel, both derivatives, docs and tests.

Parameters are declared by annotation; the core binds calls to them:

    Tensor      an array                             Tensor | None   an array or nothing
    Tensors     a list of arrays (one such parameter at most, the first)
    Operand     an array or a number that broadcasts (pointwise ops)
    Number      a run-time number, never part of a key (an eps, a learning rate)
    Structure   part of the key: a dim, a flag, a dtype, a string
    Sizes       run-time integers, one or many (`reshape(x, 2, 3)` or `reshape(x, (2, 3))`)

Four kinds of body:
    pointwise   scalar mathematics on `Scalar`s: one op of the graph
    primitive   no body: a closed kind whose loops codegen knows (reduce, matmul, view, ...)
    layer       a plain function over other ops, which says what a kernel of its own computes
    composite   a plain function over other ops; its derivative follows from theirs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

from kiln import _core
from kiln.graph import graph as g
from kiln.graph.size import Size
from kiln.scalars.scalar import Scalar
from kiln.table import kinds, registry
from kiln.table.meanings import LETTERS
from kiln.tuples import NamedTuple

# For annotations in the table: what matters to the record is the name.
Tensor = Any
Tensors = Any
Operand = Any
Number = Any
Structure = Any
Sizes = Any

_LETTER_OF = {meaning.annotation: letter for letter, meaning in LETTERS.items()}

REQUIRED = _core.REQUIRED

# PyTorch's other names of arguments, as NumPy has them.
ALIASES = {
    "axis": "dim", "keepdims": "keepdim", "x": "input", "x1": "input", "a": "input", "x2": "other",
}  # fmt: skip


class Param(NamedTuple):
    """A parameter of an op: `kind` is one of the letters T L O V N S Z."""

    name: str
    kind: str
    default: Any


class Sample(NamedTuple):
    """One call of an op for tests: positional arguments (NumPy arrays stand for tensors) and keywords."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}


class Failure(NamedTuple):
    """One call that must raise `error` with a message that matches `match`."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    error: type[Exception]
    match: str


class IndexCheck(NamedTuple):
    """What values of an index are right; the core scans them on the line of the call.

    Every value i of the parameter `positions` must satisfy 0 <= i < size, or -size <= i < size if `negative`;
    values equal to the number parameter `ignore` are skipped. The size is that of dim `dim` of the parameter
    `source`: `dim` is a number, the name of a structure parameter, or "class" (dim 1, or 0 of a vector).
    Else `error` is raised with
    `message`, in which {index}, {dim} and {size} stand for the first wrong value and its bound.
    """

    positions: str
    source: str
    dim: int | str
    error: type[Exception]
    message: str
    negative: bool = False
    ignore: str = ""
    along: int = 0  # what is added to a dim that is counted from the front: a batch comes before it


Samples = Callable[[Any, str], "list[Sample]"]


class Tests(NamedTuple):
    """What tests must know of an entry besides its samples; most need nothing.

    peer           the path of PyTorch's function below `torch`, where that of the same name is another one;
                   None: it has none that takes the same arguments
    rough_peer     PyTorch's own errors in float64 are beyond what float64 is compared with: of its "values"
                   and derivatives, or of its second "derivatives" alone
    peer_gradient  False: PyTorch differentiates it not at all, or not by all it is given
    history        how the history of its gradient differs from PyTorch's
    keeps_less     what PyTorch keeps for its derivative and kiln computes or reads again, so that backward
                   raises where an argument or a result was overwritten and PyTorch's does not
    rounding       how many times one rounding of its result the float32 body may be from its reference, which
                   is plain float64: more than one where values cancel
    kinks          the arguments of a call (of the numpy module, in float64) at kinks, poles and limits, where
                   values and subgradients are PyTorch's
    steps          it changes by steps: differences see the jumps, its derivative is 0 between
    straight_through  its derivative is on purpose not that of its values: gradients pass through its steps
    underived      by its first argument it has no derivative: asked for one, it raises
    regular        its matrices may not be singular, as one is whose last column is repeated
    sees_layout    its result depends on how its argument lies in memory, as PyTorch's does
    tile_order     in bfloat16 its sums have another order on machines with tiles, and nothing rounds it away
    """

    peer: str | None = ""
    rough_peer: str = ""
    peer_gradient: bool = True
    history: str = ""
    keeps_less: str = ""
    rounding: float = 1.0
    kinks: Callable[[Any], tuple[Any, ...]] | None = None
    steps: bool = False
    straight_through: bool = False
    underived: bool = False
    regular: bool = False
    sees_layout: bool = False
    tile_order: bool = False


NOTHING_MORE = Tests()

# While functions are mapped (kiln.func) calls of ops are offered to these first: op, args, kwargs -> the
# result, or NotImplemented.
INTERPRETERS: list[Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = []


class Op:
    """One operation; see the module's text. Calling it works on tensors, on graph values and on scalars."""

    __slots__ = (
        "algorithm", "at_once", "body", "checks", "differentiable", "differs", "divides", "doc", "dtypes",
        "explain", "failures", "gives_positions", "gradient", "handle", "identity", "inplace",
        "inplace_function", "kind", "method", "name", "native", "onnx", "params", "public", "reference",
        "results", "rule", "samples", "shapes", "tests",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kind: str,
        params: tuple[Param, ...],
        body: Callable[..., Any] | None,
        rule: str = "promote",
        listed: bool = True,
        native: str = "",
    ) -> None:
        assert all(p.kind != "N" or p.default is not None for p in params), (
            f"{name}: a number is always there"
        )
        self.name = name
        # what plans are kept under: its name where kiln's own source says what that does, else nothing
        own = body is None or body.__module__.startswith("kiln.ops.")
        self.identity: str | None = name if own else None
        self.kind = kind
        self.params = params
        self.body = body
        self.rule = rule
        self.algorithm = ""  # of the kinds that have several: which
        self.shapes: kinds.Rule | None = None  # of a layer
        self.doc = (body.__doc__ or "") if body is not None else ""
        self.gradient: Callable[..., Any] | None = None
        self.differentiable = True
        self.at_once = False  # made of numbers alone, to be looked at: run on its line, not recorded
        self.differs = ""  # from PyTorch's, on purpose or by necessity: a phrase for the page of ops
        self.divides = False  # integers by its second operand: the core raises on the line if that is 0
        self.reference: Callable[..., Any] | None = None
        self.samples: Samples | None = None
        self.failures: Callable[[], list[Failure]] | None = None
        self.dtypes = "float"  # what samples may be drawn in: "float" | "numeric" | "integral" | "all"
        self.onnx = ""
        self.public = True  # a function of kiln's namespace
        self.method = True  # a method of Tensor, if public
        self.inplace = False  # has an in-place form `name_`
        self.inplace_function = False  # which is a function too, though it needs more than the tensor
        self.results: dict[int, Op] = {}
        self.tests = NOTHING_MORE
        self.checks: IndexCheck | None = None
        self.gives_positions = False  # along `dim` (None: in the flat array): they need no check there
        self.explain: Callable[..., Exception | None] | None = None
        self.native = native or kind  # what the core knows it as
        self.handle = _core.Op(name, self.native, params, self)
        if listed:
            registry.OPS[name] = self

    @property
    def function(self) -> Callable[..., Any]:
        """The public callable: the core's, so that a call on tensors stays in C++."""
        return self.handle

    @property
    def signature(self) -> str:
        """The parameters, as `inspect.signature` and `help` read them."""
        shown = [p.name if p.default is REQUIRED else f"{p.name}={p.default!r}" for p in self.params]
        return f"({', '.join(shown)}, *, out=None)"

    @property
    def signature_in_place(self) -> str:
        """The same for its in-place form."""
        return self.signature.replace(", *, out=None", "")

    @property
    def doc_in_place(self) -> str:
        """What its in-place form says of itself."""
        return in_place_doc(self.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.handle(*args, **kwargs)

    def derivative(self, gradient: Callable[..., Any]) -> Op:
        """Sets the derivative: a function of g (the output's gradient), of inputs and y by name, and of
        structure.
        """
        self.gradient = gradient
        return self

    def infer(
        self, graph: g.Graph, inputs: tuple[g.Value, ...], attrs: tuple[Any, ...]
    ) -> tuple[str, g.Shape]:
        """The dtype and shape of op(inputs; attrs); of a composite those its body gives."""
        if self.kind != "composite":
            return kinds.INFER[self.kind](self, graph, inputs, attrs)
        assert self.body is not None
        known, count = self.known(inputs, attrs), len(graph.nodes)
        with g.building(graph):  # (a body may have no arrays)
            result = self.body(*(known[param.name] for param in self.params))
        del graph.nodes[count:]
        return result.dtype, result.shape

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call on graph values or scalars (the core calls this when an argument is neither tensor nor
        number).
        """
        for interpret in INTERPRETERS:
            result = interpret(self, args, kwargs)
            if result is not NotImplemented:
                return result
        bound = self.bind(args, kwargs)
        if self.kind == "pointwise" and any(isinstance(a, Scalar) for a in bound):
            return self.apply_scalars(bound)
        if self.kind != "composite" or (self.gradient is not None and self.graph_of(bound).calls):
            return self.add_node(bound)
        assert self.body is not None
        return self.body(*self.lifted(bound))

    def lifted(self, bound: list[Any]) -> list[Any]:
        """The arguments of a composite's body: a Python number where an array or number belongs becomes a
        constant, and True as a number 1, which bodies may subtract from.
        """

        def lift(kind: str, a: Any) -> Any:
            if kind in "TVN" and isinstance(a, (int, float, Size)):
                return constant(self.graph_of(bound), a)
            is_flag = kind == "N" and isinstance(a, g.Value) and a.weak and a.dtype == "bool"
            return a + 0 if is_flag else a

        return [lift(p.kind, a) for p, a in zip(self.params, bound)]

    def result(self, which: int) -> Op:
        """One of several results as an op of its own, "unbind__2": nodes have one output."""
        found = self.results.get(which)
        if found is None:
            found = self.results.setdefault(which, _result_of(self, which))
        return found

    def graph_of(self, bound: list[Any]) -> g.Graph:
        """The graph the arguments belong to; without arrays the one under construction."""
        arrays = [*bound, *(bound[0] if bound and isinstance(bound[0], (list, tuple)) else ())]
        return next((a.graph for a in arrays if isinstance(a, g.Value)), None) or g.current()

    def own_name(self, name: str) -> str | None:
        """The parameter that a keyword which is none means (`dim` by `axis`), if there is one."""
        own = ALIASES.get(name)
        return own if any(p.name == own for p in self.params) else None

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The arguments in parameter order, defaults filled in; TypeError for a missing or unknown one."""
        names = [p.name for p in self.params]
        kwargs = {k if k in names else self.own_name(k) or k: v for k, v in kwargs.items()}
        if self.params and self.params[-1].kind == "Z" and len(args) > len(self.params):
            args = (*args[: len(self.params) - 1], args[len(self.params) - 1 :])
        if len(args) > len(self.params):
            raise TypeError(f"{self.name}: takes {len(self.params)} arguments, got {len(args)}")
        bound = list(args)
        for param in self.params[len(args) :]:
            value = kwargs.get(param.name, param.default)
            if value is REQUIRED:
                raise TypeError(f"{self.name}: missing argument '{param.name}'")
            bound.append(value)
        unknown = kwargs.keys() - {p.name for p in self.params[len(args) :]}
        if unknown:
            raise TypeError(f"{self.name}: unexpected or repeated argument '{min(unknown)}'")
        return bound

    def add_node(self, bound: list[Any]) -> g.Value:
        """Adds op to the graph the arguments belong to."""
        graph = self.graph_of(bound)
        inputs: list[g.Value] = []
        attrs: list[Any] = []
        for param, value in zip(self.params, bound):
            if param.kind in "TVN":
                inputs.append(value if isinstance(value, g.Value) else constant(graph, value))
            elif param.kind == "L":
                inputs += value
            elif param.kind == "O":
                inputs += [] if value is None else [value]
            elif param.kind == "Z":
                attrs.append(tuple(value) if isinstance(value, (tuple, list)) else (value,))
            else:
                value = _core.plain(value)  # as the core has it
                attrs.append(tuple(value) if isinstance(value, list) else value)
        return graph.add(self, tuple(inputs), tuple(attrs))

    def apply_scalars(self, bound: list[Any]) -> Scalar:
        """The body on scalars: a pointwise op used inside another's body."""
        assert self.body is not None
        result: Scalar = self.body(*bound)
        return result

    def known(self, inputs: tuple[Any, ...], attrs: tuple[Any, ...]) -> dict[str, Any]:
        """The arguments of a node by their parameters' names."""
        known: dict[str, Any] = {}
        arrays, structure = iter(inputs), iter(attrs)
        optional = len(inputs) - sum(param.kind in "TVN" for param in self.params)  # that are there
        for param in self.params:
            if param.kind == "L":
                known[param.name] = inputs
            elif param.kind == "O" and optional <= 0:
                known[param.name] = None
            else:
                optional -= param.kind == "O"
                known[param.name] = next(structure) if param.kind in "SZ" else next(arrays, None)
        return known

    def gradients(
        self,
        grads: tuple[Any, ...],
        inputs: tuple[Any, ...],
        outputs: tuple[Any, ...],
        attrs: tuple[Any, ...],
    ) -> tuple[Any, ...]:
        """One gradient (or None) per input, by the op's derivative, each of its input's dtype.

        A pointwise op's rule has its operands in the dtypes that the op has them in. A rule runs in float32
        where a pointwise op or a composite is in float16 or bfloat16: one rounding at its end.
        """
        assert self.gradient is not None, f"{self.name} has no derivative"
        wanted = [v.dtype for v in inputs]
        if self.kind == "pointwise":
            dtypes = kinds.operand_dtypes(self, inputs, attrs)[0]
            inputs = tuple(v if v.weak else _as(v, d) for v, d in zip(inputs, dtypes))
        if self.kind in ("pointwise", "composite"):
            grads, inputs, outputs = (tuple(map(_wide, vs)) for vs in (grads, inputs, outputs))
        known = self.known(inputs, attrs)
        known.update(g=grads[0], y=outputs[0], gs=grads, ys=outputs)
        code = self.gradient.__code__
        names = code.co_varnames[: code.co_argcount]
        result = self.gradient(*(known[name] for name in names))
        results = result if isinstance(result, tuple) else (result,)
        return tuple(_as(r, d) for r, d in zip(results, wanted))


def _result_of(op: Op, which: int) -> Op:
    def body(*args: Any) -> Any:
        assert op.body is not None
        return op.body(*args)[which]

    made = Op(f"{op.name}__{which}", "composite", op.params, body, listed=False)
    made.identity = None if op.identity is None else made.name
    made.public = False
    return made


def in_place_doc(name: str) -> str:
    """The text of the in-place form of an op or a function."""
    return f"`{name}` with its result written into the tensor, which is returned."


def _as(x: Any, dtype: str) -> Any:
    """A gradient in a float dtype; None and what already has it stay."""
    return (
        x
        if x is None or x.dtype == dtype or dtype not in kinds.FLOATS
        else x.graph.add(find("convert"), (x,), (dtype,))
    )


def _wide(x: Any) -> Any:
    """A float16 or bfloat16 value as float32; others stay."""
    return _as(x, "float32") if x is not None and x.dtype in ("float16", "bfloat16") else x


def constant(graph: g.Graph, value: Union[int, float, bool, Size]) -> g.Value:
    """A literal of a body, or a size, as a value of the graph: part of its structure."""
    out = graph.add(CONSTANT, (), (value,))
    out.weak = True
    return out


def params_of(function: Callable[..., Any]) -> tuple[Param, ...]:
    """The parameters of a function by its annotations."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    defaults = function.__defaults__ or ()
    given = dict(zip(names[code.co_argcount - len(defaults) : code.co_argcount], defaults))
    given.update(function.__kwdefaults__ or {})
    kinds_ = function.__annotations__
    return tuple(Param(n, _LETTER_OF[kinds_[n]], given.get(n, REQUIRED)) for n in names)


def _finish(op: Op, settings: dict[str, Any]) -> Op:
    for key, value in settings.items():
        setattr(op, key, value)
    if op.public:
        written = op.handle.form(None, True) if op.inplace else None
        registry.register(op.name, op.handle, op.method, not op.method, written, op.inplace_function)
    return op


def pointwise(rule: str = "promote", **settings: Any) -> Callable[[Callable[..., Any]], Op]:
    """Makes a pointwise op of a scalar body. `rule` says what its operands and result are (see
    kinds.RULES).
    """

    def make(body: Callable[..., Any]) -> Op:
        return _finish(Op(body.__name__.rstrip("_"), "pointwise", params_of(body), body, rule), settings)

    return make


def primitive(kind: str, **settings: Any) -> Callable[[Callable[..., Any]], Op]:
    """Makes a primitive of a closed `kind`; the function's signature declares its parameters, its
    docstring its meaning.
    """

    def make(signature: Callable[..., Any]) -> Op:
        op = Op(signature.__name__.rstrip("_"), kind, params_of(signature), None)
        op.doc = signature.__doc__ or ""
        return _finish(op, settings)

    return make


def layer(algorithm: str, shapes: kinds.Rule, **settings: Any) -> Callable[[Callable[..., Any]], Op]:
    """Makes an op that has a kernel of its own, `algorithm`. The body says what that computes, in other ops,
    for arrays whose sizes are numbers; `shapes` gives dtype and shape for any.
    """

    def make(body: Callable[..., Any]) -> Op:
        op = Op(body.__name__.rstrip("_"), "layer", params_of(body), body)
        op.algorithm, op.shapes = algorithm, shapes
        return _finish(op, settings)

    return make


def composite(native: str = "", **settings: Any) -> Callable[[Callable[..., Any]], Op]:
    """Makes an op of a plain function over other ops. `native`: what the core knows it as, and computes by
    itself.
    """

    def make(body: Callable[..., Any]) -> Op:
        name = body.__name__.rstrip("_")
        return _finish(Op(name, "composite", params_of(body), body, native=native), settings)

    return make


def table() -> list[Op]:
    """Every op of the table, in the order of its definition; all families are imported for it. Without those
    that call graphs (`CONTROL`, capture/called.py, and `ONCE`) and of programs alone (ops/linalg/called.py).
    """
    registry.everything()
    apart = ("called", "once")
    return [x for x in registry.OPS.values() if x.kind not in ("control", "called") and x.name not in apart]


def find(name: str) -> Op:
    """The op called `name`, or "name__2" for one of its results. KeyError if there is none."""
    whole, _, which = name.rpartition("__")
    if whole and which.isdigit():
        return find(whole).result(int(which))
    op: Op = registry.op(name)
    return op


CONSTANT = Op("constant", "constant", (Param("value", "S", REQUIRED),), None)
CONSTANT.public = False

# Control flow (graph/control.py): what a node of each name calls, its attributes say.
CONTROL = {
    name: Op(
        name,
        "control",
        (
            Param("operands", "L", REQUIRED),
            *(Param(k, "S", REQUIRED) for k in ("which", "counts", "steps", "sizes", "graphs")),
        ),
        None,
    )
    for name in ("cond", "while_loop", "scan", "counted", "custom")
}
for _op in CONTROL.values():
    _op.public = False


def _never(g: Any) -> Any:
    raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")


# A gradient that has no derivative: of a function that was marked with @once_differentiable.
ONCE = Op("once", "pointwise", (Param("x", "T", REQUIRED),), lambda x: x)
ONCE.identity = "once"
ONCE.public = False
ONCE.derivative(_never)
