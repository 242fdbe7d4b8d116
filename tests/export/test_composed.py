"""Programs that hold control flow and other programs; calls that the core runs alone; copies; and what
programs written for PyTorch ask an ExportedProgram for.
"""

from __future__ import annotations

import copy
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from program_files import Memory, again, tensors, with_texts

import kiln
from kiln import _core, nn
from kiln.export import Dim, export, load, save
from kiln.testing.program_fuzz import ControlFlow
from kiln.tracing.stored import StoredOp


def test_control_flow_comes_back_with_its_bits_and_gradients(tmp_path: Path) -> None:
    kiln.manual_seed(0)
    model = ControlFlow()
    twin = copy.deepcopy(model)
    path = tmp_path / "b.kiln"
    save(export(model, (kiln.rand(3, 4),)), path)
    program = load(path)
    for scale in (1.0, -1.0):
        x = (kiln.rand(3, 4) * scale).requires_grad_()
        z = x.detach().clone().requires_grad_()
        got, expected = program(x), twin(z)
        assert all(map(kiln.equal, got, expected))
        for results in (got, expected):
            sum((y.float() ** 2).sum() for y in results).backward()
        assert kiln.equal(x.grad, z.grad) and kiln.equal(program.weight.grad, twin.weight.grad)
    again_path = tmp_path / "again.kiln"
    save(program, again_path)
    assert all(map(kiln.equal, load(again_path)(x), got))
    command = [sys.executable, "-m", "kiln", "show", str(path), "--graph", "--picture", str(path) + ".svg"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert shown.returncode == 0 and "while_loop" in shown.stdout and "called @0" in shown.stdout, (
        shown.stderr
    )
    assert "while_loop" in Path(f"{path}.svg").read_text()


def test_control_flow_of_a_size_that_varies() -> None:
    def f(x: Any) -> Any:
        return kiln.cond(x.sum() > 0, lambda x: x.flip(0), lambda x: x - x.shape[0], (x,))

    program = again(export(f, (kiln.rand(3, 4),), dynamic_shapes=({0: Dim("n", min=2, max=9)},)))
    for x in (kiln.rand(5, 4), -kiln.rand(2, 4)):
        assert kiln.equal(program(x), f(x))


_LOOP = "%3 = while_loop(%0, %1; {}, (1, {}, 1), (0, false), ({}), (@0, @{})): float32[2]"
BAD = {
    _LOOP.format(0, 1, "", 1): "2 inputs are not 1 + 1 + 1",
    _LOOP.format(0, 0, "", 7): "there is no graph @7",
    _LOOP.format(4, 0, "", 1): "there is no result 4",
    _LOOP.format(0, 0, "s0", 1): "a graph of 0 slots gets 1",
    "%3 = cond(%0, %1; 0, (0, 0, 0), (0, false), (), (@0, @1)): float32[2]": "the flag",
    "%3 = scan(%0, %1; 0, (1, 0, 1), (-4, false), (), (@1)): float32[2]": "a negative number of steps",
    "%3 = counted(%0, %1; 0, (1, 0, 1), (0, false), (), (@0, @1, @1)): float32[2]": ".",
}
INSIDE = {
    "%2 = slice(%0; 0, (1, 2, 1)): float32[2]": r"graph 1, node 0 \(slice\): a place behind the last",
    "%2 = as_strided(%0; (2), (1), (7)): float32[2]": "places outside of the memory",
    "%2 = mul(%0, %7): float32[2]": "line 7: %7 is used before it is defined",
}


def _looping(body: str, line: str) -> str:
    return (
        "graph 4\ncalled @0 0\n  %0 = input float32[2]\n  %1 = input float32[2]\n"
        "  %2 = constant(; 1): int64[]\n"
        f'  %3 = full(%2; (), "bool"): bool[]\n  return %3\ncalled @1 0\n  %0 = input float32[2]\n'
        f"  %1 = input float32[2]\n  {body}\n  return %2\n%0 = input float32[2]\n%1 = input float32[2]\n"
        f"%2 = mul(%0, %1): float32[2]\n{line}\nreturn %2\n"
    )


@pytest.mark.parametrize("line", BAD)
def test_control_flow_that_was_edited_is_refused(line: str) -> None:
    file = io.BytesIO()
    save(export(lambda x, y: x * y, (kiln.rand(2), kiln.rand(2))), file)
    right = "%2 = mul(%0, %1): float32[2]"
    with pytest.raises(ValueError, match=BAD[line].replace("+", r"\+")):
        load(with_texts(file.getvalue(), graph=_looping(right, line)))


@pytest.mark.parametrize("body", INSIDE)
def test_graphs_that_are_called_stay_within_their_operands(body: str) -> None:
    file = io.BytesIO()
    save(export(lambda x, y: x * y, (kiln.rand(2), kiln.rand(2))), file)
    call = "%3 = while_loop(%0, %1; 0, (1, 0, 1), (0, false), (), (@0, @1)): float32[2]"
    with pytest.raises(ValueError, match=INSIDE[body].replace("line 7", r"line \d+")):
        load(with_texts(file.getvalue(), graph=_looping(body, call)))


@pytest.mark.parametrize("varies", [False, True])
def test_programs_of_programs_are_programs(varies: bool) -> None:
    kiln.manual_seed(1)
    dims = ({0: Dim("n")},) if varies else None
    inner = again(
        export(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), (kiln.rand(3, 4),), dynamic_shapes=dims)
    )
    whole = nn.Sequential(inner, nn.Tanh(), inner)
    program = again(export(whole, (kiln.rand(3, 4),), dynamic_shapes=dims))
    assert list(program.state_dict())[:2] == ["0.0.weight", "0.0.bias"]
    for rows in (3, 5) if varies else (3, 3):
        x = kiln.rand(rows, 4)
        got, expected = program(x), whole(x)
        assert kiln.equal(got, expected)
        got.sum().backward()
        expected.sum().backward()
    for own, other in zip(program.parameters(), whole.parameters()):
        assert kiln.equal(own.grad, other.grad)
    for own, other in zip(program.buffers(), whole.buffers()):
        assert kiln.equal(own, other) and not own.requires_grad


