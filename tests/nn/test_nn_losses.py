"""Losses as modules beside PyTorch's: value and gradients, every reduction, where logarithms end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from backend import kiln

SCORES = [[-1.5, 0.25, 2.0], [0.5, -3.0, 1.0]]
SHARES = [[0.2, 0.5, 0.3], [0.0, 0.9, 0.1]]
CLASSES = [2, 0]
LABELS = [[2, -1, 0], [0, 1, -1]]
SIGNS = [[1.0, -1.0, -1.0], [-1.0, 1.0, 1.0]]
# targets PyTorch has no gradient of
FIXED = (CLASSES, LABELS, SIGNS)


def same(ours: Any, theirs: Any) -> bool:
    return ours.shape == theirs.shape and ours.numpy().ravel().tolist() == pytest.approx(
        theirs.numpy().ravel().tolist(), rel=1e-5, abs=1e-6
    )


# name, weights by argument, activation of the input, target, further options
LOSSES: list[tuple[str, tuple[str, ...], str, Any, dict[str, Any]]] = [
    ("BCELoss", ("weight",), "sigmoid", SHARES, {}),
    ("BCEWithLogitsLoss", ("weight", "pos_weight"), "clone", SHARES, {}),
    ("L1Loss", (), "clone", SHARES, {}),
    ("MSELoss", (), "clone", SHARES, {}),
    ("NLLLoss", ("weight",), "clone", CLASSES, {"ignore_index": 0}),
    ("CrossEntropyLoss", ("weight",), "clone", CLASSES, {"label_smoothing": 0.1}),
    ("SmoothL1Loss", (), "clone", SHARES, {"beta": 0.5}),
    ("HuberLoss", (), "clone", SHARES, {"delta": 0.5}),
    ("PoissonNLLLoss", (), "clone", SHARES, {}),
    ("HingeEmbeddingLoss", (), "clone", SIGNS, {"margin": 0.75}),
    ("SoftMarginLoss", (), "clone", SIGNS, {}),
    ("MultiMarginLoss", ("weight",), "clone", CLASSES, {"p": 2}),
    ("MultiLabelMarginLoss", (), "clone", LABELS, {}),
    ("MultiLabelSoftMarginLoss", ("weight",), "clone", SHARES, {}),
    ("KLDivLoss", (), "clone", SHARES, {}),
    ("KLDivLoss", (), "clone", SCORES, {"log_target": True}),
]


def loss_of(lib: Any, name: str, weights: tuple[str, ...], activation: str, target: Any, options: Any) -> Any:
    """The loss of a module's class with these weights, and the gradients of input and target."""
    more = {w: lib.tensor([0.5, 1.0, 2.0]) for w in weights}
    loss = getattr(lib.nn, name)(**more, **options)
    assert sorted(loss.state_dict()) == sorted(more)
    x = lib.tensor(SCORES, requires_grad=True)
    y = lib.tensor(target, requires_grad=not any(target is t for t in FIXED))
    value = loss(getattr(x, activation)(), y)
    value.sum().backward()
    return [value, x.grad, *([] if y.grad is None else [y.grad])]


@pytest.mark.parametrize(("name", "weights", "activation", "target", "options"), LOSSES)
def test_losses(
    name: str, weights: tuple[str, ...], activation: str, target: Any, options: Any, answers: Any
) -> None:
    # PyTorch's gradient of the target 0 is -inf
    compared = 2 if name == "KLDivLoss" and not options else 3
    for reduction in ("mean", "sum", "none", "batchmean")[: 4 if name == "KLDivLoss" else 3]:
        for given in ((), weights)[: 2 if weights else 1]:
            settings = {**options, "reduction": reduction}
            ours, theirs = answers.both(loss_of, name, given, activation, target, settings)
            assert len(ours) == len(theirs)
            assert all(map(same, ours[:compared], theirs[:compared]))
    with pytest.raises(ValueError, match="reduction"):
        getattr(kiln.nn, name)(reduction="average")(kiln.tensor(SCORES), kiln.tensor(target))


