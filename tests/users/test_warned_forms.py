"""Forms of calls that PyTorch warns of, and their neighbours that it does not: kiln warns of the same, in
PyTorch's first words, and names the line of the user's program.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from backend import kiln, torch

from kiln.testing.error_scan import first_words

FILE = "a user's program"


# ---- what the forms call ----


def _read_only() -> Any:
    return np.frombuffer(b"abcdabcd", dtype="float32")


def _leaf(t: Any, *sizes: int) -> Any:
    return t.ones(*sizes, requires_grad=True)


def _sgd(t: Any) -> Any:
    return t.optim.SGD([t.nn.Parameter(t.ones(2))], lr=0.1)


def _scheduled(t: Any, *calls: str, epoch: Any = None) -> None:
    """A schedule and its optimizer, with steps of one and of the other."""
    optimizer = _sgd(t)
    schedule = t.optim.lr_scheduler.StepLR(optimizer, 1)
    for call in calls:
        if call == "replace":
            optimizer.step = lambda: None
        elif call == "epoch":
            schedule.step(3)
        elif call == "get_lr":
            schedule.get_lr()
        else:
            {"step": optimizer, "schedule": schedule}[call].step()


def _twice(t: Any) -> None:
    p = t.nn.Parameter(t.ones(2))
    t.optim.SGD([p, p], lr=0.1)


def _watched(t: Any, kind: str, module: Any, x: Any) -> None:
    getattr(module, f"register_{kind}_hook")(lambda *_: None)
    y = module(x)
    if isinstance(y, t.Tensor):
        y.sum().backward()


def _of_dict(t: Any) -> Any:
    class OfDict(t.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return {"a": x * 2}

    return OfDict()


def _of_two_masks(t: Any) -> None:
    x, masks = t.ones(3, 4), (t.zeros(3, dtype=t.bool), True, t.zeros(3, 3))
    t.nn.MultiheadAttention(4, 2)(x, x, x, *masks)


def _longer_than_it_says(t: Any) -> None:
    class Longer(t.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 1

        def __iter__(self) -> Any:
            return iter([1, 2, 3])

    list(t.utils.data.DataLoader(Longer()))


def _function(t: Any) -> Any:
    class Same(t.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    return Same


def _plain_distribution(t: Any) -> None:
    class Plain(t.distributions.Distribution):  # type: ignore[misc, name-defined]
        pass

    Plain(validate_args=True)


# ---- the forms: t the library, F its nn.functional, x of shape [2, 3], v [3], m [2, 2], i classes ----

LOSS = """
F.mse_loss(t.zeros(3, 1), v)
F.l1_loss(t.zeros(3, 1), v)
F.smooth_l1_loss(t.zeros(3, 1), v)
F.huber_loss(t.zeros(3, 1), v)
F.mse_loss(v, v)
F.cross_entropy(x, i, size_average=False)
F.nll_loss(x, i, size_average=False)
F.mse_loss(v, v, reduce=False)
F.mse_loss(v, v, size_average=True)
F.l1_loss(v, v, size_average=False)
F.smooth_l1_loss(v, v, size_average=False)
F.binary_cross_entropy(v, v, size_average=False)
F.binary_cross_entropy_with_logits(v, v, reduce=True)
F.kl_div(v, v, size_average=False)
F.soft_margin_loss(v, v, size_average=False)
F.margin_ranking_loss(v, v, v, size_average=False)
F.hinge_embedding_loss(v, v, size_average=False)
F.cosine_embedding_loss(x, x, t.ones(2), size_average=False)
F.triplet_margin_loss(x, x, x, size_average=False)
F.multi_margin_loss(x, i, size_average=False)
F.multilabel_soft_margin_loss(x, x, size_average=False)
F.poisson_nll_loss(v, v, size_average=False)
F.mse_loss(v, v, reduction="elementwise_mean")
F.nll_loss(x, i, reduction="elementwise_mean")
F.kl_div(v, v)
F.kl_div(v, v, reduction="batchmean")
F.kl_div(v, v, reduction="sum")
nn.KLDivLoss()(v, v)
nn.MSELoss(size_average=False)
nn.CrossEntropyLoss(size_average=True)
nn.CrossEntropyLoss(reduce=False)
nn.BCELoss(size_average=True)
nn.BCEWithLogitsLoss(size_average=False)
nn.L1Loss(reduce=False)
nn.NLLLoss(size_average=False)
nn.TripletMarginLoss(size_average=False)
nn.NLLLoss2d()
nn.CrossEntropyLoss(reduction="elementwise_mean")
"""
LAYERS = """
F.softmax(v)
F.log_softmax(x)
F.softmin(t.ones(2, 2, 2))
F.softmax(v, 0)
nn.Softmax()(v)
nn.LogSoftmax()(x)
nn.Softmin()(x)
F.gumbel_softmax(v)
F.gumbel_softmax(x, eps=1e-6)
F.sigmoid(v)
F.tanh(v)
F.upsample(t.ones(1, 1, 2, 2), scale_factor=2)
F.upsample_nearest(t.ones(1, 1, 2, 2), scale_factor=2)
F.upsample_bilinear(t.ones(1, 1, 2, 2), scale_factor=2)
F.interpolate(t.ones(1, 1, 2, 2), scale_factor=2)
F.grid_sample(t.ones(1, 1, 3, 3), t.zeros(1, 2, 2, 2))
F.affine_grid(t.zeros(1, 2, 3), (1, 1, 2, 2))
F.affine_grid(t.zeros(1, 2, 3), (1, 1, 1, 2), align_corners=True)
F.dropout2d(t.ones(2, 3, 4))
F.dropout2d(x)
F.dropout3d(x)
nn.Dropout2d()(x)
F.dropout1d(t.ones(2, 3, 4))
nn.Hardtanh(min_value=-1.0)
nn.Hardtanh(max_value=2.0)
nn.Container()
nn.InstanceNorm1d(3)(t.ones(2, 4, 5))
nn.InstanceNorm1d(3)(t.ones(4, 5))
nn.InstanceNorm1d(3)(t.ones(2, 3, 5))
nn.LSTM(3, 4, dropout=0.5)
nn.RNN(3, 4, 1, dropout=0.5)
nn.GRU(3, 4, dropout=0.5, num_layers=2)
_of_two_masks(t)
nn.Linear(0, 3)
nn.Linear(3, 0)
nn.Conv2d(0, 3, 2)
nn.Embedding(0, 3)
nn.Linear(2, 2).state_dict({}, "")
_watched(t, "backward", nn.Sequential(nn.Linear(2, 2), nn.ReLU()), _leaf(t, 1, 2))
_watched(t, "full_backward", nn.Linear(3, 2), x)
_watched(t, "full_backward", nn.Linear(2, 2), _leaf(t, 1, 2))
_watched(t, "full_backward", _of_dict(t), _leaf(t, 1, 2))
nn.init.uniform(t.empty(3))
nn.init.normal(t.empty(3))
nn.init.constant(t.empty(3), 1.0)
nn.init.xavier_uniform(t.empty(3, 3))
nn.init.kaiming_normal(t.empty(3, 3))
nn.init.orthogonal(t.empty(3, 3))
nn.init.sparse(t.empty(3, 3), 0.1)
nn.init.eye(t.empty(3, 3))
nn.init.kaiming_uniform_(t.empty(0, 3))
nn.init.kaiming_normal_(t.empty(0, 3))
nn.init.orthogonal_(t.empty(0, 3))
nn.init.trunc_normal_(t.empty(3), mean=9.0)
nn.utils.clip_grad_norm([nn.Parameter(t.ones(2))], 1.0)
nn.utils.clip_grad_norm_(nn.Identity().parameters(), 1.0)
nn.utils.clip_grad_norm_([], 1.0)
nn.utils.weight_norm(nn.Linear(2, 2))
nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
"""
TRAINING = """
_scheduled(t, "schedule", "schedule")
_scheduled(t, "step", "schedule", "step", "schedule")
_scheduled(t, "step", "epoch")
_scheduled(t, "replace", "step", "schedule")
_scheduled(t, "get_lr")
t.optim.lr_scheduler.ReduceLROnPlateau(_sgd(t)).step(1.0, epoch=3)
_twice(t)
_leaf(t, 2).sum().backward(create_graph=True)
t.autograd.backward(_leaf(t, 1) * 2, grad_variables=[t.ones(1)])
t.autograd.grad(_leaf(t, 2).sum(), _leaf(t, 2), only_inputs=False, allow_unused=True)
t.autograd.gradcheck(lambda x: x * 2, (_leaf(t, 2),), raise_exception=False)
(_leaf(t, 1) * 2).grad
_leaf(t, 1).grad
_function(t)()
t.autograd.Variable(t.ones(2), volatile=True)
t.autograd.Variable(t.ones(2))
t.set_default_tensor_type("torch.FloatTensor")
t.utils.data.random_split([1, 2, 3, 4], [0.9, 0.1])
_longer_than_it_says(t)
_plain_distribution(t)
t.amp.GradScaler("cpu").scale(t.ones(1))
t.autocast("cpu", dtype=t.float64)
t.is_autocast_cpu_enabled()
t.get_autocast_cpu_dtype()
t.cpu.amp.autocast()
"""
TENSORS = """
float(t.ones(1))
int(_leaf(t, 1))
_leaf(t, 1).item()
t.tensor(t.ones(1))
x.new_tensor(t.ones(1))
t.as_tensor(t.ones(1))
t.asarray(t.ones(1))
t.tensor([t.ones(1), t.ones(1)])
t.ones(3).T
t.ones(2, 3, 4).T
t.ones(()).T
t.ones(()).H
t.ones(()).mT
x.T
x.mT
t.meshgrid(t.ones(1), t.ones(2))
t.meshgrid(t.ones(1), t.ones(2), indexing="ij")
t.range(0, 3)
t.arange(0, 3)
t.floor_divide(v, 2)
t.cross(x, x)
x.cross(x)
t.cross(x, x, dim=1)
t.linalg.cross(x, x)
t.qr(m)
m.qr()
t.linalg.qr(m)
t.cholesky(m)
m.cholesky()
t.linalg.cholesky(m)
t.chain_matmul(m, m)
t.triangular_solve(m, m)
t.lu_solve(t.ones(2, 1), *t.linalg.lu_factor(m))
t.svd(m)
t.norm(v)
t.add(v, 2, v)
v.add(2, v)
v.clone().add_(2, v)
v.sub(2, v)
t.addcmul(v, 0.5, v, v)
v.clone().addcmul_(0.5, v, v)
v.clone().addcdiv_(0.5, v, v)
t.addmm(0.5, m, 2.0, m, m)
m.addmm(0.5, 2.0, m, m)
m.clone().addmm_(0.5, m, m)
v.add(v, alpha=2)
"""
# what PyTorch warns of and kiln does not, by reason
UNWARNED = {
    "of its speed, which is not kiln's": """