def test_a_program_inside_a_program_checks_and_draws_as_it_does_alone() -> None:
    looked = again(export(nn.Embedding(4, 2), (kiln.tensor([1, 2]),)))
    program = again(export(nn.Sequential(looked, nn.Dropout(0.5)), (kiln.tensor([1, 2]),)))
    with pytest.raises(IndexError, match="out of range"):
        program(kiln.tensor([1, 4]))
    drops = again(export(nn.Dropout(0.5), (kiln.ones(8),)))
    outer = again(export(lambda x: drops(x) + drops(x), (kiln.ones(8),)))
    x = kiln.ones(8)
    kiln.manual_seed(3)
    expected = drops(x) + drops(x)
    kiln.manual_seed(3)
    assert kiln.equal(outer(x), expected) and kiln.equal(
        kiln.vmap(again(export(nn.Tanh(), (x,))))(x[None]), x[None].tanh()
    )


def test_a_program_that_was_read_before_is_a_part_of_another() -> None:
    """Its graph is read when the trace asks for it, which must not see how that is done."""
    x = kiln.tensor([1, 2])
    for _ in range(2):  # the second time it is known by its texts
        inner = again(export(nn.Embedding(4, 2), (x,)))
    model = nn.Sequential(inner, nn.Tanh())
    program = export(model, (x,))
    assert [name for name, _ in program.named_parameters()] == ["0.weight"]
    assert not [*program.buffers()] and not program.constants
    assert kiln.equal(program(x), inner(x).tanh())


@pytest.fixture
def alone() -> Iterator[None]:
    """The core is let run calls alone, which it is not while it checks."""
    before = _core.set_check(False)
    yield
    _core.set_check(before)


@pytest.mark.usefixtures("alone")
def test_the_core_runs_calls_that_look_alike_and_sees_what_changes() -> None:
    program = again(export(nn.Linear(3, 2), (kiln.rand(2, 3),), dynamic_shapes=({0: Dim("n", max=9)},)))
    x = kiln.rand(4, 3)
    first = program(x)
    calls = program._program.fast.calls
    assert kiln.equal(program(x), first) and program._program.fast.calls == calls + 1
    with kiln.no_grad():
        program.weight.mul_(2)
    doubled = program(x)
    assert not kiln.equal(doubled, first)
    program.weight = nn.Parameter(kiln.zeros(2, 3))
    assert kiln.equal(program(x), program.bias.expand(4, 2)) and program(x).requires_grad
    for bad, told in ((kiln.rand(10, 3), "n must be from 0 to 9"), (kiln.rand(4, 4), "dim 1 must be 3")):
        with pytest.raises(RuntimeError, match=told):
            program(bad)
    assert not program.requires_grad_(False)(x).requires_grad