PAIRED: list[tuple[str, int, Any, dict[str, Any]]] = [
    ("MarginRankingLoss", 2, SIGNS, {"margin": 0.5}),
    ("CosineEmbeddingLoss", 2, [1.0, -1.0], {"margin": 0.25}),
    ("TripletMarginLoss", 3, None, {"margin": 2.0, "swap": True}),
    ("GaussianNLLLoss", 2, None, {"full": True}),
]


@pytest.mark.parametrize(("name", "count", "target", "options"), PAIRED)
def test_losses_of_several_inputs(name: str, count: int, target: Any, options: Any, answers: Any) -> None:
    def run(lib: Any, reduction: str, name: str, count: int, target: Any, options: Any) -> list[Any]:
        xs = [(lib.tensor(SCORES) * k + k).detach().requires_grad_() for k in range(1, count + 1)]
        more = [lib.tensor(target)] if target is not None else []
        more += [lib.tensor([0.5, 2.0])] if name == "GaussianNLLLoss" else []
        value = getattr(lib.nn, name)(reduction=reduction, **options)(*xs, *more)
        value.sum().backward()
        return [value, *(x.grad for x in xs)]

    for reduction in ("mean", "sum", "none"):
        ours, theirs = answers.both(run, reduction, name, count, target, options)
        assert len(ours) == len(theirs) and all(map(same, ours, theirs))


def test_binary_cross_entropy_is_finite_where_a_logarithm_is_not(answers: Any) -> None:
    def run(lib: Any) -> list[Any]:
        x = lib.tensor([0.0, 1.0, 0.0, 1.0, 1e-6], requires_grad=True)
        y = lib.tensor([0.0, 1.0, 1.0, 0.0, 1.0])
        value = lib.nn.functional.binary_cross_entropy(x, y, reduction="none")
        value.sum().backward()
        return [value, x.grad]

    ours, theirs = answers.both(run)
    assert all(map(same, ours, theirs))
    assert ours[0].tolist()[:4] == [0.0, 0.0, 100.0, 100.0]


def test_triangles(answers: Any) -> None:
    def triangle(lib: Any, name: str, dtype: str, diagonal: int) -> Any:
        return getattr(lib, name)(lib.ones(2, 3, 4, dtype=getattr(lib, dtype)), diagonal)

    for dtype in ("float32", "int64", "bool"):
        for diagonal in (-2, 0, 1):
            for name in ("tril", "triu"):
                ours, theirs = answers.both(triangle, name, dtype, diagonal)
                assert ours.dtype.endswith(dtype) and ours.tolist() == theirs.tolist()


def _rows() -> list[list[list[float]]]:
    return [SCORES, SHARES, [row[::-1] for row in SCORES]]


@pytest.mark.parametrize(
    "options", [{}, {"swap": True, "reduction": "sum"}, {"margin": 2.0, "reduction": "none"}]
)
def test_triplets_by_a_distance_of_ones_own(options: dict[str, Any], answers: Any) -> None:
    """With the distance given and without, as modules; what is no margin or reduction is refused."""

    def run(lib: Any, given: Any, options: dict[str, Any]) -> list[Any]:
        rows = [lib.tensor(x, requires_grad=True) for x in given]
        one, two = (
            lib.nn.TripletMarginWithDistanceLoss(distance_function=distance, **options)(*rows)
            for distance in (None, lib.nn.CosineSimilarity(dim=-1))
        )
        (one + two).sum().backward()
        with pytest.raises(ValueError, match="margin"):
            lib.nn.functional.triplet_margin_with_distance_loss(*rows, margin=0.0)
        with pytest.raises(ValueError, match="reduction"):
            lib.nn.functional.triplet_margin_with_distance_loss(*rows, reduction="most")
        return [one, two, lib.nn.PairwiseDistance(p=1)(*rows[:2]), *(x.grad for x in rows)]

    ours, theirs = answers.both(run, _rows(), options)
    assert len(ours) == len(theirs) and all(map(same, ours, theirs))


