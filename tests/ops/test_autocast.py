"""autocast: the dtype of every function's results beside PyTorch's; casts, their derivatives and their cache;
custom functions; GradScaler.
"""

from __future__ import annotations

import copy
import gc
import os
import threading
import warnings
import weakref
from functools import partial
from typing import Any
from zlib import crc32

import pytest
from backend import kiln, needs_kiln, torch
from test_ops import LIKE, SAMPLED, call, peer_results, where_peer_can

from kiln.testing.compare import dtype_name
from kiln.testing.op_cases import tensors

pytestmark = needs_kiln

if kiln.is_kiln:
    from kiln.amp.lists import FLOAT32, LOW
else:
    FLOAT32 = LOW = frozenset()
# Of what autocast leaves as it is, a sample.
OTHERS = [n for n in sorted(LIKE) if n in SAMPLED and n not in FLOAT32 | LOW]
NAMES = sorted((FLOAT32 | LOW) & LIKE & {*SAMPLED})
ALL = os.environ.get("KILN_TEST_FULL") == "1"
NAMES += [n for n in OTHERS if ALL or not crc32(n.encode()) % 9]


def dtypes(results: Any) -> list[str]:
    return [dtype_name(y.dtype) for y in results]


@pytest.mark.parametrize("name", NAMES)
def test_the_dtypes_are_torchs(name: str, answers: Any) -> None:
    """Of results from float32 and from bfloat16."""
    entry = SAMPLED[name]

    def theirs(case: Any, dtype: str) -> list[str]:
        with torch.autocast("cpu"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dtypes(peer_results(name, case, dtype))

    for dtype in (d for d in ("float32", "bfloat16") if d in entry.dtypes):
        for case in entry.cases(dtype):
            with where_peer_can():
                expected = answers(case[:2], partial(theirs, case, dtype))
            with kiln.autocast("cpu"):
                assert dtypes(call(entry, tensors(kiln, case, dtype))) == expected, case.label


def test_names_on_the_lists_are_functions() -> None:
    """A name that is misspelt would cast nothing."""
    from kiln.amp.autocast_mode import _knows
    from kiln.table import registry

    for name in sorted((FLOAT32 | LOW) - {"unrolled"}):
        space, _, short = name.rpartition(".")
        home = getattr(kiln, space) if space else kiln
        functions = [getattr(h, short) for h in (home, kiln.nn.functional) if hasattr(h, short)]
        functions = functions or [registry.function(name)]
        assert functions, name
        assert any(_knows(function) for function in functions), name


def test_operators_methods_and_modules() -> None:
    x, layer = kiln.ones(3, 3), kiln.nn.Linear(3, 3)
    with kiln.autocast("cpu", dtype=kiln.float16):
        for y in (x @ x, x.matmul(x), kiln.mm(x, mat2=x), layer(x), kiln.nn.functional.linear(x, x)):
            assert y.dtype == kiln.float16
        assert (x + x).dtype == kiln.float32 and (x @ x + x).dtype == kiln.float32
        assert (x.double() @ x.double()).dtype == kiln.float64
        assert x.addmm_(x, x).dtype == kiln.float32
        assert kiln.mm(x, x, out=kiln.empty(3, 3)).dtype == kiln.float32
        assert kiln.nn.GRU(3, 2)(x)[0].dtype == kiln.float32
        assert kiln.nn.LSTM(3, 2)(x)[0].dtype == kiln.float16
        attention = kiln.nn.MultiheadAttention(4, 2, batch_first=True)
        assert attention(*[kiln.ones(1, 2, 4)] * 3)[0].dtype == kiln.float16
    assert (x @ x).dtype == kiln.float32


def test_what_a_function_calls_is_not_cast_again() -> None:
    """The first call of a function under autocast makes it for all that come after."""
    x = kiln.arange(12.0).reshape(3, 4) / 7
    with kiln.autocast("cpu"):
        inside = kiln.cosine_similarity(x, x + 1), kiln.nn.functional.bilinear(x, x, kiln.ones(2, 4, 4))
    outside = kiln.cosine_similarity(x, x + 1), kiln.nn.functional.bilinear(x, x, kiln.ones(2, 4, 4))
    for a, b in zip(inside, outside, strict=True):
        assert a.dtype == b.dtype and kiln.equal(a, b)


def test_nested_off_and_left_by_an_error() -> None:
    x = kiln.ones(2, 2)
    with kiln.autocast("cpu"):
        with kiln.autocast("cpu", enabled=False):
            assert (x @ x).dtype == kiln.float32 and not kiln.is_autocast_enabled("cpu")
        with kiln.autocast("cpu", dtype=kiln.float16):
            assert (x @ x).dtype == kiln.float16 and kiln.get_autocast_dtype("cpu") == kiln.float16
        assert (x @ x).dtype == kiln.bfloat16 and kiln.is_autocast_enabled("cpu")
        with pytest.raises(ZeroDivisionError), kiln.autocast("cpu", enabled=False):
            x @ x / (1 // 0)
        assert (x @ x).dtype == kiln.bfloat16
        found = []
        thread = threading.Thread(target=lambda: found.append((x @ x).dtype))
        thread.start()
        thread.join()
        assert found == [kiln.float32]
    assert (x @ x).dtype == kiln.float32


def test_decorated_functions_and_generators() -> None:
    x = kiln.ones(2, 2)

    @kiln.autocast("cpu")
    def function() -> Any:
        return (x @ x).dtype

    @kiln.autocast("cpu")
    def generator() -> Any:
        yield (x @ x).dtype
        yield (x @ x).dtype

    assert function() == kiln.bfloat16
    steps = generator()
    assert next(steps) == kiln.bfloat16 and (x @ x).dtype == kiln.float32 and next(steps) == kiln.bfloat16


def test_gradients_come_in_the_parameters_dtype() -> None:
    """... with the values of a program that casts by hand."""
    x, w = kiln.linspace(-1, 1, 12).reshape(3, 4), kiln.linspace(-2, 3, 8).reshape(4, 2)
    ours, by_hand = w.clone().requires_grad_(), w.clone().requires_grad_()
    with kiln.autocast("cpu"):
        loss = kiln.nn.functional.mse_loss(x @ ours, kiln.ones(3, 2))
    loss.backward()
    product = x.bfloat16() @ by_hand.bfloat16()
    kiln.nn.functional.mse_loss(product.float(), kiln.ones(3, 2)).backward()
    assert ours.grad.dtype == kiln.float32 and kiln.equal(ours.grad, by_hand.grad)


def test_parameters_are_cast_once_until_the_outermost_ends() -> None:
    w, x = kiln.ones(2, 2, requires_grad=True), kiln.ones(2, 2)
    with kiln.autocast("cpu"):
        x @ w
        kept = weakref.ref(next(iter(kiln._core.cast_cache().values()))[2])
        assert len(kiln._core.cast_cache()) == 1
        with kiln.autocast("cpu", enabled=False):
            pass
        (x @ w).sum().backward()
        (x @ w).sum().backward()  # through the same cast
        assert kept() is not None and w.grad.tolist() == [[4.0, 4.0], [4.0, 4.0]]
        with kiln.no_grad():
            assert not (x @ w).requires_grad
            w.mul_(2)
            assert (x @ w).tolist() == [[4.0, 4.0], [4.0, 4.0]]  # a written parameter is cast anew
        assert (x @ w).requires_grad
    gc.collect()
    assert kept() is None and not kiln._core.cast_cache()
    with kiln.autocast("cpu", cache_enabled=False):
        x @ w
        assert not kiln._core.cast_cache()


def test_casts_know_whose_they_are() -> None:
    """A parameter that is gone may leave its address to another."""
    x = kiln.ones(1, 1)
    with kiln.autocast("cpu"):
        for value in range(50):
            w = kiln.full((1, 1), float(value), requires_grad=True)
            assert (x @ w).item() == value
            del w


def test_compiled_as_eager() -> None:
    layer, x = kiln.nn.Linear(4, 3), kiln.linspace(-1, 1, 8).reshape(2, 4)

    def step(x: Any) -> Any:
        with kiln.autocast("cpu"):
            return kiln.nn.functional.cross_entropy(layer(x).relu(), kiln.tensor([0, 2]))

    compiled, expected = kiln.compile(step, wait=True), step(x)
    for _ in range(3):
        assert kiln.equal(compiled(x), expected)
    outside = kiln.compile(lambda x: layer(x), wait=True)
    for _ in range(3):
        assert outside(x).dtype == kiln.float32
        with kiln.autocast("cpu"):
            assert outside(x).dtype == kiln.bfloat16


def test_a_checkpoint_computes_again_under_the_same_mode() -> None:
    w, x = kiln.linspace(0, 1, 4).reshape(2, 2).requires_grad_(), kiln.linspace(-1, 2, 4).reshape(2, 2)
    seen = []

    def block(x: Any) -> Any:
        seen.append((x @ w).dtype)
        return (x @ w).tanh()

    for reentrant in (False, True):
        x = x.detach().requires_grad_()
        with kiln.autocast("cpu"):
            y = kiln.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant).float().sum()
        y.backward()
    assert seen == [kiln.bfloat16] * 4


def test_custom_functions() -> None:
    seen = []

    class Product(kiln.autograd.Function):
        @staticmethod
        @kiln.amp.custom_fwd(device_type="cpu")
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @kiln.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, grad: Any) -> Any:
            a, b = ctx.saved_tensors
            seen.append((grad @ b.t()).dtype)
            return (grad @ b.t()).float(), (a.t() @ grad).float()

    class Wide(kiln.autograd.Function):
        @staticmethod
        @kiln.amp.custom_fwd(device_type="cpu", cast_inputs=kiln.float32)
        def forward(ctx: Any, a: Any) -> Any:
            seen.append((a @ a).dtype)
            return a * 2

        @staticmethod
        @kiln.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    x = kiln.ones(2, 2, requires_grad=True)
    with kiln.autocast("cpu"):
        y = Product.apply(x, x)
        assert y.dtype == kiln.bfloat16 and Wide.apply(y.detach()).dtype == kiln.float32
    y.sum().backward()
    assert seen == [kiln.float32, kiln.bfloat16]
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
        kiln.amp.custom_bwd(device_type=kiln.device("cpu"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_another_dtype_warns_and_changes_nothing(dtype: str) -> None:
    x = kiln.ones(2, 2)
    with pytest.warns(UserWarning, match=r"In CPU autocast, but the target dtype is not supported"):
        mode = kiln.autocast("cpu", dtype=getattr(kiln, dtype))
    with mode:
        assert (x @ x).dtype == kiln.float32


def test_wrong_devices() -> None:
    with pytest.raises(ValueError, match="Expected `device_type` of type `str`"):
        kiln.autocast(kiln.device("cpu"))
    with pytest.raises(RuntimeError):
        kiln.autocast("toaster")


def test_settings_of_a_thread() -> None:
    x = kiln.ones(2, 2)
    kiln.set_autocast_dtype("cpu", kiln.float16)
    try:
        with kiln.autocast("cpu"):
            assert (x @ x).dtype == kiln.float16
        kiln.set_autocast_enabled("cpu", True)
        assert (x @ x).dtype == kiln.float16 and kiln.is_autocast_cache_enabled()
    finally:
        kiln.set_autocast_enabled("cpu", False)
        kiln.set_autocast_dtype("cpu", kiln.bfloat16)
    assert (x @ x).dtype == kiln.float32


# ---- GradScaler ----


def trained(t: Any, infinite: tuple[int, ...], **settings: Any) -> list[Any]:
    """Scales and weights of ten steps; at those of `infinite` the loss is inf."""
    w = t.tensor([1.0, -2.0], requires_grad=True)
    optimizer = t.optim.SGD([w], lr=0.125)
    scaler = t.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3, **settings)
    told = []
    for k in range(10):
        optimizer.zero_grad()
        loss = (w * w).sum() * (float("inf") if k in infinite else 1.0)
        scaler.scale(loss).backward()
        if k % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        told.append([scaler.get_scale(), scaler.state_dict(), w.detach().tolist()])
    return told


@pytest.mark.parametrize("infinite", [(), (0,), (4, 5, 9)])
@pytest.mark.parametrize("settings", [{}, {"growth_factor": 4.0, "backoff_factor": 0.25}, {"enabled": False}])
def test_scales_are_torchs(infinite: tuple[int, ...], settings: dict[str, Any], answers: Any) -> None:
    ours, theirs = answers.both(partial(_told, infinite, settings))
    assert ours == theirs


def _told(infinite: tuple[int, ...], settings: dict[str, Any], t: Any) -> Any:
    return repr(trained(t, infinite, **settings))


def test_a_scaler_used_in_the_wrong_order() -> None:
    w = kiln.ones(2, requires_grad=True)
    optimizer, scaler = kiln.optim.SGD([w], lr=0.1), kiln.amp.GradScaler("cpu")
    with pytest.raises(AssertionError, match="Attempted step but _scale is None"):
        scaler.step(optimizer)
    scaler.scale(w.sum()).backward()
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
        scaler.update()
    with pytest.raises(RuntimeError, match="Closure use is not currently supported"):
        scaler.step(optimizer, closure=lambda: None)
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called on this optimizer"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) is being called after step"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"step\(\) has already been called"):
        scaler.step(optimizer)
    scaler.update()
    for settings in ({"growth_factor": 1.0}, {"backoff_factor": 1.0}):
        with pytest.raises(AssertionError, match="factor must be"):
            kiln.amp.GradScaler("cpu", **settings)
    with pytest.raises(ValueError, match="outputs must be a Tensor or an iterable of Tensors"):
        scaler.scale(3)
    h = kiln.ones(2, dtype=kiln.float16, requires_grad=True)
    scaler.scale(h.sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.step(kiln.optim.SGD([h], lr=0.1))


def test_states_of_scalers() -> None:
    w = kiln.ones(2, requires_grad=True)
    optimizer, scaler = kiln.optim.SGD([w], lr=0.1), kiln.amp.GradScaler("cpu", init_scale=4.0)
    pair = scaler.scale([w.sum(), w.prod()])
    assert isinstance(pair, list) and pair[0].item() == 8.0
    pair[0].backward()
    scaler.step(optimizer)
    with pytest.raises(AssertionError, match="may only be pickled"):
        copy.deepcopy(scaler)
    scaler.update(new_scale=16.0)
    other = kiln.amp.GradScaler("cpu")
    other.load_state_dict(copy.deepcopy(scaler).state_dict())
    assert other.state_dict() == scaler.state_dict() and other.get_scale() == 16.0
    with pytest.raises(RuntimeError, match="The source state dict is empty"):
        other.load_state_dict({})
    assert kiln.amp.GradScaler("cpu", enabled=False).state_dict() == {}


# ---- names of devices ----


def test_names_that_pytorch_deprecated() -> None:
    x = kiln.ones(2, 2)
    with pytest.warns(FutureWarning, match=r"amp.autocast\(args...\)` is deprecated"):
        mode = kiln.cpu.amp.autocast(dtype=kiln.float16)
    with mode:
        assert (x @ x).dtype == kiln.float16
    with pytest.warns(UserWarning, match="CUDA is not available"):
        mode = kiln.cuda.amp.autocast()
    with mode:
        assert (x @ x).dtype == kiln.float32 and not kiln.is_autocast_enabled("cuda")
    with pytest.warns(UserWarning, match="CUDA is not available"):
        scaler = kiln.cuda.amp.GradScaler()
    assert not scaler.is_enabled() and scaler.scale(x) is x and scaler.get_scale() == 1.0
    with pytest.warns(FutureWarning, match="amp.GradScaler"):
        assert kiln.cpu.amp.GradScaler(init_scale=2.0).get_scale() == 2.0
    with pytest.warns(DeprecationWarning, match="is_autocast_cpu_enabled"):
        assert not kiln.is_autocast_cpu_enabled()
