"""A program as users write it: type checkers have nothing to say. It runs, too."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np

import kiln
import kiln.nn.functional as F
from kiln import Tensor, nn, optim
from kiln.autograd import Function
from kiln.autograd.function import FunctionCtx
from kiln.utils.data import DataLoader, Dataset, TensorDataset, random_split


class Squares(Dataset[tuple[Tensor, int]]):
    def __init__(self, n: int) -> None:
        self.x = kiln.randn(n, 8)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        row = self.x[index]
        return row, int(row.sum() > 0)

    def __len__(self) -> int:
        return len(self.x)


class Cube(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: FunctionCtx, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class Block(nn.Module):
    scale: Tensor

    def __init__(self, width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)
        self.gain = nn.Parameter(kiln.ones(width))
        self.register_buffer("scale", kiln.tensor(0.5))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.norm(x)
        found, _ = self.attention(y, y, y, attn_mask=mask)
        x = x + self.dropout(found) * self.scale
        return x + self.feed(x) * self.gain


class Net(nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(depth))
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.embed(x).unsqueeze(1)
        for block in self.blocks:
            y = block(y)
        return self.head(y.mean(1))


def batches(data: Dataset[tuple[Tensor, int]]) -> Iterator[tuple[Tensor, Tensor]]:
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        yield x, y.long()


def train(model: nn.Module, data: Dataset[tuple[Tensor, int]], epochs: int) -> list[float]:
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    losses: list[float] = []
    for _ in range(epochs):
        correct, total = 0, 0.0
        for x, y in batches(data):
            optimizer.zero_grad(set_to_none=True)
            logits = model(x)
            loss = F.cross_entropy(logits, y, label_smoothing=0.1)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
            correct += (logits.argmax(1) == y).sum().item()
        schedule.step()
        losses.append(total)
    return losses


@kiln.no_grad()
def evaluate(model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    values, indices = model(x).softmax(-1).max(1)
    return kiln.where(values > 0.5, indices, -1)


@kiln.compile
def step(x: Tensor, w: Tensor, *, bias: Tensor | None = None) -> Tensor:
    y = F.linear(x, w, bias)
    return (y * y).sum(-1, keepdim=True)


class Scaler:
    factor = 2.0

    @kiln.compile(wait=True)
    def scaled(self, x: Tensor, times: int = 1) -> Tensor:
        return x * self.factor * times


def shapes() -> None:
    x = kiln.arange(24, dtype=kiln.float32).reshape(2, 3, 4)
    n, c, *rest = x.shape
    assert x.view(n, -1).shape == x.view((n, 12)).shape == kiln.Size([2, 12])
    assert x.size() == x.shape and x.size(0) + x.stride(-1) + x.ndim + x.dim() + x.numel() > 0
    y = x.permute(2, 0, 1).contiguous().transpose(0, -1).flatten(1).unsqueeze(0).expand(3, -1, -1)
    a, b = y.split(2, dim=0)
    parts: tuple[Tensor, ...] = x.unbind(1) + x.chunk(2) + x.split([1, 2], 1)
    z = kiln.cat([p.flatten() for p in parts] + [a.reshape(-1)], dim=0)
    z = kiln.stack((z, z), 1).squeeze(-1)[..., 0]
    x[0, :, None, 1:3] = 1
    x[x > 5] = 0.0
    x[:, [0, 2]] += kiln.ones(4)
    x[kiln.tensor([0, 1]), 0] *= 2
    z -= 1
    z.clamp_(min=0).mul_(2).add_(z, alpha=0.5)
    assert c == 3 and rest == [4] and b.dtype is kiln.float32 and z.device == kiln.device("cpu")


def arithmetic() -> float:
    gen = kiln.Generator().manual_seed(0)
    a = kiln.rand(3, 3, generator=gen, dtype=kiln.float64) + kiln.eye(3, dtype=kiln.float64)
    b = 1 - a @ a.T + 2**a / (a + 1) // 3 % 2
    near = (a - b).abs().lt(1e-3) | ~(a == b) & (a != 0)
    u, s, vh = kiln.linalg.svd(a)
    q = kiln.linalg.qr(a).Q @ u @ vh
    sign, logabsdet = kiln.linalg.slogdet(a)
    top = a.flatten().topk(2)
    ordered, where = kiln.sort(a, dim=0, descending=True)
    unique, counts = near.unique(return_counts=True)
    total = a.sum() + a.sum(0).sum((0,), keepdim=True) + a.amax(dim=(0, 1)) + a.std(unbiased=False)
    total = total + kiln.einsum("ij,jk->", a, b) + top.values.sum() + s.prod() + q.norm() + sign * logabsdet
    low, high = a.aminmax()
    total += a.max() - a.min(0).values[0] + kiln.maximum(low, high) + a.max(b).mean()
    total += kiln.special.expit(a).logsumexp(0).sum() + kiln.lerp(a, b, 0.5).var() + counts.to(a.dtype).sum()
    grid = kiln.meshgrid(kiln.linspace(0, 1, 3), kiln.arange(3.0), indexing="ij")
    back = kiln.from_numpy(np.ones(3)) + np.ones(3) + kiln.as_tensor([1.0, 2.0, 3.0])
    rows: np.ndarray[Any, Any] = back.numpy()
    total += (
        kiln.zeros_like(a).normal_(0, 1).sum() * 0 + kiln.full((2,), 3).sum() + grid[0].sum() + rows.sum()
    )
    assert kiln.is_tensor(where) and not kiln.allclose(ordered, b) and unique.ndim == 1
    return float(total.float().detach())


def gradients() -> None:
    x = kiln.tensor([1.0, 2.0], requires_grad=True)
    handle = x.register_hook(lambda g: g * 2)
    y = Cube.apply(x).sum()
    y.backward(retain_graph=True)
    handle.remove()
    assert x.grad is not None
    x.grad.zero_()
    (g,) = kiln.autograd.grad(y, x)
    with kiln.no_grad(), kiln.set_grad_enabled(True):
        per_row = kiln.vmap(lambda row: row * 2)(g)
    assert per_row.requires_grad is False and y.grad_fn is not None and x.is_leaf


def recurrent(x: Tensor) -> Tensor:
    y, (h, c) = nn.LSTM(8, 4, batch_first=True)(x)
    z, last = nn.GRU(4, 4)(y)
    pooled = F.max_pool2d(F.relu(nn.Conv2d(1, 2, 3, padding=1)(x.unsqueeze(1))), kernel_size=2)
    return h.sum() + c.sum() + z.sum() + last.sum() + F.pad(pooled, (1, 1), value=0.0).mean()


def main() -> None:
    kiln.manual_seed(0)
    train_data, held_back = random_split(Squares(64), [0.75, 0.25])
    model = Net()
    nn.init.xavier_uniform_(model.head.weight)
    assert len(train(model, train_data, 2)) == 2
    x = kiln.stack([row for row, _ in (held_back[k] for k in range(len(held_back)))])
    assert evaluate(model, x).shape == (16,)
    file = io.BytesIO()
    kiln.save({"model": model.state_dict(), "epoch": 2}, file)
    file.seek(0)
    model.load_state_dict(kiln.load(file)["model"])
    fast = kiln.compile(model)
    assert fast(x).shape == step(x, kiln.ones(2, 8)).shape[:1] + (2,)
    assert Scaler().scaled(x, times=2).sum().isfinite() and step.stats()["compiles"] >= 0
    pairs = TensorDataset(x, x.sum(1))
    assert len(pairs[0]) == 2 and model.training is False and recurrent(x.view(2, 8, 8)).ndim == 0
    shapes()
    gradients()
    print(
        f"{arithmetic():.3f}",
        x.to("cpu", kiln.float16).tolist()[0],
        sum(p.numel() for p in model.parameters()),
    )


if __name__ == "__main__":
    main()
