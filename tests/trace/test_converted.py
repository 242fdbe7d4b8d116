"""Programs whose modules are converted: `half()`, `double()`, `to(dtype)`; and what files give back."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

import kiln
from kiln import nn


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.register_buffer("order", kiln.tensor([0, 2]))

    def forward(self, x: Any) -> Any:
        y = self.drop(self.norm(self.first(x).relu()))
        return kiln.softmax(y, -1)[:, self.order] + 1.5, y.mean()


def _again(program: Any) -> Any:
    """What is read of the file that a program writes."""
    file = io.BytesIO()
    program.save(file)
    file.seek(0)
    return kiln.export.load(file) if isinstance(program, kiln.export.ExportedProgram) else kiln.jit.load(file)


def _made(how: str, net: Any, x: Any) -> Any:
    if how == "export":
        return kiln.export.export(net, (x,), dynamic_shapes={"x": {0: kiln.export.Dim("n")}})
    traced = kiln.jit.trace(net, x)
    return {"trace": lambda: traced, "load": lambda: _again(traced)}.get(how, lambda: copy.deepcopy(traced))()


@pytest.mark.parametrize("how", ["trace", "load", "copy", "export"])
def test_a_converted_program_is_that_of_the_converted_module(how: str) -> None:
    """The same dtypes and bits at every dtype, back again too; what it saves loads and gives the same."""
    x = kiln.randn(5, 4)
    net = _Net()
    program = _made(how, copy.deepcopy(net), x)
    for dtype in (kiln.float64, kiln.bfloat16, kiln.float32):
        program, net = program.to(dtype), net.to(dtype)
        loaded = _again(program)
        for run in (program, loaded, program):
            held = copy.deepcopy(net)
            kiln.manual_seed(0)
            wanted = held(x.to(dtype))
            program.load_state_dict(net.state_dict())
            kiln.manual_seed(0)
            came = run(x.to(dtype))
            assert [y.dtype for y in came] == [dtype, dtype]
            assert all((a == b).all() for a, b in zip(came, wanted))
            assert (run.norm.running_var == held.norm.running_var).all()
        program.load_state_dict(net.state_dict())
        other = kiln.float32 if dtype is not kiln.float32 else kiln.float64
        with pytest.raises(RuntimeError, match=f"x: expected {dtype.name}, got {other.name}"):
            program(x.to(other))


def test_gradients_reach_converted_parameters() -> None:
    net = nn.Linear(3, 2)
    program = _again(kiln.jit.trace(net, kiln.ones(1, 3))).double()
    for run in (program, net.double()):
        run(kiln.ones(1, 3).double()).sum().backward()
    assert program.weight.grad.dtype is kiln.float64 and (program.weight.grad == net.weight.grad).all()


class _Reads(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * float(self.bias[0].detach())


def test_what_no_program_can_become_is_refused_by_calls_and_by_saving() -> None:
    """Where one operand of a product alone was converted, and where a value was read in the old dtype;
    nothing is written that could not be read. Converted back, it is what it was.
    """
    x = kiln.ones(1, 2)
    two = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for net, part, why in ((two, "0", "the same dtype"), (_Reads(2, 2), "", "read in the old dtype")):
        program = kiln.jit.trace(net, x, on_data="check")
        expected = net(x)
        program.get_submodule(part).double()
        file = io.BytesIO()
        for run in (lambda: program(x), lambda: program.save(file)):  # noqa: B023
            with pytest.raises(RuntimeError, match=f"was float32.*{why}.*trace it again"):
                run()
        assert not file.getvalue() and program.code
        assert (program.float()(x) == expected).all()


def test_a_file_holds_the_tensors_that_a_trace_has_now() -> None:
    """Those of a deep copy, and those that were put in the place of others."""
    x = kiln.ones(1, 2)
    traced = kiln.jit.trace(nn.Linear(2, 2), x)
    twin = copy.deepcopy(traced)
    with kiln.no_grad():
        twin.weight.zero_()
    twin.bias = nn.Parameter(kiln.ones(2))
    assert _again(twin)(x).tolist() == twin(x).tolist() == [[1.0, 1.0]]
    assert (_again(traced)(x) == traced(x)).all()


def test_what_is_loaded_is_a_script_module() -> None:
    """With its name, its graph as code, modules that are such too, and a file; it can be frozen."""
    net = _Net().eval()
    loaded = _again(kiln.jit.trace(net, kiln.ones(2, 4)))
    assert isinstance(loaded, kiln.jit.ScriptModule) and isinstance(loaded.first, kiln.jit.ScriptModule)
    assert loaded.original_name == "_Net" and loaded.code.startswith("graph ")
    assert list(loaded.state_dict()) == list(net.state_dict()) and not loaded.training
    x = kiln.randn(2, 4)
    frozen = kiln.jit.freeze(loaded)
    assert not list(frozen.parameters())
    for run in (_again(loaded), copy.deepcopy(loaded), frozen, _again(frozen)):
        assert all((a == b).all() for a, b in zip(run(x), net(x)))