@pytest.mark.usefixtures("alone")
def test_state_is_written_and_numbers_are_drawn_by_the_core_too() -> None:
    program, twin = again(export(Memory(), (kiln.rand(3),))), Memory()
    noisy = again(export(nn.Dropout(0.5), (kiln.ones(8),)))
    for _ in range(4):
        x = kiln.rand(3)
        assert kiln.equal(program(x), twin(x))
    assert program._program.fast.calls and int(program.calls) == 4
    kiln.manual_seed(0)
    expected = [nn.functional.dropout(kiln.ones(8), 0.5) for _ in range(3)]
    kiln.manual_seed(0)
    assert all(kiln.equal(noisy(kiln.ones(8)), y) for y in expected)


def test_a_file_that_was_read_before_is_a_program_without_its_graph() -> None:
    file = io.BytesIO()
    save(export(nn.Sequential(nn.Linear(3, 4), nn.GELU()), (kiln.rand(2, 3),)), file)
    first, second = load(io.BytesIO(file.getvalue())), load(io.BytesIO(file.getvalue()))
    assert isinstance(second._captured.op, StoredOp)
    x = kiln.rand(2, 3, requires_grad=True)
    assert kiln.equal(first(x), second(x))
    second(x).sum().backward()
    assert [n.op.name for n in second.graph.nodes] == [n.op.name for n in first.graph.nodes]
    with pytest.raises(ValueError, match=r"0\.bias is float32\[4\] in the file"):
        load(with_texts(file.getvalue(), signature=lambda text: text.replace('"0.weight"', '"0.bias"', 1)))


def test_a_copy_has_tensors_of_its_own() -> None:
    program = export(nn.Linear(3, 2), (kiln.rand(2, 3),))
    twin = copy.deepcopy(program)
    x = kiln.rand(2, 3)
    before = program(x)
    with kiln.no_grad():
        twin.weight.zero_()
    assert kiln.equal(program(x), before) and not kiln.equal(twin(x), before)


def test_what_pytorchs_programs_ask_for() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU())
    model.register_buffer("scratch", kiln.zeros(2), persistent=False)
    made = export(model, (kiln.rand(2, 4),), dynamic_shapes=({0: Dim("b", min=2)},))
    for program in (made, again(made)):
        signature, state = program.graph_signature, program.state_dict
        nodes = [node.name for node in program.graph_module.graph.nodes if node.op == "placeholder"]
        assert [s.arg.name for s in signature.input_specs] == nodes and signature.user_inputs == (nodes[-1],)
        assert signature.parameters == ("0.weight", "0.bias", "1.weight", "1.bias")
        assert signature.inputs_to_parameters["p_0_weight"] == "0.weight"
        assert signature.non_persistent_buffers == ("scratch",)
        assert set(signature.buffers_to_mutate.values()) == {
            "1.running_mean", "1.running_var", "1.num_batches_tracked",
        }  # fmt: skip
        assert state["0.weight"] is program.get_parameter("0.weight") and "scratch" not in state
        assert list(program.state_dict()) == list(model.state_dict())
        x = kiln.rand(5, 4)
        held = {**state, **dict(program.named_buffers())}
        given = [held[s.target] if s.target else x for s in signature.input_specs]
        results = program.graph_module(*given)
        expected = copy.deepcopy(program)(x)
        assert kiln.equal(results[-1], expected) and len(results) == len(signature.output_specs)
        program.validate()
    plain = export(nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), (kiln.rand(2, 4),)).run_decompositions()
    names = {node.op.name for node in plain.graph.nodes}
    assert "exp" in names and not names & {"linear", "softmax"}
    x = kiln.rand(2, 4)
    assert kiln.equal(plain(x), again(plain)(x)) and tensors(plain(x))[0].shape == (2, 3)
    assert json.dumps(list(plain.state_dict)) == '["0.weight", "0.bias"]'


STEPS = {
    "cond": lambda x, w: kiln.cond(x.sum() > 1.0, lambda x: x.sin() * x * w[0], lambda x: x.exp(), (x,)),
    "while_loop": lambda x, w: kiln.while_loop(
        lambda n, x: n < 2, lambda n, x: (n + 1, kiln.tanh(x * w[0]) + x * x * 0.1), (kiln.tensor(0), x)
    )[1],
    "scan": lambda x, w: kiln.graph.scan(lambda c, v: (kiln.tanh(c * v), c * c), x, w),
    "map": lambda x, w: kiln.graph.map(lambda v: (v * x).sin(), w),
}


@pytest.mark.parametrize("name", STEPS)
def test_gradients_of_control_flow_to_second_order_after_a_file(name: str) -> None:
    kiln.manual_seed(2)
    given = tuple(kiln.rand(*shape, dtype=kiln.float64, requires_grad=True) for shape in ((2,), (2, 2)))
    program = again(export(STEPS[name], given))
    assert kiln.autograd.gradcheck(program, given) and kiln.autograd.gradgradcheck(program, given)
