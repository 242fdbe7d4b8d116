"""The graph: text that reads back, rules that are checked, and the interpreter against plain NumPy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_runner import describe, same_bits, trace

import kiln
from kiln import ops
from kiln.capture import regions
from kiln.graph.equal import Equalities
from kiln.graph.graph import Graph, Node, Value
from kiln.graph.interpret import fold, interpret
from kiln.graph.size import evaluate, quotient, single_slot, symbol
from kiln.graph.slots import array_input, first_slots
from kiln.graph.text import TextError, attr_text, dim_text, parse, text
from kiln.graph.verify import VerifyError, verify
from kiln.table.record import find

MATRIX = ("float32", (False, False))
VECTOR = ("float32", (False,))

PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "add": (lambda a, b: a + b, (MATRIX, MATRIX)),
    "numbers": (lambda a, n, k: a * n + k, (MATRIX, "float64", "int64")),
    "literals": (lambda a: a * -0.0 + float("inf") * 2 + 0.1, (MATRIX,)),
    "broadcast": (lambda a, b: ops.where(a > b, a, 0), (MATRIX, VECTOR)),
    "softmax": (lambda a: ops.softmax(a, 1), (MATRIX,)),
    "views": (lambda a: a.permute(1, 0).reshape(-1).expand(3, a.shape[0] * a.shape[1]), (MATRIX,)),
    "product": (lambda a, b: a @ b, (MATRIX, MATRIX)),
    "mean": (lambda a: a.mean(), (MATRIX,)),
    "concat": (lambda a, b: ops.cat([a, b], 1), (MATRIX, MATRIX)),
    "argmax": (lambda a: a.argmax(0), (MATRIX,)),
    "strided": (lambda a: a + 1, (("float32", (False, True, False), True),)),
    "cast": (lambda a: find("convert")(a, "bfloat16"), (MATRIX,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_reads_back(name: str) -> None:
    """The graph a text describes has the same text, and keeps every rule."""
    function, specs = PROGRAMS[name]
    graph = verify(trace(function, *specs))
    written = text(graph)
    again = parse(written, find)
    assert text(verify(again)) == written
    assert [v.dtype for v in again.outputs] == [v.dtype for v in graph.outputs]


def test_text_is_canonical() -> None:
    """Sizes are written in one order, whenever they were made."""
    a, b = symbol(901), symbol(900)
    assert dim_text(a * b + b * 3 + 7) == "s900*s901 + 3*s900 + 7"
    assert dim_text(quotient(a + 3, b)) == "div(s901 + 3, s900)"
    assert dim_text(a - b) == dim_text(0 - b + a)


def test_updates_are_text() -> None:
    """An update is written and read."""
    graph = trace(lambda a: a + 1, MATRIX)
    graph.updates[0] = 0
    written = text(verify(graph))
    assert "update 0 -> 0" in written
    assert parse(written, find).updates == {0: 0}


SOUND = """graph 4
%0 = input float32[s0, s1]
%1 = input float32[s0, s1]
%2 = add(%0, %1): float32[s0, s1]
check s2 == s0
check s3 == s1
return %2
"""


def test_sound_text() -> None:
    """What the damaged texts below are made from."""
    assert text(parse(SOUND, find)) == SOUND


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("graph 4\n", "grape 4\n", "line 1: expected 'graph'"),
        ("graph 4\n", "graph 99999999999\n", "line 1: expected 'graph'"),
        ("%2 = add", "%3 = add", "line 4: expected %2, got %3"),
        ("%0, %1)", "%0, %7)", "%7 is used before it is defined"),
        ("%0, %1)", "%0, %2)", "%2 is used before it is defined"),
        ("add(", "sdd(", "no op is called 'sdd'"),
        ("): float32", "): float64", "says float64[s0, s1], but add gives float32[s0, s1]"),
        ("float32[s0, s1]\n%1", "float33[s0, s1]\n%1", "no dtype 'float33'"),
        ("s2 == s0", "s4 == s0", "there is no slot 4"),
        ("return %2\n", "", "no 'return'"),
        ("return %2\n", "return %2\nreturn %2\n", "a line after 'return'"),
        ("return %2", "return %9", "%9 is used before"),
        ("add(%0, %1)", "add(%0, %1", "expected"),
        ("add(%0, %1)", "add(%0; %1)", "expected"),
        ("%1 = input float32[s0, s1]", "%1 = input float32[s0, -1]", "negative size"),
        ("%1 = input float32[s0, s1]", "%1 = input float32[s0, 99999999999999999999]", "out of range"),
        ("%1 = input float32[s0, s1]", "%1 = number float64 s9", "there is no slot 9"),
        ("%1 = input float32[s0, s1]", "%1 = number float32 s1", "no dtype 'float32' here"),
        ("check s3 == s1", "check div(1, 0) == s1", "division by zero"),
        ("check s3 == s1", "check 3 == 4", "differ"),
        ("check s3 == s1", "check " + "div(" * 99 + "s1", "nested too deeply"),
        ("return %2", "update 3 -> 0\nreturn %2", "names no output or input"),
        ("return %2", "%3 = input float32[s0]\nreturn %2", "an input after a node"),
        ("add", "add\x00", "unexpected"),
        ("add(%0, %1)", "add(%0)", "add does not take 1 values"),
    ],
)
def test_damaged_text(old: str, new: str, message: str) -> None:
    """A clear error for whatever is not a right graph."""
    assert old in SOUND
    with pytest.raises(TextError, match=re.escape(message)):
        parse(SOUND.replace(old, new, 1), find)


@settings(max_examples=150)
@given(st.integers(0, len(SOUND) - 1), st.sampled_from(list('%s019,();:="[]+*-.\n\x00a ')))
def test_damaged_byte(place: int, byte: str) -> None:
    """Any one character exchanged: a right graph or a TextError, nothing else."""
    try:
        verify(parse(SOUND[:place] + byte + SOUND[place + 1 :], find))
    except TextError:
        pass


def test_strange_attributes_are_refused() -> None:
    """Attributes are structure only."""
    with pytest.raises(TypeError, match="attribute of type object"):
        attr_text(object())
    assert attr_text((1, (2.5, None), 'a"\n', True, float("nan"))) == '(1, (2.5, none), "a\\"\\n", true, nan)'


def _broken(change: Any) -> None:
    graph = trace(lambda a, b: a * b + 1, MATRIX, MATRIX)
    verify(graph)
    change(graph)
    verify(graph)


def _foreign(graph: Graph) -> None:
    graph.nodes[0].inputs = (Value(Graph(), None, "float32", (2,)), graph.inputs[1])


def _dtype(graph: Graph) -> None:
    graph.nodes[0].out.dtype = "float64"


def _order(graph: Graph) -> None:
    graph.nodes.reverse()


def _attribute(graph: Graph) -> None:
    graph.nodes[1].attrs = ([],)


def _check(graph: Graph) -> None:
    graph.checks.clear()
    graph.equal = Equalities()
    graph.inputs[1].shape = (symbol(2), symbol(3))


def _slots(graph: Graph) -> None:
    graph.slots -= 1


def _size(graph: Graph) -> None:
    graph.inputs[0].shape = (symbol(77), symbol(1))


def _update(graph: Graph) -> None:
    graph.updates[0] = 5


def _output(graph: Graph) -> None:
    graph.outputs.append(Value(graph, None, "float32", ()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_foreign, "reads a value that no earlier line"),
        (_dtype, "says float64"),
        (_order, "reads a value that no earlier line"),
        (_attribute, "attribute of type list"),
        (_check, "which the graph does not check"),
        (_slots, "slots"),
        (_size, "a slot the graph does not have"),
        (_update, "update 0 -> 5: out of range"),
        (_output, "output 1: no value of this graph"),
    ],
)
def test_verifier(change: Any, message: str) -> None:
    """Every rule is noticed when it is broken."""
    with pytest.raises(VerifyError, match=re.escape(message)):
        _broken(change)


def test_weak_values() -> None:
    """Arithmetic on numbers alone stays a number; a cast makes an array of it."""
    graph = trace(lambda a, n: (a * (n + 1), find("convert")(n, "float32")), MATRIX, "float64")
    sums = [n for n in graph.nodes if n.op.name == "add"]
    assert [n.out.weak for n in sums] == [True]
    assert not graph.outputs[1].weak
    assert graph.outputs[0].dtype == "float32"


ACTUAL = {0: 2, 1: 3, 2: 6, 3: 1, 4: 12, 5: 2, 6: 0}
DIMS = [symbol(k) for k in ACTUAL]
DIMS += [1, 6, *(a * b for a in DIMS[:6] for b in DIMS[:6]), quotient(DIMS[0] * DIMS[1] * DIMS[2], 3)]
DIMS += [a * b + c for a, b, c in zip(DIMS[:6], DIMS[1:7], DIMS[3:])] + [
    DIMS[0] * DIMS[4] + 2 * DIMS[2] * DIMS[5]
]
DIMS += [
    DIMS[1] * DIMS[5] * 2 + DIMS[2],
    DIMS[0] * DIMS[1] * DIMS[4] - DIMS[4],
    quotient(DIMS[4] + DIMS[2], 5),
]
DIMS += [3 * quotient(DIMS[0] * DIMS[1] * DIMS[2], 3), DIMS[0] * DIMS[1] * DIMS[2], DIMS[6] * DIMS[0]]


def test_composites_as_calls_are_one_graph_s() -> None:
    """What one graph holds as calls is taken apart in another that is built meanwhile."""
    whole, apart = Graph(), Graph()
    whole.calls = True
    kinds = []
    for graph in (whole, apart):
        x = array_input(graph, "float32", (False, False))
        ops.softmax(x, 1)
        kinds.append([node.op.name for node in graph.nodes])
    assert kinds[0] == ["softmax"] and "softmax" not in kinds[1]


def test_quotients_and_multiples_that_are_equal() -> None:
    """Known wherever they occur: a quotient, and what is left of a multiple."""
    graph = Graph()
    a, b, c, d = (graph.new_symbol() for _ in range(4))
    graph.require_equal(quotient(a - 3, 2) + 1, 1, "a test")
    assert graph.canonical(b * quotient(a - 3, 2) * 5 + b) == b
    graph.require_equal(2 * c, 2 * d, "a test")
    assert graph.same(a * c + c, a * d + d)
    graph.require_equal(6 * b, 12, "a test")
    assert graph.canonical(b * a) == 2 * graph.canonical(a)
    again = Graph()
    x, y = again.new_symbol(), again.new_symbol()
    again.require_equal(
        quotient(x, 2), quotient(quotient(x, 2) + 1, y), "a test"
    )  # names itself: stays whole
    assert again.canonical(x) == x and again.canonical(quotient(x, 2) * y) == quotient(x, 2) * y


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(DIMS), st.sampled_from(DIMS)), max_size=12))
def test_equal_sizes_have_one_form(pairs: list[tuple[Any, Any]]) -> None:
    """Whatever true equalities are stated, in any order: forms are found, are one, and keep their value."""
    graph = Graph()
    stated = [(a, b) for a, b in pairs if evaluate(a, ACTUAL.__getitem__) == evaluate(b, ACTUAL.__getitem__)]
    for a, b in stated:
        graph.require_equal(a, b, "a test")
    for a, b in stated:
        assert graph.canonical(a) == graph.canonical(b)
    for dim in DIMS:
        form = graph.canonical(dim)
        assert graph.canonical(form) == form
        assert evaluate(form, ACTUAL.__getitem__) == evaluate(dim, ACTUAL.__getitem__)


def test_what_follows_from_equal_sizes() -> None:
    a, b, c, d, e, f = map(symbol, range(6))

    def follows(left: Any, right: Any, facts: list[tuple[Any, Any]]) -> bool:
        graph = Graph()
        graph.checks = [*facts, (left, right)]
        return not graph.unstated(len(facts), facts)

    facts: list[tuple[Any, Any]] = [(a + 1, b + c), (d, a * b), (2 * b, 2 * e)]
    assert follows(d + b, b * (b + c), facts)
    assert follows(a * d + d, (b + c) * d, facts)
    assert follows(b, e, facts) and not follows(b, e, facts[:2])
    assert not follows(a, b + c, facts)
    assert not follows(a * d + d, (b + c) * d, facts[1:])
    assert follows(a, a, []) and not follows(a, 3, [])
    assert follows(a * b * c + c * e, c * d * e + c * e, [(a * b, d * e)])  # products inside sums
    assert follows(a * b * f, c * e, [(a * b, c * d), (d * f, e)])
    assert follows(c * e, a * f, [(a * b, c), (b * e, f)])  # a * b * e, seen from either side
    assert not follows(c, f, [(a * b, c), (b * e, f)])
    assert follows(5 * a * b, c + 2 * a * b, [(3 * a * b, c)]) and not follows(a * b, c, [(3 * a * b, c)])


def test_equal_sizes_do_not_lead_in_a_circle() -> None:
    """A size that is said to be a multiple of itself, and products whose factors turn out to be equal."""
    graph = Graph()
    a, b, c, d, e, f = map(symbol, range(6))
    graph.require_equal(a, a * b, "a test")
    assert graph.canonical(a * b) == a
    graph = Graph()
    for left, right in ((a * b, c * d), (c * d, e * f), (e, a), (f, b), (c, a)):
        graph.require_equal(left, right, "a test")
    assert graph.canonical(c * d) == graph.canonical(a * b) == graph.canonical(a * d)


def test_slots() -> None:
    """A dim that is 1 keeps its slot; strides follow sizes; a number takes one."""
    graph = Graph()
    array_input(graph, "float32", (False, True))
    array_input(graph, "float32", (False, False), True)
    graph.add_number("int64")
    assert first_slots(graph) == [0, 2, 6]
    assert graph.slots == 7
    assert graph.inputs[1].layout == (symbol(4), symbol(5))


# -- the interpreter ------------------------------------------------------------------------------


def run(function: Any, *arguments: Any) -> list[Any]:
    """A function captured and interpreted."""
    return interpret(verify(trace(function, *map(describe, arguments))), arguments)


def test_interpreter_checks_its_inputs() -> None:
    """Dtype, rank and stated sizes."""
    graph = trace(lambda a, b: a + b, MATRIX, MATRIX)
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(ValueError, match="expected 2 inputs"):
        interpret(graph, [x])
    with pytest.raises(ValueError, match="expected an array of float32"):
        interpret(graph, [x, x.astype(np.float64)])
    with pytest.raises(ValueError, match="got shape"):
        interpret(graph, [x, x[0]])
    with pytest.raises(ValueError, match="does not hold"):
        interpret(graph, [x, np.zeros((2, 4), np.float32)])


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 127, 128, 129, 300, 16384, 16385, 40000])
def test_order_of_sums(length: int) -> None:
    """The fixed order, written out element by element."""
    x = np.random.default_rng(length).normal(size=length).astype(np.float32)
    total: Any = None
    for start in range(0, length, 16384):
        block = x[start : start + 16384]
        lanes: list[Any] = [None] * 16
        for group in range(0, len(block), 128):
            for lane in range(16):
                chain: Any = None
                for k in range(group + lane, min(group + 128, len(block)), 16):
                    chain = block[k] if chain is None else chain + block[k]
                if chain is not None:
                    lanes[lane] = chain if lanes[lane] is None else lanes[lane] + chain
        for half in (8, 4, 2, 1):
            for lane in range(half):
                if lanes[lane + half] is not None:
                    lanes[lane] = lanes[lane] + lanes[lane + half]
        total = lanes[0] if total is None else total + lanes[0]
    expected = np.float32(0) if total is None else total
    (got,) = run(lambda a: a.sum(0), x)
    assert same_bits(got, np.array(expected, np.float32))


def test_sums_of_nothing_and_of_minus_zero() -> None:
    """Absent elements add nothing."""
    (got,) = run(lambda a: a.sum(1), np.full((2, 5), -0.0, np.float32))
    assert np.signbit(got).all()
    (empty,) = run(lambda a: a.sum(1), np.zeros((2, 0), np.float32))
    assert same_bits(empty, np.zeros(2, np.float32))


def test_fold_of_integers_wraps() -> None:
    """Sums of integers are modulo their width."""
    x = np.full(300, 2**31 - 1, np.int32)
    assert fold(np.add, x, 0) == np.int32((300 * (2**31 - 1) + 2**31) % 2**32 - 2**31)


def test_sixteen_bit_floats_round_once_per_node() -> None:
    """float16 and bfloat16 against float32 arithmetic rounded by NumPy or by hand."""
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=(4, 9)).astype(np.float16) for _ in range(2))
    (got,) = run(lambda x, y: x * y + x, a, b)
    product = (a.astype(np.float32) * b.astype(np.float32)).astype(np.float16)
    assert same_bits(got, (product.astype(np.float32) + a.astype(np.float32)).astype(np.float16))
    bits = np.array([0x3F80, 0x4049, 0xFF80, 0x0001], np.uint16)  # 1, about pi, -inf, a denormal
    (got,) = run(lambda x: x + x, bits)
    assert got.tolist() == [0x4000, 0x40C9, 0xFF80, 0x0002]


def test_product_is_a_chain_of_fused_steps() -> None:
    """One ascending chain per 512 of k."""
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(1, 700)), rng.normal(size=(700, 1))
    (got,) = run(lambda x, y: x @ y, a.astype(np.float32), b.astype(np.float32))
    sums = []
    for start in (0, 512):
        chain = np.float32(0)
        for p in range(start, min(start + 512, 700)):
            exact = np.longdouble(np.float32(a[0, p])) * np.longdouble(np.float32(b[p, 0])) + np.longdouble(
                chain
            )
            chain = np.float32(exact)
        sums.append(chain)
    assert got[0, 0] == sums[0] + sums[1]


def test_gather_and_scatter() -> None:
    """Additions at one place go in index order."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    index = np.array([[2, 0], [1, 1]])
    (got,) = run(lambda a, i: a.gather(1, i), x, index)
    assert got.tolist() == [[2, 0], [5, 5]]
    base, source = np.zeros((2, 3), np.float32), np.array([[1e8, 1, 1], [-1e8, 1, 1], [1, 1, 1]], np.float32)
    (got,) = run(lambda b, i, s: b.scatter_add(0, i, s), base, np.zeros((3, 3), np.int64), source)
    assert got[0].tolist() == [1, 3, 3]