def test_gumbel_softmax_draws_the_categories_as_often_as_they_are_likely() -> None:
    """Hard samples are one-hot and have the gradient of soft ones; soft ones are shares."""
    logits = kiln.tensor([0.0, 1.0, 2.0]).repeat(4000, 1).requires_grad_()
    hard = kiln.nn.functional.gumbel_softmax(logits, tau=0.5, hard=True)
    assert hard.detach().round().mean(0).tolist() == pytest.approx([0.09, 0.245, 0.665], abs=0.04)
    assert hard.sum(-1).tolist() == pytest.approx([1.0] * 4000, abs=1e-5)
    hard[:, 0].sum().backward()
    assert float(logits.grad.abs().sum()) > 0
    assert float(logits.grad.sum(-1).abs().max()) < 1e-5
    soft = kiln.nn.functional.gumbel_softmax(logits, dim=0)
    assert soft.sum(0).tolist() == pytest.approx([1.0] * 3, abs=1e-4)


CTC: dict[str, tuple[Any, ...]] = {
    "padded": ([[1, 2, 2], [3, 1, -5], [0, 9, 9], [2, 0, 0]], (7, 5, 6, 7), (3, 2, 0, 1)),
    "joined": ([1, 2, 2, 3, 1, 2], (7, 5, 6, 7), (3, 2, 0, 1)),
    "as tensors": ([[1, 1, 1]] * 4, [7, 5, 6, 5], [3, 3, 2, 1]),
    "too short": ([[1, 1, 2], [2, 1, 3], [2, 2, 2], [1, 1, 1]], (7, 2, 4, 0), (3, 3, 3, 0)),
}


def ctc_case(lib: Any, name: str, dtype: Any) -> tuple[Any, ...]:
    scores = (2 * np.sin(np.linspace(0, 20, 7 * 4 * 4))).reshape(7, 4, 4).tolist()
    targets, inputs, counts = CTC[name]
    lengths = [lib.tensor(n) if isinstance(n, list) else n for n in (inputs, counts)]
    return lib.tensor(scores, dtype=dtype, requires_grad=True), lib.tensor(targets), *lengths


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", CTC)
def test_ctc(name: str, reduction: str, answers: Any) -> None:
    def run(lib: Any, name: str, case: Any, reduction: str) -> list[Any]:
        scores, targets, inputs, counts = ctc_case(lib, name, lib.float64)
        # PyTorch: an infinite loss has no number for its gradient
        layer = lib.nn.CTCLoss(reduction=reduction, zero_infinity=name == "too short")
        loss = layer(scores.log_softmax(2), targets, inputs, counts)
        (loss * lib.arange(1.0, 1 + loss.numel()).reshape(loss.shape)).sum().backward()
        return [loss, scores.grad]

    for ours, theirs in zip(*answers.both(run, name, [CTC[name], ctc_case], reduction), strict=True):
        assert same(ours, theirs)


def test_ctc_of_one_row_and_its_ends(answers: Any) -> None:
    def run(lib: Any) -> list[Any]:
        logs = lib.arange(20.0).reshape(5, 4).sin().log_softmax(1)
        loss = lib.nn.functional.ctc_loss(logs, lib.tensor([1, 3]), lib.tensor(5), lib.tensor(2), blank=2)
        many = lib.nn.functional.ctc_loss(logs.unsqueeze(1), lib.tensor([[1, 3]]), (5,), (2,), 2, "none")
        assert loss.shape == () and many.tolist() == pytest.approx([2 * loss.item()])
        lost = lib.nn.functional.ctc_loss(logs[:1], lib.tensor([1, 3]), lib.tensor(1), lib.tensor(2))
        assert lost.item() == float("inf")
        for wrong in (
            {"blank": 4},
            {"input_lengths": (6,)},
            {"target_lengths": (1, 1)},
            {"targets": logs[0]},
        ):
            given = {"log_probs": logs.unsqueeze(1), "targets": lib.tensor([[1, 3]]),
                     "input_lengths": (5,), "target_lengths": (2,), **wrong}  # fmt: skip
            with pytest.raises(RuntimeError):
                lib.nn.functional.ctc_loss(**given)
        return [loss, many]

    for ours, theirs in zip(*answers.both(run), strict=True):
        assert same(ours, theirs)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [kiln.float16, kiln.bfloat16])
