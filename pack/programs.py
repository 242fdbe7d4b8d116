"""What a first program may do: its kernels and plans make the pack.

Small data throughout: sizes are arguments of a kernel. What counts is which operations, of which dtypes and
in which layouts: contiguous operands, a row or a column along a matrix, a number, a transpose are usual.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import kiln
from kiln import Tensor, nn
from kiln.nn import functional as F

FLOATS = (kiln.float32, kiln.float64)
EVERY = (*FLOATS, kiln.int64, kiln.int32, kiln.uint8, kiln.bool, kiln.float16, kiln.bfloat16)

ARITHMETIC = ("add", "sub", "mul", "div", "maximum", "minimum")
POWERS = ("pow", "remainder", "floor_divide")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LOGIC = ("logical_and", "logical_or", "bitwise_and", "bitwise_or", "bitwise_xor")
CURVES = ("neg", "abs", "exp", "log", "sqrt", "square", "tanh", "sigmoid", "relu", "sin", "cos")
ROUNDED = ("floor", "ceil", "round", "trunc", "sign")
SELDOM = ("log1p", "expm1", "log2", "exp2", "erf", "rsqrt", "reciprocal")
TESTS = ("isnan", "isinf", "isfinite")


def matrix(*shape: int, dtype: Any = kiln.float32, grad: bool = False) -> Tensor:
    """Numbers from 1 on, or as the dtype has them."""
    count = 1
    for size in shape:
        count *= size
    x = (kiln.arange(float(count)).reshape(shape) * 0.25 + 1).to(dtype)
    return x.requires_grad_() if grad else x


def partners(dtype: Any, grad: bool = False) -> Iterator[tuple[Any, Any]]:
    """Pairs of operands as programs have them."""

    def make(*shape: int) -> Tensor:
        return matrix(*shape, dtype=dtype, grad=grad)

    yield make(4, 3), make(4, 3)
    yield make(4, 3), 2
    if dtype in FLOATS:
        yield make(4, 3), 1.5
    yield make(4, 3), make(3)
    if dtype is not kiln.float32:
        return
    yield 2, make(4, 3)
    yield 1.5, make(4, 3)
    yield make(4, 3), make(4, 1)
    yield make(4, 3), make()
    yield make(), make(4, 3)
    yield make(3), make(4, 3)
    yield make(4, 1), make(1, 3)
    yield make(4, 3), make(3, 4).t()


def calls(f: Callable[..., Any], *operands: Any, **named: Any) -> None:
    """A call, and backward where something wants gradients."""
    y = f(*operands, **named)
    if isinstance(y, Tensor) and y.requires_grad:
        y.sum().backward()


def arithmetic() -> None:
    """Two operands: in every layout in the usual dtypes, in few elsewhere."""
    for dtype in (*FLOATS, kiln.int64):
        for a, b in partners(dtype):
            for name in (*ARITHMETIC, *COMPARISONS):
                if isinstance(a, Tensor) and (isinstance(b, Tensor) or "imum" not in name):
                    getattr(kiln, name)(a, b)
            _ = a - b, a / b
            if isinstance(a, Tensor) and a.shape == (4, 3):
                a = a.clone()
                a += b
                a -= b
                a *= b
    for a, b in partners(kiln.float32, grad=True):
        for name in ARITHMETIC:
            if isinstance(a, Tensor) and (isinstance(b, Tensor) or "imum" not in name):
                calls(getattr(kiln, name), a, b)
        calls(lambda a, b: a - b, a, b)
        calls(lambda a, b: a / b, a, b)
    a, b = matrix(4, 3, grad=True), matrix(4, 3)
    for name, other in product(POWERS, (b, 2, 0.5)):
        calls(getattr(kiln, name), a, other)
        getattr(kiln, name)(b, other)
    for dtype in EVERY:
        x = matrix(4, 3, dtype=dtype)
        for name in ("eq", *(() if dtype is kiln.bool else ("add", "sub", "mul", "div"))):
            getattr(kiln, name)(x, x), getattr(kiln, name)(x, 2)
    for name in POWERS:
        getattr(kiln, name)(matrix(4, 3, dtype=kiln.int64), 2)
    flags = a > 1
    for name in LOGIC:
        getattr(kiln, name)(flags, flags)
    _ = ~flags, flags & (a < 2), flags.any(), flags.all(), flags.sum(), flags.float().mean()


def curves() -> None:
    """One operand, forward and backward; conversions among all dtypes; ways to make tensors."""
    for name in (*CURVES, *ROUNDED, *SELDOM, *TESTS):
        getattr(kiln, name)(matrix(4, 3))
        calls(getattr(kiln, name), matrix(4, 3, grad=True))
        if name in CURVES:
            getattr(kiln, name)(matrix(3, 4).t())
            if name not in ("sin", "cos"):
                getattr(kiln, name)(matrix(4, 3, dtype=kiln.float64))
    for x in (matrix(4, 3), matrix(4, 3, grad=True)):
        for f in (F.gelu, F.silu, F.softplus, F.leaky_relu, F.elu, F.logsigmoid):
            calls(f, x)
        calls(lambda x: F.gelu(x, approximate="tanh"), x)
        calls(lambda x: x.clamp(0, 1), x)
        calls(lambda x: x.clamp(min=0.5), x)
        calls(lambda x: kiln.where(x > 1, x, x * 2), x)
        calls(lambda x: kiln.where(x > 1, x, 0.0), x)
        calls(lambda x: x.masked_fill(x > 1, 0.0), x)
        calls(lambda x: F.dropout(x, 0.5), x)
        calls(lambda x: x.clone(), x)
        calls(lambda x: x.t().contiguous() * 2, x)
    for dtype, other in product(EVERY, EVERY):
        matrix(4, 3, dtype=dtype).to(other)
    for dtype in EVERY:
        made = kiln.zeros(4, 3, dtype=dtype), kiln.ones(4, 3, dtype=dtype), kiln.full((4, 3), 1, dtype=dtype)
        for x in made:
            (
                kiln.zeros_like(x),
                kiln.ones_like(x),
                x.clone(),
                x.fill_(1),
                x.zero_(),
                x.copy_(made[0]),
                x.t().contiguous(),
            )
            str(x), x.tolist(), kiln.equal(x, x)
        kiln.eye(3, dtype=dtype)
    kiln.rand(4, 3), kiln.randn(4, 3), kiln.randint(0, 9, (4, 3)), kiln.linspace(0, 1, 5)
    (
        kiln.rand_like(made[0].float()),
        kiln.randn_like(made[0].float()),
        kiln.arange(0, 1, 0.1),
        kiln.arange(2, 9, 3),
    )
    kiln.empty(3).normal_(), kiln.empty(3).uniform_(), kiln.bernoulli(kiln.rand(4, 3))
    kiln.allclose(kiln.ones(3), kiln.ones(3)), str(matrix(4, 3)), str(matrix(2000)), str(matrix(3, grad=True))


def ranks(*shape: int) -> None:
    """The usual functions of one rank first, whose kernels are those of matrices, but not their answers."""
    for dtype in (kiln.float32, kiln.int64):
        x = matrix(*shape, dtype=dtype)
        for name, other in product((*ARITHMETIC[:4], *COMPARISONS), (x, 2)):
            getattr(kiln, name)(x, other)
        (
            x.clone(),
            x.to(kiln.float64),
            x.float(),
            x.long(),
            (x > 1).float(),
            (x > 1).sum(),
            x.sum(),
            x.float().mean(),
        )
        kiln.zeros(shape, dtype=dtype), kiln.ones(shape, dtype=dtype), kiln.zeros_like(x)
    for a, b in (
        (matrix(*shape), matrix(*shape)),
        (matrix(*shape, grad=True), matrix(*shape, grad=True)),
    ):
        for name in (*ARITHMETIC, *CURVES):
            operands = (a, b) if name in ARITHMETIC else (a,)
            calls(getattr(kiln, name), *operands)
        (
            calls(lambda a: a * 2 + 1.5, a),
            calls(lambda a: a**2, a),
            calls(lambda a: 1 - a / 2, a),
            calls(lambda a: a.mean(), a),
        )
        a = a.detach()
        a += b.detach()
        a -= 0.5 * b.detach()
        a *= 2
    (
        kiln.rand(shape),
        kiln.randn(shape),
        kiln.rand(shape, dtype=kiln.float64),
        kiln.randn(shape, dtype=kiln.float64),
    )


def sums() -> None:
    """Reductions whole and along a dim; what orders and scans."""
    names = ("sum", "mean", "amax", "amin", "prod", "logsumexp", "var", "std", "norm")
    dims: tuple[tuple[Any, ...], ...] = ((), (0,), (1,))
    plain, grad = matrix(4, 3), matrix(4, 3, grad=True)
    for name, dim, x in product(names, dims, (plain, grad)):
        if dim and (dim[0] or name not in ("prod", "logsumexp", "norm")):
            calls(getattr(x, name), dim[0])
            calls(getattr(x, name), dim[0], keepdim=True)
        elif not dim and name != "logsumexp":
            calls(getattr(x, name))
    for x, dim in product((matrix(4, 3, dtype=kiln.float64), matrix(4, 3, dtype=kiln.int64)), ((), (1,))):
        x.sum(*dim), x.max(*dim)
    for x, dim in product((plain, grad), dims):
        x.argmax(*dim)
        for f in (x.max, x.min) if dim != (0,) else ():
            found = f(*dim)
            calls(lambda found=found, dim=dim: found.values if dim else found)
    for x in (plain, grad):
        x.argmin(1), x.sort(1), x.argsort(1), x.topk(2, 1), x.median(1), x.sort(0)
        calls(x.cumsum, 0), calls(x.cumsum, 1), calls(kiln.softmax, x, 0)
        calls(kiln.softmax, x, 1), calls(kiln.log_softmax, x, 1), calls(x.sum, -1), calls(x.mean, -1)
    plain.unique(), plain.median(), (plain > 1).nonzero(), plain.argmin()
    x = matrix(2, 4, 3, grad=True)
    for dim in (0, 1, 2, (0, 2)):
        calls(x.sum, dim), calls(x.mean, dim)
    calls(kiln.softmax, x, -1)
    calls(kiln.softmax, matrix(2, 2, 4, 3, grad=True), -1)


def products() -> None:
    """Products of vectors, matrices and batches, either transposed, forward and backward."""
    for dtype, grad in product((kiln.float32, kiln.float64), (False, True)):

        def make(*shape: int, dtype: Any = dtype, grad: bool = grad) -> Tensor:
            return matrix(*shape, dtype=dtype, grad=grad)

        shapes = [((4, 3), (3, 5)), ((3,), (3,)), ((4, 3), (3,)), ((4,), (4, 3)), ((2, 4, 3), (2, 3, 5))]
        for a, b in [
            *shapes,
            ((2, 4, 3), (3, 5)),
            ((2, 2, 4, 3), (2, 2, 3, 5)),
            ((1, 3), (3, 5)),
            ((4, 3), (3, 1)),
        ]:
            calls(kiln.matmul, make(*a), make(*b))
        calls(lambda a, b: a @ b.t(), make(4, 3), make(5, 3))
        calls(lambda a, b: a.t() @ b, make(4, 3), make(4, 5))
        calls(lambda a, b: a @ b.transpose(-1, -2), make(2, 4, 3), make(2, 5, 3))
        calls(lambda a, b: a @ b.transpose(-1, -2), make(2, 2, 4, 3), make(2, 2, 5, 3))
        calls(F.linear, make(4, 3), make(5, 3), make(5))
        calls(F.linear, make(2, 4, 3), make(5, 3), make(5))
        calls(F.linear, make(3), make(5, 3), make(5))
        calls(F.linear, make(4, 3), make(1, 3), make(1))
        calls(F.linear, make(4, 3), make(5, 3))
        calls(kiln.addmm, make(5), make(4, 3), make(3, 5))


def shapes() -> None:
    """What joins, cuts and picks, forward and backward."""
    for grad in (False, True):
        x, y, b = matrix(4, 3, grad=grad), matrix(4, 3, grad=grad), matrix(2, 4, 3, grad=grad)
        for dim in (0, 1, -1):
            calls(lambda dim=dim, x=x, y=y: kiln.cat([x, y], dim))
            calls(lambda dim=dim, x=x, y=y: kiln.stack([x, y], dim))
        calls(lambda x=x, y=y: kiln.cat([x, y, x]))
        for key in (
            0,
            -1,
            slice(1, 3),
            slice(None, None, 2),
            (slice(None), 0),
            (slice(None), slice(0, 2)),
            (1, 2),
        ):
            calls(lambda key=key, x=x: x[key] * 2)
        for key in ([0, 2], kiln.tensor([0, 2]), x > 1, (kiln.tensor([0, 2]), kiln.tensor([1, 1]))):
            calls(lambda key=key, x=x: x[key])
        calls(lambda x=x: x[kiln.arange(4), kiln.tensor([0, 1, 2, 0])])
        calls(lambda x=x: x.gather(1, kiln.tensor([[0], [1], [2], [0]])))
        calls(lambda: kiln.arange(4).index_select(0, kiln.tensor([0, 2])))
        calls(lambda x=x: x.index_select(0, kiln.tensor([0, 2])))
        calls(lambda b=b: b.permute(2, 0, 1).reshape(3, 8))
        calls(lambda b=b: b.transpose(1, 2).contiguous())
        calls(lambda x=x: x.unsqueeze(0).expand(2, 4, 3) * 2)
        calls(lambda x=x: x.view(-1) * x.flatten())
        calls(lambda x=x: sum((part.sum() for part in x.chunk(2)), kiln.zeros(())))
        calls(lambda x=x: x.tril() + x.triu())
        calls(lambda x=x: F.layer_norm(x, (3,)))
        calls(F.embedding, kiln.tensor([0, 2, 1]), x)
        calls(F.embedding, kiln.tensor([[0, 2], [1, 1]]), x)
    for dtype in (kiln.float32, kiln.int64):
        x = matrix(4, 3, dtype=dtype)
        x[0] = 1
        x[:, 1] = 2
        x[x > 1] = 0
        x[1:3, :2] = x[:2, 1:].clone()
        x[kiln.tensor([0, 1])] = 3
        x[0, 0] = 5
        kiln.zeros(3, dtype=dtype).scatter_add_(0, kiln.tensor([0, 1, 1]), kiln.ones(3, dtype=dtype))
        x[0], x[:, 1].clone(), x[x > 1], x[kiln.tensor([0, 1])], kiln.cat([x, x]), kiln.stack([x, x])
    F.one_hot(kiln.tensor([0, 2, 1]), 3).float()
    (
        kiln.tensor([[1, 2], [3, 4]]),
        kiln.tensor([1.0, 2.0]),
        kiln.tensor([True, False]),
        kiln.bincount(kiln.tensor([1, 2])),
    )


def losses() -> None:
    """Losses as criteria are called."""
    for reduction in ("mean", "sum", "none"):
        criteria(reduction)
    y, labels = matrix(4, 3), kiln.tensor([0, 1, 2, 0])
    calls(lambda: F.cross_entropy(matrix(4, 3, grad=True), labels, label_smoothing=0.1))
    calls(lambda: F.cross_entropy(matrix(4, 3, grad=True), kiln.softmax(y, 1)))
    (y.argmax(1) == labels).float().mean().item(), (y.argmax(1) == labels).sum().item()


def criteria(reduction: str) -> None:
    """Each of them under one reduction."""
    x, y, labels = matrix(4, 3, grad=True), matrix(4, 3), kiln.tensor([0, 1, 2, 0])
    calls(lambda: F.cross_entropy(x, labels, reduction=reduction))
    calls(lambda: F.nll_loss(F.log_softmax(x, 1), labels, reduction=reduction))
    for f in (F.mse_loss, F.l1_loss, F.binary_cross_entropy_with_logits, F.kl_div):
        calls(lambda f=f: f(x, y, reduction=reduction))
    calls(lambda: F.binary_cross_entropy(x.sigmoid(), y.clamp(0, 1), reduction=reduction))


class Noise(nn.Module):
    """Numbers that are not learned by heart."""

    def forward(self, x: Tensor) -> Tensor:
        """To the same shape."""
        return x + 0.2 * kiln.randn_like(x)


class Block(nn.Module):
    """Attention with one head, then an MLP, each beside a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) to the same."""
        q, k, v = self.qkv(self.one(x)).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) * x.shape[-1] ** -0.5
        later = kiln.ones(x.shape[1], x.shape[1]).triu(1) > 0
        x = x + self.out(kiln.softmax(scores.masked_fill(later, -kiln.inf), -1) @ v)
        y: Tensor = x + self.mlp(self.two(x))
        return y


def networks() -> Iterator[tuple[nn.Module, Tensor, Tensor, Any]]:
    """Models with an input, a target and a criterion."""
    labels, bits = kiln.tensor([0, 1, 2, 0]), kiln.tensor([[0.0], [1.0], [1.0], [0.0]])
    for hidden, activation in product(range(4), (nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid)):
        if (hidden > 2 or not hidden) and activation is not nn.ReLU:
            continue

        def layers(outputs: int, hidden: int = hidden, activation: Any = activation) -> nn.Module:
            parts: list[nn.Module] = []
            for k in range(hidden):
                parts += [nn.Linear(6 if k else 5, 6), activation()]
            return nn.Sequential(*parts, nn.Linear(6 if hidden else 5, outputs))

        yield layers(3), matrix(4, 5), labels, nn.CrossEntropyLoss()
        yield layers(1), matrix(4, 5), bits, nn.MSELoss()
        yield layers(1), matrix(4, 5), bits, nn.BCEWithLogitsLoss()
    yield nn.Sequential(nn.Linear(5, 1), nn.Sigmoid()), matrix(4, 5), bits, nn.BCELoss()
    yield nn.Linear(5, 1), matrix(4, 5), bits, nn.MSELoss()
    drop = nn.Sequential(
        nn.Linear(5, 6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3)
    )
    yield drop, matrix(4, 5), labels, nn.CrossEntropyLoss()
    yield nn.Sequential(Noise(), *drop), matrix(4, 5), labels, nn.CrossEntropyLoss()
    norm = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3))
    yield norm, matrix(4, 5), labels, nn.CrossEntropyLoss()


def sequences() -> tuple[nn.Module, Tensor, Tensor, Any]:
    """A small language model."""
    model = nn.Sequential(nn.Embedding(11, 8), Block(8), Block(8), nn.LayerNorm(8), nn.Linear(8, 11))
    words = kiln.arange(24).reshape(4, 6) % 11
    return model, words, (words + 1) % 11, lambda y, t: F.cross_entropy(y.reshape(-1, 11), t.reshape(-1))


OPTIMIZERS: tuple[Callable[[Any], Any], ...] = (
    lambda p: kiln.optim.Adam(p, lr=0.01),
    lambda p: kiln.optim.SGD(p, lr=0.01),
    lambda p: kiln.optim.SGD(p, lr=0.01, momentum=0.9),
    lambda p: kiln.optim.AdamW(p, lr=0.01),
)


def training() -> None:
    """Steps of every network under every optimizer, eager and compiled."""
    models = [*networks(), sequences()]
    for k, (model, x, y, criterion) in enumerate(models):
        usual = k < 6 or k >= len(models) - 6
        for make in OPTIMIZERS if usual else OPTIMIZERS[:1]:
            train(model, x, y, criterion, make)
        if usual:
            train(model, foreign(x), foreign(y), criterion, OPTIMIZERS[0])
    norms()


def foreign(data: Tensor) -> Tensor:
    """The same as it comes from NumPy, in memory of others."""
    code = "q" if data.dtype is kiln.int64 else "f"
    return kiln.frombuffer(array(code, data.flatten().tolist()), dtype=data.dtype).reshape(data.shape)


def train(model: nn.Module, x: Tensor, y: Tensor, criterion: Any, make: Any) -> None:
    """A few steps, and what is looked at afterwards. The very first step has its program at second sight."""
    for compiled in (False, True, True):
        optimizer = make(model.parameters())
        optimizer.zero_grad()

        def step(x: Tensor, y: Tensor, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        if compiled:
            repeated(step, x, y)
        else:
            step(x, y).item(), step(x, y).item()
    model.eval()
    with kiln.no_grad():
        model(x).argmax(1).tolist()
    model.train()


def norms() -> None:
    """Gradients clipped, weights set by hand."""
    model = nn.Linear(5, 3)
    model(matrix(4, 5)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with kiln.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
            p.grad.zero_()


def repeated(f: Callable[..., Tensor], *operands: Tensor) -> None:
    """A compiled function until it has its program."""
    step = kiln.compile(f)
    for _ in range(3):
        step(*operands).tolist()
        step.wait()


def by_hand() -> None:
    """Gradients with respect to plain tensors, functions under `compile`, an operation of one's own."""
    w, b, x, y = matrix(3, 1, grad=True), kiln.zeros(1, requires_grad=True), matrix(4, 3), matrix(4, 1)
    for _ in range(2):
        ((x @ w + b - y) ** 2).mean().backward()
        with kiln.no_grad():
            w -= 0.01 * w.grad
            b -= 0.01 * b.grad
        w.grad = b.grad = None
    for shape in ((), (3,), (4, 3)):
        x = matrix(*shape, grad=True)
        (x * x + 3 * x + 1).sum().backward()
        (g,) = kiln.autograd.grad((x**3).sum(), x, create_graph=True)
        g.sum().backward()
    for f in (lambda x: (x.softmax(-1) * x).sum(), lambda x: x * 2 + 1, lambda x: kiln.tanh(x).sum()):
        repeated(f, matrix(4, 3))


def large() -> None:
    """A few results that are too large for the caches, which have kernels of their own."""
    a, b = kiln.ones(1 << 20), kiln.ones(1 << 20)
    for f in (a.add, a.sub, a.mul, a.div):
        f(b), f(2.0)
    for name in CURVES:
        getattr(kiln, name)(a)
    (
        a.clone(),
        kiln.zeros(1 << 20),
        kiln.rand(1 << 20),
        kiln.randn(1 << 20),
        a.double(),
        a.long(),
        a > b,
        F.gelu(a),
    )


def readme() -> None:
    """The programs that README.md shows first."""
    text = (Path(__file__).parent.parent / "README.md").read_text()
    for program in re.findall(r"```python\n(import.*?)```", text, re.DOTALL):
        exec(compile(program, "README.md", "exec"), names := {"__name__": "first"})
        names["step"].wait()


# The longest first: they run side by side.
PROGRAMS: tuple[Callable[[], None], ...] = (
    *(training, arithmetic, sums, curves, readme, products, shapes, losses, by_hand, large),
    *(partial(ranks, *shape) for shape in ((), (3,), (2, 4, 3), (2, 2, 4, 3))),
)