def test_views() -> None:
    """Every view, on a strided input."""
    x = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-2]
    (got,) = run(lambda a: a.permute(1, 0).reshape(-1), x)
    assert np.array_equal(got, x.T.reshape(-1))
    (got,) = run(lambda a: find("slice")(a, 1, (1, 2, 1)), x)
    assert np.array_equal(got, x[:, 1:3])
    (got,) = run(lambda a: find("as_strided")(a, (2, 2), (1, 2), (1,)), np.arange(6, dtype=np.float32))
    assert got.tolist() == [[1, 3], [2, 4]]
    (got,) = run(lambda a: find("embed")(a, 0, (5, 1, 2)), np.array([1, 2], np.float32))
    assert got.tolist() == [0, 1, 0, 2, 0]
    (got,) = run(
        lambda a, b: find("write")(a, b, (2,), (1,)), np.zeros(5, np.float32), np.array([7, 8], np.float32)
    )
    assert got.tolist() == [0, 7, 0, 8, 0]


def test_constants_keep_their_bits() -> None:
    """-0.0 is a literal of its own."""
    graph = trace(lambda a: a * -0.0, VECTOR)
    literal = next(n for n in graph.nodes if n.op.kind == "constant")
    assert isinstance(literal, Node)
    assert np.signbit(parse(text(graph), find).nodes[0].attrs[0])