def test_ctc_of_halves_is_computed_in_float32(dtype: Any, reduction: str) -> None:
    for name in CTC:
        scores, *rest = ctc_case(kiln, name, kiln.float32)
        short = scores.detach().log_softmax(2).to(dtype)
        results = []
        for logs in (short, short.float()):
            logs.requires_grad_()
            loss = kiln.nn.functional.ctc_loss(logs, *rest, reduction=reduction, zero_infinity=True)
            loss.sum().backward()
            assert loss.dtype == logs.grad.dtype == logs.dtype and logs.grad.isfinite().all()
            results.append((loss.detach().to(dtype).tolist(), logs.grad.to(dtype).tolist()))
        assert results[0] == results[1]


def test_ctc_has_derivatives_of_every_order_and_records() -> None:
    _, targets, inputs, counts = ctc_case(kiln, "padded", kiln.float64)
    scores = kiln.arange(112.0, dtype=kiln.float64).reshape(7, 4, 4).sin().requires_grad_()

    def loss(x: Any) -> Any:
        return kiln.nn.functional.ctc_loss(x.log_softmax(2), targets, inputs, counts)

    assert kiln.autograd.gradcheck(loss, (scores,), fast_mode=True)
    assert kiln.autograd.gradgradcheck(loss, (scores,), fast_mode=True)
    values = []
    for run in (loss, kiln.compile(loss, wait=True)):
        value = run(scores)
        values.append((value.item(), kiln.autograd.grad(value, scores)[0].tolist()))
    assert values[0] == values[1]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("rows", [None, 2])
def test_cross_entropy_of_a_linear_layer(rows: int | None, reduction: str) -> None:
    """What cross_entropy gives of linear's results, whole or by rows, and its gradients."""
    functional = kiln.nn.functional
    x, w, b = (kiln.arange(float(n * m)).sin().reshape(n, m) for n, m in ((5, 3), (4, 3), (1, 4)))
    y, of_classes = kiln.tensor([3, -100, 0, 1, 3]), kiln.tensor([0.5, 1.0, 2.0, 0.1])
    leaves = [t.requires_grad_() for t in (x, w, b.reshape(4))]
    options = None if rows is None else kiln.nn.LinearCrossEntropyOptions(batch_chunk_size=rows)
    more = {"weight": of_classes, "reduction": reduction}
    ours = functional.linear_cross_entropy(x, w, y, linear_bias=leaves[2], options=options, **more)
    plain = functional.cross_entropy(functional.linear(*leaves), y, **more)
    assert same(ours.detach(), plain.detach())
    for loss in (ours, plain):
        (loss.sum() ** 2).backward(inputs=leaves, create_graph=True)
        grads = [leaf.grad for leaf in leaves]
        second = kiln.autograd.grad(sum((g**2).sum() for g in grads), leaves)
        found = [t.detach() for t in (*grads, *second)]
        for leaf in leaves:
            leaf.grad = None
        if loss is ours:
            kept = found
    assert all(map(same, kept, found))


def test_module_of_a_linear_layer_and_cross_entropy() -> None:
    loss = kiln.nn.LinearCrossEntropyLoss(3, 4, out_features=(2,), bias=True, ignore_index=1)
    assert loss(kiln.ones(5, 3), kiln.zeros(5, 2).long()).shape == ()
    assert [*loss.state_dict()] == ["linear.weight", "linear.bias"]
    assert loss.linear.weight.shape == (8, 3)
    options = kiln.nn.LinearCrossEntropyOptions(chunking_method="aspect_ratio:4")
    with pytest.warns(UserWarning, match="options are ignored"):
        kiln.nn.functional.linear_cross_entropy(
            kiln.ones(5, 3), kiln.ones(4, 3), kiln.zeros(5).long(), label_smoothing=0.1, options=options
        )
    with pytest.raises(ValueError, match="invalid chunking_method"):
        kiln.nn.LinearCrossEntropyOptions(chunking_method="rows")
    with pytest.raises(RuntimeError, match=r"last dimensions \(in_features\)"):
        kiln.nn.functional.linear_cross_entropy(kiln.ones(5, 2), kiln.ones(4, 3), kiln.zeros(5).long())
