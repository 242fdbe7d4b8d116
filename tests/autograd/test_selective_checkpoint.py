"""Checkpoints that keep some results: which are computed again, what policies are told, what is refused."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial
from typing import Any

import pytest
from backend import kiln, needs_kiln

from kiln.autograd import watch
from kiln.utils._operators import overload
from kiln.utils.checkpoint import CheckpointPolicy as Policy
from kiln.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

pytestmark = needs_kiln

nn = kiln.nn
PRODUCTS = [overload("mm"), overload("addmm")]


def products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Policy:
    return Policy.MUST_SAVE if op in PRODUCTS else Policy.PREFER_RECOMPUTE


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(8), nn.Dropout(0.5)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4, bias=False)

    def forward(self, x: Any) -> Any:
        return x * kiln.sigmoid(self.drop(self.down(self.norm(self.up(x)).tanh())))


@pytest.fixture
def block() -> Any:
    kiln.manual_seed(0)
    return Block()


class Counted:
    """`with` it, what runs, by name; derivatives left out."""

    def __enter__(self) -> dict[str, int]:
        self.names: dict[str, int] = {}
        watch.begin(self._count)
        return self.names

    def _count(self, number: int, name: str, *told: Any) -> None:
        if not name.endswith(" backward"):
            self.names[name] = self.names.get(name, 0) + 1

    def __exit__(self, *error: Any) -> None:
        watch.end(self._count)


def gradients(block: Any, policy: Any = None, call: Any = None) -> tuple[list[Any], dict[str, int]]:
    """The gradients of all parameters and the input, and what ran."""
    kiln.manual_seed(1)
    x = kiln.randn(2, 3, 4).requires_grad_()
    contexts = {} if policy is None else {"context_fn": partial(create_selective_checkpoint_contexts, policy)}
    block.zero_grad()
    with Counted() as names:
        y = block(x) if call is None else call(block, x, use_reentrant=False, **contexts)
        (y * y).sum().backward()
    return [p.grad.clone() for p in (x, *block.parameters())], names


def test_what_is_kept_is_not_computed_again(block: Any) -> None:
    plain, once = gradients(block)
    for policy, linears in (
        (None, 4),
        (products, 2),
        (PRODUCTS, 2),
        ([overload("mm")], 3),
        (lambda *a: True, 2),
    ):
        grads, ran = gradients(block, policy, checkpoint)
        assert all(kiln.equal(a, b) for a, b in zip(plain, grads, strict=True))
        assert once["linear"] == 2 and ran["linear"] == linears
        everything = policy is not None and not isinstance(policy, list) and policy is not products
        for name in ("layer_norm", "tanh", "dropout_values"):
            assert ran[name] == (1 if everything else 2), name


def test_what_a_policy_is_told(block: Any) -> None:
    told: list[Any] = []

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Policy:
        kiln.ones(3) + 1  # what it computes itself is asked of nobody
        told.append((str(op), [tuple(a.shape) for a in args if isinstance(a, kiln.Tensor)], ctx))
        return Policy.MUST_RECOMPUTE

    gradients(block, policy, checkpoint)
    assert [name for name, _, _ in told] == [
        "aten.addmm.default", "aten.native_layer_norm.default", "aten.tanh.default", "aten.mm.default",
        "aten.native_dropout.default", "aten.sigmoid.default", "aten.mul.Tensor",
    ]  # fmt: skip
    assert told[0][1] == [(8,), (6, 4), (4, 8)] and told[3][1] == [(6, 8), (8, 4)]  # PyTorch's arguments
    assert not any(ctx.is_recompute for _, _, ctx in told)
    assert [tuple(ctx.op_output.shape) for _, _, ctx in told[2:4]] == [(2, 3, 8), (2, 3, 4)]


def test_only_what_is_kept_lives_between_the_passes() -> None:
    seen: dict[str, Any] = {}

    def policy(ctx: Any, op: Any, *args: Any) -> bool:
        return str(op) == "aten.exp.default"

    def function(x: Any) -> Any:
        a = x.exp()
        b = a.sin()
        seen["not"] = weakref.ref(b)
        return b.cos() * 2

    x = kiln.ones(4, requires_grad=True)
    with Counted() as ran:
        y = checkpoint(function, x, use_reentrant=False, context_fn=lambda: _both(policy))
        gc.collect()
        assert seen["not"]() is None
        y.sum().backward()
    assert ran["exp"] == 1 and ran["sin"] == 2
    _, contexts = _LAST[0]
    assert all(not hasattr(call, "results") for calls in contexts._storage.calls.values() for call in calls)


_LAST: list[Any] = []


def _both(policy: Any) -> Any:
    """The contexts, and they are kept to look at: after backward they hold no tensors."""
    _LAST[:] = [create_selective_checkpoint_contexts(policy)]
    return _LAST[0]


def test_one_backward_pass_alone(block: Any) -> None:
    contexts = partial(create_selective_checkpoint_contexts, products)
    y = checkpoint(block, kiln.ones(2, 4), use_reentrant=False, context_fn=contexts).sum()
    y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="Trying to backward an extra time"):
        y.backward()
    nothing = partial(create_selective_checkpoint_contexts, lambda *asked: Policy.PREFER_CPU_OFFLOAD)
    y = checkpoint(block, kiln.ones(2, 4), use_reentrant=False, context_fn=nothing).sum()
    y.backward(retain_graph=True)
    y.backward()  # nothing was kept, everything is computed each time


def test_writes_to_what_is_kept() -> None:
    w = kiln.ones(3, 3, requires_grad=True)

    def function(x: Any) -> Any:
        return (x @ w).relu_().exp()

    x = kiln.ones(2, 3)
    y = checkpoint(function, x, use_reentrant=False, context_fn=lambda: _both(PRODUCTS))
    with pytest.raises(RuntimeError, match="cached during selective activation checkpoint has been mutated"):
        y.sum().backward()
    y = checkpoint(
        function, x, use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(PRODUCTS, allow_cache_entry_mutation=True),
    )  # fmt: skip
    y.sum().backward()
    kept = w.grad.clone()
    w.grad = None
    function(x).sum().backward()
    assert kiln.equal(kept, w.grad)


def test_a_function_that_does_something_else() -> None:
    w, runs = kiln.ones(3, 3, requires_grad=True), [0]

    def function(x: Any) -> Any:
        runs[0] += 1
        return (x @ w).sin() if runs[0] == 1 else (x.exp() @ w).sin()

    y = checkpoint(function, kiln.ones(2, 3), use_reentrant=False, context_fn=lambda: _both(products))
    with pytest.raises(RuntimeError, match="encountered during backward but not found in storage"):
        y.sum().backward()

    def other(x: Any) -> Any:
        runs[0] += 1
        return (x @ w).sin() if runs[0] == 1 else (x[:1] @ w).sin()

    runs[0] = 0
    y = checkpoint(other, kiln.ones(2, 3), use_reentrant=False, context_fn=lambda: _both(products))
    with pytest.raises(RuntimeError, match="matmul of these shapes and dtypes encountered during backward"):
        y.sum().backward()


def test_a_backward_pass_inside() -> None:
    w = kiln.randn(3, 3, requires_grad=True)

    def function(x: Any) -> Any:
        y = (x @ w).tanh()
        (g,) = kiln.autograd.grad(y.sum(), x, create_graph=True)
        return (y * g).sum()

    def grads(call: Any) -> list[Any]:
        w.grad = None
        x = kiln.arange(6.0).reshape(2, 3).requires_grad_()
        call(function, x).backward()
        return [x.grad, w.grad]

    plain = grads(lambda function, x: function(x))
    nothing = grads(partial(checkpoint, use_reentrant=False, context_fn=lambda: _both(lambda *asked: False)))
    assert all(kiln.equal(a, b) for a, b in zip(plain, nothing, strict=True))
    with pytest.raises(RuntimeError, match="Trying to backward an extra time"):  # two passes, as in PyTorch
        grads(partial(checkpoint, use_reentrant=False, context_fn=lambda: _both(products)))


def test_nested_and_compiled(block: Any) -> None:
    plain, _ = gradients(block)
    contexts = partial(create_selective_checkpoint_contexts, products)

    def nested(block: Any, x: Any, **settings: Any) -> Any:
        def inner(x: Any) -> Any:
            return checkpoint(block, x, use_reentrant=False, context_fn=contexts)

        return checkpoint(inner, x, **settings)

    for policy in (None, products):
        grads, _ = gradients(block, policy, nested)
        assert all(kiln.equal(a, b) for a, b in zip(plain, grads, strict=True))

    @kiln.compile
    def loss(x: Any) -> Any:
        return checkpoint(lambda x: (x @ block.up.weight.t()).sin().exp().sum(), x, use_reentrant=False,
                          context_fn=contexts)  # fmt: skip

    found = []
    for _ in range(3):
        block.zero_grad()
        loss(kiln.ones(2, 4)).backward()
        found.append(block.up.weight.grad.clone())
    block.zero_grad()
    (kiln.ones(2, 4) @ block.up.weight.t()).sin().exp().sum().backward()
    assert all(kiln.allclose(grad, block.up.weight.grad) for grad in found)


def test_other_threads_are_not_asked() -> None:
    told: list[str] = []

    def policy(ctx: Any, op: Any, *args: Any) -> bool:
        told.append(str(op))
        return False

    first, _ = create_selective_checkpoint_contexts(policy)
    with first:
        thread = threading.Thread(target=lambda: kiln.ones(3).exp())
        thread.start()
        thread.join()
        kiln.ones(3).sin()
    kiln.ones(3).cos()
    assert "aten.sin.default" in told and not {"aten.exp.default", "aten.cos.default"} & {*told}


def test_what_a_policy_raises(block: Any) -> None:
    def policy(ctx: Any, op: Any, *args: Any) -> bool:
        raise LookupError("the program's own")

    with pytest.raises(LookupError, match="the program's own"):
        gradients(block, policy, checkpoint)
    assert gradients(block)[0]  # nobody is asked any more


def test_what_is_not_a_policy() -> None:
    with pytest.raises(TypeError, match="policy_fn_or_list must be either a function or a list of ops."):
        create_selective_checkpoint_contexts(3)  # type: ignore[arg-type]
    for wrong in (3, overload("mm").overloadpacket):
        with pytest.raises(ValueError, match="Expected op in `op_list` to be an OpOverload but got"):
            create_selective_checkpoint_contexts([wrong])


def test_operators() -> None:
    mm = overload("mm")
    assert (str(mm), mm.name(), mm.__name__, mm.namespace) == (
        "aten.mm.default",
        "aten::mm",
        "mm.default",
        "aten",
    )
    assert mm is overload("mm") and mm.overloadpacket.default == mm and mm != overload("bmm")
    assert overload("add", "Tensor").name() == "aten::add.Tensor" != overload("add", "Scalar").name()
    assert {overload("_scaled_dot_product_flash_attention")} == {
        overload("_scaled_dot_product_efficient_attention")
    }
    assert kiln.equal(mm(kiln.ones(2, 2), kiln.ones(2, 2)), kiln.ones(2, 2) * 2)
