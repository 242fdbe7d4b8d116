"""Helpers over weights (pruning, fusion, orthogonal ones, old names) and layers that few programs use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import nn
from kiln.nn.utils import prune

WEIGHT = [[1.0, -2.0, 0.5, 3.0], [-0.25, 4.0, -6.0, 0.75], [5.0, -0.125, 2.5, -1.5]]


def layer(lib: Any, kind: str = "Linear", *sizes: int) -> Any:
    """A layer whose parameters and buffers are known."""
    made = getattr(lib.nn, kind)(*(sizes or (4, 3)))
    for k, x in enumerate(made.state_dict().values()):
        if x.ndim:
            x.copy_(lib.arange(1.0 + k, x.numel() + 1 + k).reshape(x.shape) / (7 - k))
    return made


def pruned(lib: Any, steps: Any) -> Any:
    """A layer after steps of pruning, and what its next forward sees; then what is left."""
    utils, made = import_module(f"{lib.__name__}.nn.utils.prune"), lib.nn.Linear(4, 3)
    made.weight.data.copy_(lib.tensor(WEIGHT))
    for name, settings in steps:
        getattr(utils, name)(made, "weight", **settings)
    found = [sorted(made.state_dict()), made.weight.tolist(), made.weight_mask.tolist()]
    made(lib.ones(1, 4)).sum().backward()
    found += [made.weight_orig.grad.tolist(), utils.is_pruned(made)]
    utils.remove(made, "weight")
    return [
        *found,
        [name for name, _ in made.named_parameters()],
        made.weight.tolist(),
        utils.is_pruned(made),
    ]


L1, ROWS = ("l1_unstructured", {"amount": 4}), ("ln_structured", {"amount": 1, "n": 2, "dim": 0})
COLUMNS = ("ln_structured", {"amount": 0.25, "n": float("inf"), "dim": -1})


@pytest.mark.parametrize("steps", [[L1], [ROWS], [L1, ROWS], [COLUMNS, L1, L1], [("identity", {}), COLUMNS]])
def test_pruning(steps: Any, answers: Any) -> None:
    ours, theirs = answers.both(pruned, steps)
    assert ours == theirs


def test_pruning_at_random_and_of_several() -> None:
    kiln.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    prune.random_unstructured(model[0], "weight", 0.5)
    assert int((model[0].weight == 0).sum()) == 6
    prune.random_structured(model[1], "weight", 1, 1)
    assert sorted((model[1].weight_mask.sum(0)).tolist()) == [0, 2, 2]
    both = [(model[0], "weight"), (model[1], "weight")]
    prune.global_unstructured(both, prune.L1Unstructured, amount=3)
    assert sum(int((m.weight == 0).sum()) for m, _ in both) == 6 + 2 + 3
    assert len(next(iter(model[0]._forward_pre_hooks.values()))) == 2  # a container of both methods
    with pytest.raises(TypeError, match='Only "unstructured" PRUNING_TYPE'):
        prune.global_unstructured(both, prune.LnStructured, amount=1, n=2)
    fresh = nn.Linear(2, 2)
    for error, settings in ((TypeError, "half"), (ValueError, -1), (ValueError, 1.5), (ValueError, 5)):
        with pytest.raises(error):
            prune.l1_unstructured(fresh, "weight", amount=settings)
    with pytest.raises(ValueError, match="has to be pruned before pruning can be removed"):
        prune.remove(fresh, "weight")
    assert list(fresh.state_dict()) == ["weight", "bias"]  # what failed has changed nothing


def fused(lib: Any, kind: str, sizes: Any, norm: str, transpose: bool) -> Any:
    made, after = layer(lib, kind, *sizes).eval(), layer(lib, norm, 3).eval()
    fuse = lib.nn.utils.fusion
    one = (
        fuse.fuse_linear_bn_eval(made, after)
        if kind == "Linear"
        else fuse.fuse_conv_bn_eval(made, after, transpose)
    )
    return [one.weight.detach(), one.bias.detach(), one.weight.requires_grad, type(one).__name__]


@pytest.mark.parametrize(
    ("kind", "sizes", "norm", "transpose"),
    [
        ("Linear", (4, 3), "BatchNorm1d", False),
        ("Conv2d", (2, 3, 1), "BatchNorm2d", False),
        ("ConvTranspose1d", (2, 3, 2), "BatchNorm1d", True),
    ],
)
def test_fusion(kind: str, sizes: Any, norm: str, transpose: bool, answers: Any) -> None:
    ours, theirs = answers.both(fused, kind, sizes, norm, transpose)
    for a, b in zip(ours, theirs, strict=True):
        assert a == b if not hasattr(a, "tolist") else np.allclose(a.tolist(), b.tolist(), rtol=1e-5)
    with pytest.raises(AssertionError, match="Fusion only for eval"):
        nn.utils.fusion.fuse_linear_bn_eval(nn.Linear(1, 1), nn.BatchNorm1d(1))


def orthogonal(lib: Any, kind: str, shape: Any, trivialization: bool) -> Any:
    rows, columns = shape
    made = lib.nn.Linear(columns, rows).double()
    made.weight.data.copy_((lib.arange(1.0, rows * columns + 1) ** 2 % 7).reshape(rows, columns))
    lib.nn.utils.parametrizations.orthogonal(made, "weight", kind, use_trivialization=trivialization)
    if trivialization:
        lib.manual_seed(0)
        held = made.parametrizations.weight
        held.original.data.copy_((lib.arange(1.0, rows * columns + 1) ** 2 % 5).reshape(rows, columns) / 3)
        held[0].base.copy_(lib.eye(max(shape)))
    made.weight.sum().backward()
    return [made.weight.detach(), made.parametrizations.weight.original.grad]


@pytest.mark.parametrize("kind", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4)])
def test_orthogonal_weights(kind: str, shape: Any, answers: Any) -> None:
    ours, theirs = answers.both(orthogonal, kind, shape, True)
    for a, b in zip(ours, theirs, strict=True):
        assert np.allclose(a.tolist(), b.tolist(), atol=1e-9)
    made = nn.utils.parametrizations.orthogonal(nn.Linear(shape[1], shape[0]), "weight", kind)
    q, _ = kiln.linalg.qr(kiln.randn(max(shape), max(shape)))
    wanted = (
        q[: shape[0], : shape[1]] if shape[0] == shape[1] else (q[:, : shape[1]] if shape[0] > 2 else q[:2])
    )
    made.weight = wanted
    assert kiln.allclose(made.weight, wanted, atol=1e-5)


def test_orthogonal_without_a_base(answers: Any) -> None:
    ours, theirs = answers.both(orthogonal, "householder", (4, 2), False)
    for a, b in zip(ours, theirs, strict=True):
        assert np.allclose(a.tolist(), b.tolist(), atol=1e-9)
    with pytest.raises(NotImplementedError, match="use_trivialization=False"):
        made = nn.utils.parametrizations.orthogonal(nn.Linear(2, 2), use_trivialization=False)
        made.weight = kiln.eye(2)
    with pytest.raises(ValueError, match="orthogonal_map has to be one of"):
        nn.utils.parametrizations.orthogonal(nn.Linear(2, 2), orthogonal_map="qr")


def adaptive(lib: Any, head_bias: bool) -> Any:
    made = lib.nn.AdaptiveLogSoftmaxWithLoss(4, 9, [2, 5], div_value=2.0, head_bias=head_bias)
    for k, x in enumerate(made.state_dict().values()):
        x.copy_(((lib.arange(1.0, x.numel() + 1) * (k + 3)) % 5 - 2).reshape(x.shape) / 4)
    x = ((lib.arange(24.0) * 5) % 7 / 3 - 1).reshape(6, 4).requires_grad_()
    output, loss = made(x, lib.tensor([0, 8, 3, 2, 1, 6]))
    loss.backward()
    one = made(x[0], lib.tensor(4))
    grads = [p.grad for p in made.parameters()]
    return [
        output.detach(),
        loss.detach(),
        x.grad,
        *grads,
        made.log_prob(x).detach(),
        made.predict(x),
        one[0].detach(),
    ]


@pytest.mark.parametrize("head_bias", [False, True])
def test_adaptive_log_softmax(head_bias: bool, answers: Any) -> None:
    ours, theirs = answers.both(adaptive, head_bias)
    for a, b in zip(ours, theirs, strict=True):
        assert np.allclose(a.tolist(), b.tolist(), atol=1e-5)
    made = nn.AdaptiveLogSoftmaxWithLoss(4, 9, [2, 5])
    for x, y, said in (
        ((2, 4), [9, 0], "should be in"),
        ((2, 4), [1], "same size"),
        ((4,), [[1]], "multi-target"),
    ):
        with pytest.raises(RuntimeError, match=said):
            made(kiln.ones(x), kiln.tensor(y))
    with pytest.raises(ValueError, match="unique, positive"):
        nn.AdaptiveLogSoftmaxWithLoss(4, 9, [5, 2])


def rare(lib: Any) -> Any:
    """Values of layers that few programs use, and their texts."""
    lrn, x = lib.nn.CrossMapLRN2d, (lib.arange(2.0 * 7 * 4) % 9).reshape(2, 7, 2, 2)
    found = [lrn(3, 0.5, 0.75, 2)(x), lrn(4, 0.5)(x)]
    sync = lib.nn.SyncBatchNorm.convert_sync_batchnorm(layer(lib, "BatchNorm2d", 7))
    found += [sync(x).detach(), sync.running_var, str(sync), str(lrn(3)), type(sync.weight).__name__]
    parallel = lib.nn.DataParallel(layer(lib))
    found += [parallel(lib.ones(1, 4)).detach(), list(parallel.state_dict()), type(parallel.module).__name__]
    u, pool = lib.full((2, 7, 2), 0.4), lib.nn.FractionalMaxPool2d
    big = (lib.arange(2.0 * 7 * 25) * 11 % 13).reshape(2, 7, 5, 5).requires_grad_()
    (pool(2, 3, _random_samples=u)(big) ** 2).sum().backward()
    found.append(big.grad)
    big = big.detach()
    found += [
        *pool(2, 3, return_indices=True, _random_samples=u)(big),
        list(pool(2, output_ratio=0.5)(big).shape),
    ]
    w, y = layer(lib, "Conv2d", 2, 3, 2).weight.detach(), lib.ones(1, 3, 3, 3)
    found.append(lib.nn.grad.conv2d_input((1, 2, 4, 4), w, y))
    found.append(lib.nn.grad.conv2d_weight(lib.arange(32.0).reshape(1, 2, 4, 4), (3, 2, 2, 2), y))
    return found


def test_rare_layers(answers: Any) -> None:
    ours, theirs = answers.both(rare)
    for a, b in zip(ours, theirs, strict=True):
        assert a == b if not hasattr(a, "tolist") else np.allclose(a.tolist(), b.tolist(), atol=1e-5)
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
    with pytest.raises(NotImplementedError, match="sparse"):
        nn.Embedding(2, 2, sparse=True)


def test_old_names_warn_and_work() -> None:
    for name in "uniform normal constant xavier_uniform xavier_normal kaiming_uniform kaiming_normal".split():
        x = kiln.zeros(3, 4)
        with pytest.warns(FutureWarning, match=f"`nn.init.{name}` is now deprecated"):
            assert getattr(nn.init, name)(x, *[2.0] * (name == "constant")) is x and x.abs().sum() > 0
    p = nn.Parameter(kiln.ones(2))
    p.grad = kiln.tensor([3.0, 4.0])
    with pytest.warns(FutureWarning, match="clip_grad_norm"):
        assert nn.utils.clip_grad_norm(p, 1.0, foreach=True).item() == 5
    assert kiln.allclose(p.grad, kiln.tensor([0.6, 0.8]))
    with pytest.warns(UserWarning, match="please use reduction='sum' instead"):
        loss = nn.MSELoss(size_average=False)
    x = kiln.ones(2)
    assert loss(x, 3 * x).item() == 8
    with pytest.warns(UserWarning, match="please use reduction='none' instead"):
        assert nn.functional.soft_margin_loss(x, x, reduce=False).shape == (2,)
    made = nn.utils.skip_init(nn.Linear, 2, 3)
    assert made.weight.shape == (3, 2) and made.weight.requires_grad
    with pytest.raises(RuntimeError, match="must support a 'device' arg"):
        nn.utils.skip_init(nn.ReLU)
    state = {"module.weight": 1, "module.": 2, "bias": 3}
    nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    assert state["weight"] == 1 and state["bias"] == 3
    assert nn.modules.utils._reverse_repeat_tuple((1, 2), 2) == (2, 2, 1, 1)
    assert issubclass(nn.Dropout, nn.modules.dropout._DropoutNd) and nn.modules.linear.Linear is nn.Linear
