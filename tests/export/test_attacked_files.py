"""Files made to do harm: each is refused by a sentence that names what is wrong, in little time."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from program_files import again, with_texts

import kiln
from kiln import nn
from kiln.export import export, load, save

MUL = "graph 2\n%0 = input float32[2]\n%1 = input float32[2]\n%2 = mul(%0, %1): float32[2]\n"


def _raw(program: Any) -> bytes:
    file = io.BytesIO()
    save(program, file)
    return file.getvalue()


@pytest.fixture(scope="module")
def product() -> bytes:
    return _raw(export(lambda x, y: x * y, (kiln.ones(2), kiln.ones(2))))


@pytest.fixture(scope="module")
def linear() -> bytes:
    return _raw(export(nn.Linear(3, 2), (kiln.ones(2, 3),)))


def folded(depth: int) -> str:
    """A graph that calls one twice, which calls one twice, ..."""
    if depth == 0:
        return "%0 = input float32[2]\nreturn %0\n"
    inner = "".join(f"  {line}\n" for line in folded(depth - 1).splitlines())
    return (
        f"called @0 0\n{inner}%0 = input float32[2]\n%1 = constant(; 1): int64[]\n"
        '%2 = full(%1; (), "bool"): bool[]\n'
        "%3 = cond(%2, %0; 0, (0, 0, 0), (0, false), (), (@0, @0)): float32[2]\nreturn %3\n"
    )


GRAPHS = {
    "graph 2\n%0 = input float32[" + "9" * 5000 + "]\n": "line 2: integer out of range",
    MUL.replace("[2]", "[-2]"): "line 2: a negative size",
    MUL.replace("[2]", "[\u0662]"): "line 2: unexpected '\u0662",
    MUL.replace("mul", "m\u0443l"): "line 4: unexpected '\u0443l",
    MUL.replace("mul", "mul\u200d"): "line 4: unexpected",
    MUL.replace("mul(%0", "mul(%3") + "%3 = mul(%2, %1): float32[2]\nreturn %3\n": "line 4: %3 is used",
    MUL.replace("%1 =", "%0 ="): "line 3: expected %1, got %0",
    MUL.replace("mul(%0, %1)", "mul(%0, %1; " + "(" * 9000 + ")" * 9000 + ")"): "line 4: nested too deeply",
    MUL.replace("[2]", "[" + "div(" * 9000 + "1" + ", 1)" * 9000 + "]"): "line 2: nested too deeply",
    MUL.replace("[2]", "[div(4, 0)]"): "line 2: division by zero",
    MUL + '%3 = constant(; 1): int64[]\n%4 = full(%3; (-5), "float32"): float32[-5]\nreturn %4\n':
        r"node 2 \(full\): negative size -5",
    "graph 2\n" + "".join("  " * d + "called @0 0\n" for d in range(200)): "nested too deeply",
    "graph 1\n" + folded(24): "graphs that call graphs come to too many nodes",
}  # fmt: skip


@pytest.mark.parametrize("told", GRAPHS.values(), ids=range(len(GRAPHS)))
def test_a_graph_that_is_none_is_refused_with_its_line(product: bytes, told: str) -> None:
    graph = next(g for g, t in GRAPHS.items() if t is told)
    with pytest.raises(ValueError, match=told):
        load(with_texts(product, graph=graph))


def _state(name: str, other: str = "bias") -> Callable[[dict[str, Any]], None]:
    def change(held: dict[str, Any]) -> None:
        held["state"] = [[name, "parameter", True], [other, "parameter", True]]

    return change


SIGNATURES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "half a pair": (lambda s: s.update(name="\ud800"), "surrogates not allowed"),
    "digits of another script": (lambda s: s.update(drawn="\u0662"), "unexpected '\u0662'"),
    "deep containers": (lambda s: s.update(results=_deep(80)), "containers nested too deeply"),
    "code as a field": (
        lambda s: s.update(results={"named": "X", "fields": ["__import__('os')"], "items": ["t"]}),
        "must be valid identifiers",
    ),
    "the same name twice": (_state("weight", "weight"), "weight is float32"),
    "a folder": (_state("../../weight"), "no tensor called '../../weight' in the file"),
    "a negative count": (lambda s: s.update(drawn="-3"), "no count of random numbers"),
    "a range that is none": (lambda s: s.update(dims=[["n", 9, 2, "s0", 0, 4]]), "no range of n"),
    "an input that is written": (lambda s: s.update(mutated=[["input", 0]]), "the graph returns 1 values"),
}


def _deep(depth: int) -> Any:
    return "t" if depth == 0 else {"tuple": [_deep(depth - 1)]}


def _with_signature(raw: bytes, change: Callable[[dict[str, Any]], Any]) -> io.BytesIO:
    def changed(text: str) -> str:
        held = json.loads(text)
        change(held)
        return json.dumps(held)

    return with_texts(raw, signature=changed)


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_that_is_none_is_refused_with_its_entry(linear: bytes, name: str) -> None:
    change, told = SIGNATURES[name]
    with pytest.raises(ValueError, match=told):
        load(_with_signature(linear, change))


def _called(raw: bytes, names: dict[str, str]) -> io.BytesIO:
    """The file with its tensors under other names, in the signature too."""
    length = int.from_bytes(raw[:8], "little")
    header = {names.get(k, k): v for k, v in json.loads(raw[8 : 8 + length]).items()}
    head = json.dumps(header).encode()
    whole = len(head).to_bytes(8, "little") + head + raw[8 + length :]
    return _with_signature(whole, _state(names.get("weight", "weight"), names.get("bias", "bias")))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ({"weight": "_modules"}, "no tensor called '_modules'"),
        ({"weight": "_parameters.x"}, "no tensor called '_parameters.x': it has something else"),
        ({"weight": "a", "bias": "a.b"}, "no tensor called 'a.b': it has something else as 'a'"),
        ({"weight": "a.b", "bias": "a"}, "no tensor called 'a': it has something else as 'a'"),
        ({"weight": ".".join("a" * 5000)}, "no name 'a.a.a"),
        ({"weight": "a..b"}, "no name 'a..b'"),
    ],
)
def test_names_of_tensors_take_no_place_that_is_taken(
    linear: bytes, names: dict[str, str], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        load(_called(linear, names))


def test_names_that_methods_have_are_names_of_tensors_all_the_same(linear: bytes) -> None:
    program = load(_called(linear, {"weight": "forward", "bias": "__class__"}))
    assert list(program.state_dict()) == ["forward", "__class__"]
    assert program(kiln.ones(2, 3)).shape == (2, 2)


@pytest.mark.parametrize("name", ["ExceptionGroup", "SystemExit", "exec", "UnicodeDecodeError", "Warning"])
def test_what_a_file_says_is_raised_is_an_exception_of_a_text(product: bytes, name: str) -> None:
    load(_with_signature(product, lambda s: s.update(raises=[[name, "x"]])))


HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "beyond the file": ({"data_offsets": [0, 2**40]}, "expected 24 bytes for weight"),
    "before it": ({"data_offsets": [-24, 0]}, "offsets of weight in ascending order"),
    "over another": ({"data_offsets": [0, 24]}, "a hole or an overlap"),
    "sizes without bytes": ({"shape": [2**40, 2**40]}, "a shape of weight whose bytes can be counted"),
    "negative sizes": ({"shape": [-2, -3]}, "none negative"),
    "another shape": ({"shape": [3, 2]}, "weight is float32.3, 2. in the file"),
    "another dtype": ({"dtype": "I32"}, "weight is int32.2, 3. in the file"),
    "many sizes": ({"shape": [1] * 5000 + [2, 3]}, "at most 64 sizes"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_lies_is_refused(linear: bytes, name: str) -> None:
    change, told = HEADERS[name]
    length = int.from_bytes(linear[:8], "little")
    header = json.loads(linear[8 : 8 + length])
    header["weight"].update(change)
    head = json.dumps(header).encode()
    with pytest.raises(ValueError, match=told):
        load(io.BytesIO(len(head).to_bytes(8, "little") + head + linear[8 + length :]))


def test_calls_are_refused_in_the_words_of_the_inputs(linear: bytes) -> None:
    program = load(io.BytesIO(linear))
    for args, kwargs, told in (
        ((), {}, "Linear: args: expected 1, got 0"),
        ((kiln.ones(2, 3), kiln.ones(1)), {}, "Linear: args: expected 1, got 2"),
        ((kiln.ones(2, 3),), {"more": 1}, r"unexpected \['more'\]"),
        ((kiln.ones(2, 3).double(),), {}, "input: expected float32"),
        ((kiln.ones(3),), {}, "input: must have 2 dims, got 1"),
        ((kiln.ones(2, 4),), {}, "input: dim 1 must be 3, got 4"),
        ((1.0,), {}, "expected Tensor, got"),
        (([kiln.ones(2, 3)],), {}, "expected Tensor, got a list"),
    ):
        with pytest.raises((TypeError, RuntimeError), match=told):
            program(*args, **kwargs)


def test_what_is_no_number_stays_so() -> None:
    model = nn.Linear(3, 2)
    with kiln.no_grad():
        model.weight[0, 0], model.weight[1, 1] = float("nan"), float("-inf")
    program = again(export(model, (kiln.ones(2, 3),)))
    same = kiln.equal(program.weight.view(kiln.int32), model.weight.view(kiln.int32))
    assert same and bool(program(kiln.ones(2, 3)).isnan()[:, 0].all())


def test_layers_that_a_program_calls_stay_within_their_operands(product: bytes) -> None:
    head = "graph 2\n%0 = input float32[2]\n%1 = input float32[2]\n%2 = constant(; 0): int64[]\n"
    rows = [("5, 2, 3", 3), ("1, 1, 3, 32", 4), ("2, 3", 5), ("3", 6)]
    head += "".join(f'%{k} = full(%2; ({s}), "float32"): float32[{s}]\n' for s, k in rows)
    call = '%7 = recurrent_hidden(%3, %4, %5, %6; "RNN_TANH", false, true): float32[5, 2, 3]\n'
    tail = "%8 = reshape(%7; (30)): float32[30]\n%9 = slice(%8; 0, (0, 2, 1)): float32[2]\nreturn %9\n"
    load(with_texts(product, graph=head + call + tail))
    for old, new, told in (
        ("(1, 1, 3, 32)", "(1, 1, 2, 32)", "operands of other sizes"),
        ("(1, 1, 3, 32)", "(0, 1, 3, 32)", "operands of other sizes"),
        ('"RNN_TANH"', '"NONE"', "refuses its arguments"),
        ("false, true)", "2, true)", "no recurrence"),
        (", %6;", ", %6, %6;", "operands of RNN_TANH"),
        (", %5, %6;", ";", "refuses its arguments|does not take"),
        ("%6;", "%5;", "is no operand of it"),
    ):
        changed = (head + call).replace(old, new).replace(f"[{old[1:-1]}]", f"[{new[1:-1]}]")
        with pytest.raises(ValueError, match=told):
            load(with_texts(product, graph=changed + tail))