t.tensor([np.ones(2), np.ones(2)])
F.conv1d(t.ones(1, 1, 4), t.ones(1, 1, 2), padding="same")
t.searchsorted(t.arange(6).reshape(3, 2).t()[0], t.tensor([1]))
""",
    "of memory that kiln does not write: it refuses the write": """
t.from_numpy(_read_only())
t.as_tensor(_read_only())
t.frombuffer(b"abcdabcd", dtype=t.float32)
""",
    "of its inside: nested tensors, storages, what is in beta": """
nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 1)
t.ones(2).storage()
t.ones(2).index_reduce(0, t.tensor([0]), t.ones(1), "amax")
""",
    "of what the result shows, NaN or infinity": """
t.ones(1).var()
t.ones(1).std()
t.var_mean(t.ones(1))
t.cov(t.ones(1))
""",
}


def warned(library: Any, form: str) -> list[tuple[str, str, str]]:
    """What a form warns of: category, text, file."""
    t, ones = library, library.ones
    names = {
        **globals(), "t": t, "nn": t.nn, "F": t.nn.functional, "x": ones(2, 3), "v": ones(3), "m": t.eye(2),
        "i": t.tensor([0, 1]), "math": math,
    }  # fmt: skip
    code = compile(form, FILE, "eval")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        eval(code, names)
    kept = [w for w in found if w.category is not ResourceWarning]
    return [(w.category.__name__, str(w.message), w.filename) for w in kept]


def _of_torch(form: str) -> list[list[str]]:
    always = (torch.set_warn_always, torch.storage._set_always_warn_typed_storage_removal)
    for switch in always:  # else it says most things once
        switch(True)
    try:
        return [[category, first_words(text)] for category, text, _ in warned(torch, form)]
    finally:
        for switch in always:
            switch(False)


@pytest.mark.parametrize("area", ["LOSS", "LAYERS", "TRAINING", "TENSORS"])
def test_the_same_is_warned_of(area: str, answers: Any) -> None:
    for form in globals()[area].strip().splitlines():
        mine, theirs = warned(kiln, form), answers([form], lambda form=form: _of_torch(form))
        assert [category for category, _, _ in mine] == [category for category, _ in theirs], form
        assert all(words in text for (_, text, _), (_, words) in zip(mine, theirs)), (form, mine, theirs)
        assert {file for *_, file in mine} <= {FILE, __file__}, (form, mine)


@pytest.mark.parametrize("reason", UNWARNED)
def test_what_pytorch_alone_warns_of(reason: str, answers: Any) -> None:
    for form in UNWARNED[reason].strip().splitlines():
        assert answers([form], lambda form=form: _of_torch(form)), form
        assert not warned(kiln, form), form
