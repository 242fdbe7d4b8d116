"""Programs as modules again: the names, tensors, calls and bits that the model had, fresh and from a file."""

from __future__ import annotations

import copy
import io
import json
from typing import Any

import pytest

import kiln
from kiln import nn
from kiln.export import Dim, export, load, save, unflatten
from kiln.utils._pytree import tree_leaves, tree_structure

x = kiln.linspace(-1, 2, 12).reshape(4, 3)


class Scaled(nn.Module):
    """Two results, one of them its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.register_buffer("b", kiln.ones(3))

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return self.lin(x).relu() * self.b * scale, x


class Twice(nn.Module):
    """A module called in two ways, one of two names, one that is not called and one that does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.sub, self.seq = Scaled(), nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        self.shared, self.unused, self.same = self.seq[0], nn.Linear(2, 2), nn.Identity()

    def forward(self, x: Any) -> Any:
        a, b = self.sub(x, scale=2.0)
        c, d = self.sub(a, scale=3.0)
        return {"o": self.seq(c) + self.shared(d), "p": self.same(b)}


class Normed(nn.Module):
    """A module that writes its buffers and draws, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))

    def forward(self, x: Any) -> Any:
        return self.a(self.a(x))


class Sized(nn.Module):
    """Sizes that vary, in modules too."""

    def __init__(self) -> None:
        super().__init__()
        self.t, self.flat = nn.Linear(3, 4), nn.Flatten(0)

    def forward(self, x: Any) -> Any:
        return self.flat(self.t(x)).reshape(x.shape[0] * 2, -1)


class Tied(nn.Module):
    """A weight of two names, a module of whose results one is not used, keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.lstm, self.head = nn.Embedding(3, 4), nn.LSTM(4, 4), nn.Linear(4, 3, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, i: Any, *, mask: Any = None) -> Any:
        e, (h, _) = self.lstm(self.emb(i))
        return self.head(e * mask), h


class Count(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("c", kiln.zeros(()))
        self.register_buffer("h", kiln.ones(2), persistent=False)

    def forward(self, x: Any) -> Any:
        self.c += 1
        return x * self.c + self.h[0]


class Written(nn.Module):
    """Buffers that modules and who calls them write, a written argument, a tensor that lies about."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.w, self.held = Count(), nn.Parameter(kiln.ones(3)), [kiln.ones(3) * 0.5]

    def forward(self, x: Any) -> Any:
        y = self.count(x)
        self.count.c.mul_(2)
        y = self.count(y) + self.count.c + self.w * self.held[0]
        self.count.c = self.count.c + 5
        x.add_(1)
        return y, self.count.c


class Branching(nn.Module):
    """A module inside of control flow."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.k = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return kiln.graph.cond(x.sum() > 0, lambda x: self.l(x), lambda x: -x, (self.k(x),))


class Passing(nn.Module):
    """A module that gives back what another one made."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.same = nn.Linear(3, 3), nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.same(self.l(x)), x


class Borrowed(nn.Module):
    """Modules and weights that are used without a call of who has them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3))
        vars(self.b)["other"] = self.a

        class Caller(nn.Module):
            def forward(self, x: Any) -> Any:
                return self.other(x) + self.other.weight.sum()

        self.c = Caller()
        vars(self.c)["other"] = self.a

    def forward(self, x: Any) -> Any:
        return self.c(self.b[0].forward(x)) + self.a(x)


ids = kiln.tensor([[1, 2], [0, 1]])
CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], dict[str, Any]]] = {
    "twice": (Twice, (x,), {}, {}),
    "kept": (Twice, (x,), {}, {"preserve_module_call_signature": ("sub", "same")}),
    "normed": (Normed, (x,), {}, {}),
    "sized": (Sized, (x,), {}, {"dynamic_shapes": {"x": {0: Dim("n", min=2)}}}),
    "tied": (
        Tied, (ids,), {"mask": kiln.ones(2, 2, 1)},
        {"preserve_module_call_signature": ("lstm", "head")},
    ),
    "written": (Written, (x,), {}, {}),
    "branching": (Branching, (x,), {}, {}),
    "passing": (Passing, (x,), {}, {"preserve_module_call_signature": ("same",)}),
    "borrowed": (Borrowed, (x,), {}, {}),
}  # fmt: skip


def _of_file(program: Any) -> Any:
    file = io.BytesIO()
    save(program, file)
    file.seek(0)
    return load(file)


def _results(module: Any, args: Any, kwargs: Any) -> list[Any]:
    kiln.manual_seed(7)
    given = [y.clone() for y in args]
    found = [*tree_leaves(module(*given, **kwargs)), *given, kiln.rand(1)]
    return found