def test_a_recorded_region_means_what_its_program_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph of a step with views, a write in place and backward: verified, read back from its text and
    interpreted, it gives the bits of the program.
    """
    graphs: list[str] = []
    finish = regions.Builder.finish

    def finished(builder: Any) -> Any:
        result = finish(builder)
        graphs.append(text(verify(builder.graph)))
        return result

    monkeypatch.setattr(regions.Builder, "finish", finished)
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(5, 7)).astype(np.float32), rng.normal(size=(3, 7)).astype(np.float32)
    given, weight, kept = kiln.from_numpy(x).clone(), kiln.from_numpy(w).clone(), kiln.ones(15)
    weight.requires_grad_()

    @kiln.compile(wait=True)
    def step() -> None:
        y = (given @ weight.t()).tanh()
        kept[4:14].view(5, 2).add_(y.detach()[:, 1:] * 0.3)
        (y.softmax(-1) * y).sum().backward()

    step()
    assert step.stats()["runs"] == step.stats()["compiles"] == len(graphs) == 1
    graph = parse(graphs[0], find)
    places = {  # sizes, strides and offsets of the views, in order
        "as_strided": iter(
            [((7, 3), (1, 7), (0,)), ((5, 2), (3, 1), (1,)), ((5, 2), (2, 1), (4,)), ((3, 7), (1, 3), (0,))]
        ),
        "write": iter([((2, 1), (4,))]),
    }
    known = list(zip(graph.inputs, [x.shape, w.reshape(-1).shape, (15,)]))
    dims = [pair for value, shape in known for pair in zip(value.shape, shape, strict=True)]
    for node in graph.nodes:
        for attr, held in zip(node.attrs, next(places.get(node.op.name, iter([()])))):
            dims += zip(attr, held, strict=True)
    slots = {single_slot(dim): held for dim, held in dims}
    for a, b in graph.checks:
        slots.setdefault(single_slot(a), slots.get(single_slot(b), -1))
        slots.setdefault(single_slot(b), slots[single_slot(a)])
    environment = [slots.get(k, -1) for k in range(graph.slots)]
    arrays = (x, w.reshape(-1), np.ones(15, np.float32), 0.3, 1.0)
    written, gradient = interpret(graph, arrays, environment)
    assert same_bits(written, kept.numpy())
    assert same_bits(gradient, weight.grad.numpy())
    assert not np.array_equal(written, np.ones(15, np.float32))
