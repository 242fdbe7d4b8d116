"""Layers that learn their sizes from the first input, beside PyTorch's."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln, torch

pytestmark = [
    needs_kiln,
    pytest.mark.skipif(torch is None, reason="PyTorch, the tests' peer, is missing"),
    pytest.mark.filterwarnings("ignore:Lazy modules"),
]

LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    ("Linear", (3,), {}, (2, 5)),
    ("Linear", (3,), {"bias": False}, (5,)),
    ("Conv1d", (4, 3), {"groups": 2, "padding": "same"}, (2, 6, 7)),
    ("Conv2d", (4, 3, 2), {"padding": 1, "padding_mode": "reflect", "bias": False}, (3, 6, 7)),
    ("Conv3d", (2, 2), {"dtype": "float64"}, (1, 2, 3, 3, 3)),
    ("ConvTranspose1d", (4, 3), {"stride": 2}, (2, 3, 5)),
    ("ConvTranspose2d", (4, 3), {"groups": 2, "output_padding": 0}, (4, 5, 3)),
    ("ConvTranspose3d", (2, 2), {}, (1, 2, 3, 3, 3)),
    ("BatchNorm1d", (), {}, (4, 3)),
    ("BatchNorm2d", (), {"affine": False}, (2, 3, 4, 4)),
    ("BatchNorm3d", (), {"track_running_stats": False}, (2, 3, 2, 2, 2)),
    ("InstanceNorm1d", (), {}, (2, 3, 4)),
    ("InstanceNorm2d", (), {"affine": True, "track_running_stats": True}, (2, 3, 4, 4)),
    ("InstanceNorm3d", (), {"affine": False}, (2, 3, 2, 2, 3)),
]


def made(f: Any, name: str, args: Any, options: Any) -> Any:
    given = dict(options)
    if "dtype" in given:
        given["dtype"] = getattr(f, given["dtype"])
    return getattr(f.nn, f"Lazy{name}")(*args, **given)


def described(module: Any) -> Any:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return (
        repr(module),
        type(module).__name__,
        [(n, tuple(t.shape), str(t.dtype).split(".")[1]) for n, t in tensors],
    )


@pytest.mark.parametrize(("name", "args", "options", "shape"), LAYERS)
def test_lazy_layers(name: str, args: Any, options: Any, shape: Any) -> None:
    """Before the first call, after it, with PyTorch's weights: the same text, names, shapes and results."""
    ours, theirs = (made(f, name, args, options) for f in (kiln, torch))
    waiting = [type(p).__name__ for p in (*ours.parameters(), *ours.buffers())]
    assert waiting == [
        type(p).__name__.replace("Torch", "") for p in (*theirs.parameters(), *theirs.buffers())
    ]
    assert repr(ours) == repr(theirs) and ours.has_uninitialized_params() == theirs.has_uninitialized_params()
    held = list(ours.parameters())
    x = np.random.default_rng(0).standard_normal(shape).astype(options.get("dtype", "float32"))
    found = [m(f.from_numpy(x)) for f, m in ((kiln, ours), (torch, theirs))]
    assert described(ours) == described(theirs) and found[0].shape == found[1].shape
    assert all(p is q and type(p) is kiln.nn.Parameter for p, q in zip(held, ours.parameters(), strict=True))
    assert not ours._forward_pre_hooks
    fresh = made(kiln, name, args, options)
    fresh.load_state_dict({k: kiln.from_numpy(v.numpy().copy()) for k, v in theirs.state_dict().items()})
    got, want = fresh.eval()(kiln.from_numpy(x)), theirs.eval()(torch.from_numpy(x))
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert described(fresh) == described(ours)


def said(run: Any) -> tuple[str, str]:
    with pytest.raises(Exception) as caught:
        run()
    text = str(caught.value).removeprefix("LazyConv2d: ")  # the layer, which PyTorch does not name
    return type(caught.value).__name__, text.replace("torch", "kiln")[:45]


def test_what_waits_cannot_be_used() -> None:
    def uses(f: Any) -> list[Any]:
        wrong = f.nn.LazyConv2d(4, 3, groups=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net = f.nn.Sequential(f.nn.LazyLinear(3), f.nn.LazyBatchNorm1d())
        p, known = net[0].weight, f.nn.Linear(2, 3)
        return [
            said(lambda: p.shape),
            said(lambda: p.sum()),
            said(lambda: p + 1),
            said(lambda: wrong(f.zeros(1, 3, 4, 4))),
            said(lambda: wrong(f.zeros(3, 4))),
            said(lambda: known.load_state_dict(f.nn.LazyLinear(3).state_dict())),
        ]

    assert uses(kiln) == uses(torch)


def test_what_waits_is_copied_converted_and_kept() -> None:
    """deepcopy, double(), a state that waits loaded into another, an optimizer made before."""
    net = kiln.nn.Sequential(kiln.nn.LazyLinear(3), kiln.nn.LazyBatchNorm1d(), kiln.nn.LazyLinear(1)).double()
    other = copy.deepcopy(net)
    assert other[0].weight is not net[0].weight and other[0].has_uninitialized_params()
    other.load_state_dict(net.state_dict())
    assert other[0].has_uninitialized_params()
    optimizer = kiln.optim.SGD(net.parameters(), lr=0.5)
    x = kiln.ones(4, 2, dtype=kiln.float64)
    net(x).sum().backward()
    before = net[2].bias.detach().clone()
    optimizer.step()
    assert net[0].weight.dtype == net[1].running_mean.dtype == kiln.float64
    assert (net[2].bias.detach() - before).tolist() == pytest.approx([-2.0])
    assert other[0].weight.dtype == kiln.float64 and other(x).shape == (4, 1)


def test_making_one_draws_nothing_and_warns_of_nothing() -> None:
    seed = kiln.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Lazy modules")
        layer = kiln.nn.LazyLinear(3)
    assert (layer.in_features, layer.out_features) == (0, 3)
    assert kiln.equal(kiln.get_rng_state(), seed)
    bound = 1 / np.sqrt(4)  # PyTorch's: the bias is drawn within it once the size is known
    assert 0 < layer(kiln.zeros(1, 4)).abs().max().item() <= bound