@pytest.mark.parametrize("name", CASES)
def test_unflattened_is_the_model(name: str) -> None:
    """The same bits, gradients, buffers, names, random numbers, in two calls, of a program and of a file."""
    kiln.manual_seed(0)
    make, args, kwargs, how = CASES[name]
    model = make()
    program = export(copy.deepcopy(model), tuple(y.clone() for y in args), kwargs, **how)
    for made in (_of_file(program), program):
        model_now = copy.deepcopy(model)
        whole = unflatten(made).train()
        assert list(whole.state_dict()) == list(model_now.state_dict())
        named = [n for n, _ in model_now.named_modules(remove_duplicate=False)]
        assert [n for n, _ in whole.named_modules(remove_duplicate=False)] == named
        for _ in range(2):
            found, known = (_results(m, args, kwargs) for m in (whole, model_now))
            assert all(kiln.equal(a, b) for a, b in zip(found, known, strict=True))
        for a, b in zip(whole.state_dict().values(), model_now.state_dict().values()):
            assert kiln.equal(a, b)
        for results in (found, known):
            sum(y.sum() for y in results if y.requires_grad).backward()
        expected = dict(model_now.named_parameters())
        for n, p in whole.named_parameters():
            assert (p.grad is None) == (expected[n].grad is None), n
            assert p.grad is None or kiln.equal(p.grad, expected[n].grad), n
        for key, p in made.named_parameters():
            assert whole.get_parameter(key) is p
            p.grad = None


@pytest.mark.parametrize("name", CASES)
def test_decomposed_and_unflattened_is_the_model(name: str) -> None:
    """Of primitives alone: modules, names, and the decomposed program's bits."""
    kiln.manual_seed(0)
    make, args, kwargs, how = CASES[name]
    model = make()
    program = export(copy.deepcopy(model), tuple(y.clone() for y in args), kwargs, **how)
    plain = program.run_decompositions()
    for made in (_of_file(plain), plain, _of_file(program).run_decompositions()):
        model_now = copy.deepcopy(model)
        whole, decomposed = unflatten(made).train(), copy.deepcopy(unflatten(made)).train()
        assert list(whole.state_dict()) == list(model_now.state_dict())
        assert [n for n, _ in whole.named_modules()] == [n for n, _ in model_now.named_modules()]
        calls = [n.target for n in unflatten(program).graph.nodes if n.op == "call_module"]
        assert [n.target for n in whole.graph.nodes if n.op == "call_module"] == calls
        for _ in range(2):
            found, again, known = (_results(m, args, kwargs) for m in (whole, decomposed, model_now))
            assert all(kiln.equal(a, b) for a, b in zip(found, again, strict=True))
            for a, b in zip(found, known, strict=True):
                assert kiln.allclose(a, b, atol=1e-6)
        for a, b in zip(whole.state_dict().values(), model_now.state_dict().values()):
            assert kiln.allclose(a.double(), b.double(), atol=1e-6)
        for results in (found, known):
            sum(y.sum() for y in results if y.requires_grad).backward()
        expected = dict(model_now.named_parameters())
        for n, p in whole.named_parameters():
            assert (p.grad is None) == (expected[n].grad is None), n
            assert p.grad is None or kiln.allclose(p.grad, expected[n].grad, atol=1e-5), n
            p.grad = None
    deep = unflatten(plain)
    for path, module in deep.named_modules():
        for node in module.graph.nodes if getattr(module, "_graphs", None) else ():
            assert "linear" not in str(node.target) and "layer_norm" not in str(node.target), path


def test_modules_are_called_and_exchanged() -> None:
    """Each module by itself, with its tensors by position; another one in its place; a copy of the whole."""
    model = Twice()
    whole: Any = unflatten(export(model, (x,)))
    assert kiln.equal(whole.seq(x), model.seq(x)) and kiln.equal(whole.sub.lin(x), model.sub.lin(x))
    assert whole.shared is whole.seq.get_submodule("0")
    with pytest.raises(RuntimeError, match="no call of this module"):
        whole.unused(x)
    with pytest.raises(TypeError, match="by position; preserve_module_call_signature"):
        whole.seq(input=x)
    with pytest.raises(RuntimeError, match=r"x: dim 0 must be 4, got 5"):
        whole(kiln.ones(5, 3))
    copied = copy.deepcopy(whole)
    whole.seq = model.seq = nn.Sequential(nn.Linear(3, 4))
    assert kiln.equal(whole(x)["o"], model(x)["o"]) and not kiln.equal(copied(x)["o"], model(x)["o"])


def test_modules_that_draw() -> None:
    """A module by itself draws as the model's does, wherever it stands among others."""
    model = Normed()
    whole: Any = unflatten(export(copy.deepcopy(model), (x,)))
    for name in ("a.2", "a"):
        found = []
        for m in (model, whole):
            kiln.manual_seed(5)
            found.append((m.get_submodule(name)(x), kiln.rand(1)))
        assert kiln.equal(found[0][0], found[1][0]) and kiln.equal(found[0][1], found[1][1])


