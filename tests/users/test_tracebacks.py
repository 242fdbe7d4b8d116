"""Errors as a user sees them: which function, which argument; lines of the user's program and no others."""

from __future__ import annotations

import inspect
import io
import os
import pickle
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from backend import kiln, needs_kiln

from kiln.testing import error_cases, error_classes, error_scan
from kiln.testing.mode_cases import Arguments

pytestmark = needs_kiln

nn, F = kiln.nn, kiln.nn.functional
HERE = os.path.abspath(__file__)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(5, 2)))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class OfUser(kiln.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.no_such_thing

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


def _hook(gradient: Any) -> Any:
    raise LookupError("the user's own")


def _backward_with_hook() -> None:
    x = kiln.ones(2, requires_grad=True)
    x.register_hook(_hook)
    (x * 2).sum().backward()


def _step() -> None:
    p = nn.Parameter(kiln.ones(2))
    p.grad = kiln.ones(2)
    optimizer = kiln.optim.Adam([p])
    optimizer.param_groups[0]["lr"] = "text"
    optimizer.step()


def _attribute(x: Any) -> Any:
    return x.no_such_thing


def _one_by_one(x: Any) -> Any:
    return kiln.stack(list(x.split([1, 2])))


class OfParts(kiln.utils.data.Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, n: int) -> Any:
        return kiln.ones(n + 1) if n < 3 else 1 / 0


def _load(**options: Any) -> None:
    for _ in kiln.utils.data.DataLoader(OfParts(), **options):
        pass


x23 = kiln.ones(2, 3)
FUNCTION = io.BytesIO()  # a file that names a function
kiln.save(_step, FUNCTION)
FUNCTION.seek(0)
# what fails -> the error, a part of its message, and the user's functions that its traceback ends with
CALLS: dict[str, tuple[Callable[[], Any], type[Exception], str, list[str]]] = {
    "model": (lambda: Inner()(x23), RuntimeError, "linear: mat1 and mat2", ["<lambda>", "forward"]),
    "layer": (
        lambda: nn.Linear(3, 4)(x23.double()),
        RuntimeError,
        "linear: expected m1 and m2",
        ["<lambda>"],
    ),
    "function": (lambda: F.linear(x23.double(), kiln.ones(4, 3)), RuntimeError, "linear: ", ["<lambda>"]),
    "hook": (_backward_with_hook, LookupError, "the user's own", ["_backward_with_hook", "_hook"]),
    "no graph": (lambda: x23.sum().backward(), RuntimeError, "does not require grad", ["<lambda>"]),
    "user's function": (lambda: OfUser.apply(x23), AttributeError, "no_such_thing", ["<lambda>", "forward"]),
    "optimizer": (_step, TypeError, "", ["_step"]),
    "load": (lambda: kiln.load("/no/such/file"), FileNotFoundError, "", ["<lambda>"]),
    "save": (lambda: kiln.save({1: 1j}, "/no/such.safetensors"), TypeError, "save", ["<lambda>"]),
    "save a function": (
        lambda: kiln.save(lambda: 0, "x"),
        pickle.PicklingError,
        "Can't pickle",
        ["<lambda>"],
    ),
    "load what is more": (lambda: kiln.load(FUNCTION), pickle.UnpicklingError, "Weights only", ["<lambda>"]),
    "item": (lambda: x23[5], IndexError, "out of bounds", ["<lambda>"]),
    "setting an item": (lambda: x23.__setitem__(5, 1), IndexError, "out of bounds", ["<lambda>"]),
    "operator": (lambda: x23 + kiln.ones(4), RuntimeError, "must match the size", ["<lambda>"]),
    "classes": (lambda: F.cross_entropy(x23, kiln.tensor([5, 0])), IndexError, "cross_entropy", ["<lambda>"]),
    "einsum": (lambda: kiln.einsum("ij,kj", x23), RuntimeError, "einsum", ["<lambda>"]),
    "recurrent": (lambda: nn.LSTM(3, 4)(kiln.ones(2, 2)), RuntimeError, "input_size", ["<lambda>"]),
    "norm": (lambda: nn.BatchNorm2d(4)(x23), ValueError, "expected 4D input", ["<lambda>"]),
    "composite": (lambda: kiln.norm(x23, dim=9), IndexError, "norm: Dimension out of range", ["<lambda>"]),
    "method": (lambda: x23.reshape(4, 4), RuntimeError, "reshape: ", ["<lambda>"]),
    "number for a tensor": (
        lambda: kiln.softmax(3, 0),
        TypeError,
        r"softmax\(\): argument 'input' \(position 1\) must be Tensor, not int",
        ["<lambda>"],
    ),
    "text for a dim": (
        lambda: kiln.softmax(x23, dim="a"),
        TypeError,
        r"softmax\(\): argument 'dim' must be int, not str",
        ["<lambda>"],
    ),
    "a function in Python": (
        lambda: kiln.movedim(3, 0, 1),
        TypeError,
        r"movedim\(\): argument 'input' \(position 1\) must be Tensor",
        ["<lambda>"],
    ),
    "of nn.functional": (
        lambda: F.conv2d(3, 4),
        TypeError,
        r"conv2d\(\): argument 'input' \(position 1\) must be Tensor, not int",
        ["<lambda>"],
    ),
    "gradient": (
        lambda: kiln.func.grad(_attribute)(x23),
        AttributeError,
        "thing",
        ["<lambda>", "_attribute"],
    ),
    "of no number": (lambda: kiln.func.grad(kiln.exp)(x23), RuntimeError, "scalar Tensor", ["<lambda>"]),
    "map": (lambda: kiln.vmap(_one_by_one)(x23), RuntimeError, "stack", ["<lambda>", "_one_by_one"]),
    "no batch": (lambda: kiln.func.vmap(_attribute)(3), ValueError, "in_dim", ["<lambda>"]),
    "Jacobian": (
        lambda: kiln.func.hessian(_attribute)(x23),
        AttributeError,
        "no_such_thing",
        ["<lambda>", "_attribute"],
    ),
    "Jacobian of autograd": (
        lambda: kiln.autograd.functional.jacobian(_attribute, x23),
        AttributeError,
        "no_such_thing",
        ["<lambda>", "_attribute"],
    ),
    "functional call": (
        lambda: kiln.func.functional_call(nn.Linear(2, 2), {}, (x23,)),
        RuntimeError,
        "^linear: mat1 and mat2",
        ["<lambda>"],
    ),
    "checkpoint": (
        lambda: kiln.utils.checkpoint.checkpoint(_attribute, x23, use_reentrant=False),
        AttributeError,
        "no_such_thing",
        ["<lambda>", "_attribute"],
    ),
    "data set": (lambda: _load(), ZeroDivisionError, "", ["<lambda>", "_load", "__getitem__"]),
    "single samples": (
        lambda: _load(batch_size=None),
        ZeroDivisionError,
        "",
        ["<lambda>", "_load", "__getitem__"],
    ),
    "batch": (lambda: _load(batch_size=2), RuntimeError, "stack expects each", ["<lambda>", "_load"]),
    "initialisation": (
        lambda: nn.init.xavier_normal_(kiln.ones(3)),
        ValueError,
        "xavier_normal_: Fan in",
        ["<lambda>"],
    ),
    "constructor": (
        lambda: nn.Linear("a", 2),
        TypeError,
        r"Linear\(\): argument 'in_features' \(position 1\) must be int, not str",
        ["<lambda>"],
    ),
    "packing": (lambda: nn.utils.rnn.pack_sequence(3), TypeError, r"pack_sequence\(\)", ["<lambda>"]),
    "drawing": (lambda: kiln.viz.graph(3), TypeError, "viz.graph: expected", ["<lambda>"]),
    "distribution": (
        lambda: kiln.distributions.Normal("a", 1.0),
        ValueError,
        "^Normal: Input arguments",
        ["<lambda>"],
    ),
    "of a distribution": (
        lambda: kiln.distributions.Normal(0.0, 1.0).log_prob("a"),
        ValueError,
        "argument to log_prob must be a Tensor",
        ["<lambda>"],
    ),
    "constraint": (lambda: kiln.distributions.Normal(0.0, -1.0), ValueError, "parameter scale", ["<lambda>"]),
    "buffer": (
        lambda: nn.Linear(2, 2).register_buffer("a", 3),
        TypeError,
        "^register_buffer: cannot assign 'int'",
        ["<lambda>"],
    ),
    "module's dtype": (
        lambda: nn.Linear(2, 2).to(kiln.int64),
        TypeError,
        "^nn.Module.to only accepts floating point",
        ["<lambda>"],
    ),
    "state": (
        lambda: nn.Linear(2, 2).load_state_dict({}),
        RuntimeError,
        r"^Error\(s\) in loading state_dict for Linear",
        ["<lambda>"],
    ),
    "pruning": (
        lambda: nn.utils.prune.l1_unstructured(nn.Linear(2, 2), "weight", 1.5),
        ValueError,
        "^l1_unstructured: amount=1.5",
        ["<lambda>"],
    ),
    "parametrization": (
        lambda: nn.utils.parametrizations.orthogonal(nn.Linear(2, 2), "name"),
        ValueError,
        "^orthogonal: ",
        ["<lambda>"],
    ),
    "switch": (lambda: kiln.set_warn_always(3), RuntimeError, "expects a bool, but got int", ["<lambda>"]),
    "group": (
        lambda: kiln.optim.SGD([nn.Parameter(kiln.ones(2))], 0.1).add_param_group(3),
        TypeError,
        "^Optimizer.add_param_group: ",
        ["<lambda>"],
    ),
    "of a list": (lambda: kiln.cat(3), TypeError, "cat", ["<lambda>"]),
    "device": (lambda: kiln.cuda.current_device(), AssertionError, "^Torch not compiled", ["<lambda>"]),
    "event": (lambda: kiln.cuda.Event(), RuntimeError, "^torch.cuda.Event requires CUDA", ["<lambda>"]),
    "branches": (
        lambda: kiln.cond(kiln.tensor(True), 1, 2),
        RuntimeError,
        "^cond: Expect both branches to be callable",
        ["<lambda>"],
    ),
    "script": (lambda: kiln.jit.script(x23), TypeError, "^jit.script: expected a function", ["<lambda>"]),
    "registered operator": (
        lambda: kiln.library.define([], ""),
        ValueError,
        "^library.define: ",
        ["<lambda>"],
    ),
    "storage": (lambda: kiln.BoolStorage(1.5), TypeError, "^kiln.BoolStorage.__new__ rec", ["<lambda>"]),
    "program": (lambda: kiln.export.draft_export(len, 1), TypeError, "^draft_export: exp", ["<lambda>"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_traceback_holds_the_users_lines_alone(name: str) -> None:
    call, error, text, functions = CALLS[name]
    with pytest.raises(error, match=text) as caught:
        call()
    frames = traceback.extract_tb(caught.value.__traceback__)[1:]
    assert [frame.name for frame in frames] == functions
    assert all(frame.filename == HERE for frame in frames)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_no_class_or_method_shows_lines_of_kilns() -> None:
    """One wrong argument for each class of layers, optimizers, distributions and data, and for each function
    and method that is called beside the table's.
    """
    scan, found = error_scan.Scan(0, peer=False), []
    for path in sorted({f"nn.{name}" for name in error_classes.LAYERS} | {*error_classes.CLASSES}):
        layer = error_classes.LAYERS.get(path.removeprefix("nn."))
        arguments = layer[0] if layer is not None else error_classes.CLASSES[path]
        place = int(path.startswith(("nn.Module.", "optim.Optimizer.")))  # a method is of an object
        wrong = Arguments([*arguments[:place], object(), *arguments[place + 1 :]], {})
        found += [*scan.one(error_cases.ErrorCall(path, path, lambda wrong=wrong: wrong))]
    assert [f"{one.call.path}: {one.what}" for one in found] == []


def test_what_was_raised_on_purpose_keeps_its_type() -> None:
    for call, error in (
        (lambda: kiln.norm(x23, dim=9), IndexError),
        (lambda: F.mse_loss(x23, x23, reduction="x"), ValueError),
        (lambda: kiln.zeros(2).to("cuda"), AssertionError),
        (lambda: kiln.tensor([1, 2]).mean(), RuntimeError),
    ):
        with pytest.raises(error):
            call()


def test_errors_of_a_users_function_stay_as_they_are() -> None:
    """What a function that kiln calls raises keeps its type, its words and its frames."""

    def mine(x: Any) -> Any:
        return {}[0]

    for call in (kiln.vmap(mine), kiln.func.grad(mine), kiln.compile(mine), lambda x: x.apply_(mine)):
        with pytest.raises(KeyError, match="^0$") as caught:
            call(x23.clone())
        assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "mine"


def test_an_error_is_caught_where_it_was() -> None:
    """Raised again, chained and logged, it is the one that was cut."""
    try:
        try:
            nn.Linear(3, 4)(kiln.ones(2, 5))
        except RuntimeError as inner:
            raise ValueError("outer") from inner
    except ValueError as outer:
        text = "".join(traceback.format_exception(outer))
    assert "outer" in text and "linear: mat1" in text and os.sep + "kiln" + os.sep + "nn" not in text


def test_the_whole_traceback_on_demand() -> None:
    code = """
        import kiln, traceback
        for call in (lambda: kiln.movedim(3, 0, 1), lambda: kiln.nn.Linear(3, 4)(kiln.ones(2, 5))):
            try:
                call()
            except Exception as error:
                print(type(error).__name__, len(traceback.extract_tb(error.__traceback__)))
    """
    shown = {
        value: subprocess.run(
            [sys.executable, "-P", "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True,
            env={**os.environ, "KILN_TRACEBACK": value},
        ).stdout.split()
        for value in ("", "full")
    }  # fmt: skip
    assert shown[""] == ["TypeError", "2", "RuntimeError", "2"]
    assert shown["full"][0] == "AttributeError" and int(shown["full"][1]) > 2 and int(shown["full"][3]) > 2


def test_post_mortem_has_the_users_frame() -> None:
    local = 17
    try:
        Inner()(kiln.ones(local, 3))
    except RuntimeError as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    assert frames[0].f_locals["local"] == 17 and "x" in frames[-1].f_locals


@pytest.mark.parametrize("made", [kiln.vmap, kiln.func.grad, kiln.func.jacrev, kiln.func.hessian])
def test_what_a_transform_makes_is_like_its_function(made: Callable[..., Any]) -> None:
    function = made(_attribute)
    assert (function.__name__, function.__module__) == ("_attribute", __name__)
    assert function.__wrapped__ is not None and list(inspect.signature(function).parameters) == ["x"]
    of_kiln = made(kiln.exp)
    assert of_kiln.__name__ == "exp" and not hasattr(of_kiln, "__kiln_name__")
    assert made(lambda x: (x * x).sum())(kiln.ones(2)).shape[0] == 2 or made is kiln.vmap


# -- text that is not UTF-8: the name of a file of another encoding has halves of surrogate pairs ------------

ODD = "odd\udcff"


def _odd(text: str) -> Callable[[Any], Any]:
    """A function of a file, and with a name, that UTF-8 cannot hold."""
    names: dict[str, Any] = {"kiln": kiln}
    exec(compile(f"def f(x):\n    {text}", f"{ODD}.py", "exec"), names)
    function: Callable[[Any], Any] = names["f"]
    function.__name__ = function.__qualname__ = ODD
    return function


@pytest.mark.parametrize("made", [lambda f: f, kiln.compile])
def test_lines_of_a_file_whose_name_is_not_utf_8(made: Callable[..., Any]) -> None:
    """An error names them with what cannot be written escaped, as Python's own messages do."""
    run = made(_odd("y = x.exp(); y.add_(1); y.sum().backward()"))
    with pytest.raises(RuntimeError, match=r"odd\\udcff\.py:2"):
        run(kiln.ones(3, requires_grad=True))


def test_a_compiled_function_of_such_a_file_is_explained() -> None:
    run = kiln.compile(_odd("y = x * 2; y.add_(1); return y"))
    for _ in range(5):
        assert run(kiln.ones(3)).tolist() == [3.0] * 3
        kiln.compiler.wait()
    found = run.explain()
    assert "odd\\udcff.py:2" in found.html() and str(found).startswith("odd\\udcff: ")
    assert (str(found) + found.html()).encode("utf-8")


def test_functions_with_such_names() -> None:
    """A hook is named in the error; a keyword and a dtype of such a name are refused."""
    x = kiln.ones(2, requires_grad=True)
    x.register_hook(_odd("return x[:1]"))
    with pytest.raises(RuntimeError, match=r"hook 'odd\\udcff' has changed the size"):
        (x * 2).sum().backward()
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        kiln.add(kiln.ones(2), kiln.ones(2), **{ODD: 1})
    with pytest.raises(TypeError, match="dtypes, got"):
        kiln.ones(2).sum(dtype=ODD)