def test_kept_signatures() -> None:
    """A module is called as the model calls it, in each of its ways; the entries are PyTorch's."""
    model = Twice()
    program = export(model, (x,), preserve_module_call_signature=("sub", "same"))
    for made in (program, _of_file(program)):
        whole: Any = unflatten(made)
        for scale in (2.0, 3.0):
            found, known = (m.sub(x, scale=scale) for m in (whole, model))
            assert kiln.equal(found[0], known[0]) and found[1] is x
        assert whole.same(x) is x
        with pytest.raises(TypeError, match=r"kwargs: missing \['scale'\]"):
            whole.sub(x)
        entries = made.module_call_graph
        names = ["", "sub", "sub.lin", "seq", "seq.0", "seq.1", "shared", "unused", "same", "sub@1"]
        assert [e.fqn for e in entries] == names
        assert [e.fqn for e in entries if e.signature is not None] == ["", "sub", "same", "sub@1"]
        own, sub = entries[0].signature, entries[1].signature
        assert own.forward_arg_names == ["x"] and made.call_spec == (own.in_spec, own.out_spec)
        assert own.in_spec == tree_structure(((x,), {})) and own.out_spec == tree_structure({"o": 0, "p": 0})
        assert sub.in_spec == tree_structure(((x,), {"scale": 2.0}))
        assert [getattr(a, "value", None) for a in sub.inputs] == [None, 2.0]
        nodes = {node.name for node in made.graph_module.graph.nodes}
        given, gives = sub.inputs[0].name, [y.name for y in sub.outputs]
        assert given == gives[1] == "x" and set(gives) <= nodes


def test_a_module_that_does_nothing_keeps_its_signature() -> None:
    """It is called where it was called, and gives back what it is given."""
    whole: Any = unflatten(export(Passing(), (x,), preserve_module_call_signature=("same",)))
    assert whole.same(x) is x and "same" in [n.target for n in whole.graph.nodes if n.op == "call_module"]


def test_refusals() -> None:
    """What has no modules, and a name of none."""
    with pytest.raises(AttributeError, match="names 'nope', which the model has no module of"):
        export(Twice(), (x,), preserve_module_call_signature=("nope",))
    with pytest.raises(NotImplementedError, match="does not say which of its steps are calls of modules"):
        unflatten(export(lambda x: x * 2, (x,)))


def _edited(edit: Any) -> Any:
    file = io.BytesIO()
    save(export(Written(), (x.clone(),)), file)
    held = file.getvalue()
    size = int.from_bytes(held[:8], "little")
    header = json.loads(held[8 : 8 + size])
    signature = json.loads(header["__metadata__"]["kiln.signature"])
    edit(signature)
    header["__metadata__"]["kiln.signature"] = json.dumps(signature)
    text = json.dumps(header).encode()
    return io.BytesIO(len(text).to_bytes(8, "little") + text + held[8 + size :])


@pytest.mark.parametrize(
    "edit",
    [
        lambda s: s["calls"][0].__setitem__(0, "nope"),
        lambda s: s["calls"][0].__setitem__(1, 99),
        lambda s: s["calls"][0].__setitem__(2, -1),
        lambda s: s["calls"][1].__setitem__(1, 0),
        lambda s: s["calls"][0].__setitem__(3, ["x"]),
        lambda s: s["calls"][0].__setitem__(5, [[99, 3]]),
        lambda s: s["calls"][0].__setitem__(5, [3]),
        lambda s: s["calls"][0].__setitem__(6, {"tuple": []}),
        lambda s: s["modules"].append(["count..x", "count"]),
        lambda s: s["modules"].append(["other", "nope"]),
        lambda s: s["modules"].append(["w", "count"]),
        lambda s: s["modules"].append(["a.b", "count"]),
        lambda s: s["modules"].append(["count.again", "count"]),
        lambda s: s["tied"].append(["w2", 99]),
        lambda s: s["tied"].append(["count", 0]),
        lambda s: s.__setitem__("tied", 3),
    ],
)
def test_edited_files(edit: Any) -> None:
    """A file whose notes are wrong is refused with a sentence, or is a program whose notes are others."""
    file = _edited(edit)
    try:
        whole = unflatten(load(file))
    except (ValueError, NotImplementedError) as error:
        assert len(str(error)) > 20
    else:
        whole.state_dict()


def test_files_of_before() -> None:
    """A file without notes is a program; what its modules were is not known."""
    program = load(_edited(lambda s: [s.pop(key) for key in ("modules", "tied", "calls")]))
    assert [e.fqn for e in program.module_call_graph] == [""]
    with pytest.raises(NotImplementedError, match="of a file of before"):
        unflatten(program)
