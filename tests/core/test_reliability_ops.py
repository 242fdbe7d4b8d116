"""Bad and extreme arguments of ops that move, scatter and contract: the answer or exception is PyTorch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from backend import kiln, torch

# of x (2, 3), n (no elements: (0, 3)), L the library
CALLS = """
L.zeros(3).scatter(0, L.tensor([3]), 1.0)
L.zeros(3).scatter(0, L.tensor([-1]), 1.0)
L.zeros(3).scatter_add(0, L.tensor([-4]), L.ones(1))
L.zeros(3).scatter_reduce(0, L.tensor([5]), L.ones(1), "amax")
L.zeros(3).scatter_reduce(0, L.tensor([1, 1, 0]), L.tensor([2.0, 3.0, 4.0]), "prod", include_self=False)
L.zeros(3).scatter_reduce(0, L.tensor([1, 1, 0]), L.tensor([2.0, 3.0, 4.0]), "mean")
L.zeros(3).scatter_reduce(0, L.tensor([0]), L.ones(1), "median")
L.zeros(3).index_add(0, L.tensor([0, 0, 2]), L.tensor([1.0, 2.0, 3.0]))
L.zeros(3).index_add(0, L.tensor([3]), L.ones(1))
L.zeros(3).index_add(0, L.tensor([0, 1]), L.ones(3))
L.zeros(3).index_copy(0, L.tensor([4]), L.ones(1))
L.zeros(3).index_fill(0, L.tensor([-1, -1]), 7.0)
L.zeros(3).index_fill(0, L.tensor([3]), 7.0)
L.zeros(3).index_put((L.tensor([1, 1]),), L.tensor([2.0, 3.0]), accumulate=True)
L.zeros(3).index_put((L.tensor([3]),), L.ones(1))
L.index_select(x, 0, L.tensor([3]))
L.index_select(x, 0, L.tensor([-1]))
L.index_select(x, 2, L.tensor([0]))
L.take(x, L.tensor([-6, 5]))
L.take(x, L.tensor([6]))
x[L.tensor([2])]
x[L.tensor([-2, -2])]
x[:, L.tensor([True, False])]
x[L.tensor([0, 1]), L.tensor([0, 1, 2])]
L.masked_select(x, L.ones(2, 2, dtype=L.bool))
n.sum()
n.prod(0)
n.mean()
n.var(0)
n.std()
n.amin(0)
n.min(0)
n.aminmax()
n.all(0)
n.any()
n.median()
n.median(0)
n.kthvalue(1, 0)
n.mode(0)
n.logsumexp(0)
n.cumsum(0)
n.cummax(0)
n.sort(0)
n.argsort(0)
n.topk(1, 0)
n.unique()
n.nonzero()
L.norm(n)
L.histc(n, 3)
L.bincount(n.long().reshape(-1))
x.prod(2)
x.amax((0, 0))
x.amax((0, -2))
x.all((1, 1))
x.var((0, 0))
x.logsumexp((0, 2))
x.cumsum(2)
x.sort(-3)
x.topk(4)
x.topk(-1)
x.kthvalue(0)
x.kthvalue(4, 1)
x.flip(0, 0)
x.flip(2)
x.roll((1, 1), 0)
x.movedim((0, 0), (0, 1))
x.permute(0, 2)
x.unsqueeze(4)
x.transpose(0, 2)
x.diagonal(0, 1, 1)
x.unfold(0, 3, 1)
x.unfold(0, 1, 0)
x.narrow(1, 2, 2)
x.chunk(0)
x.split(0, 1)
x.split([1, 1], 1)
x.unflatten(1, (2, 2))
x.repeat(2)
x.repeat(-1, 1)
x.expand(3, 3)
x.as_strided((4, 4), (3, 1))
x.as_strided((2,), (-1,))
L.stack([x, n])
L.stack([])
L.cat([x, n], 1)
L.nn.functional.pad(x, (1,))
L.nn.functional.pad(x, (-2, -2))
L.einsum("ij,jk->ik", x, x)
L.einsum("ij->k", x)
L.einsum("ij", x, x)
L.einsum("i", x)
L.einsum("ij->ii", x)
L.einsum("i j->ji", x)
L.einsum("i1->i", x)
L.einsum("ij->", x)
L.einsum("...->", x)
L.einsum("ii", x)
L.einsum("i->...i...", x[0])
L.einsum("ij,", x)
L.einsum("", x)
L.einsum("ij->ij->ij", x)
L.tensordot(x, x, 3)
L.tensordot(x, x, ([0], [1]))
L.kron(n, x).shape
L.cdist(x, x[:, :2])
L.meshgrid(x, x)
L.searchsorted(x, x[:1])
L.bincount(L.tensor([-1]))
L.multinomial(L.tensor([-1.0, 2.0]), 1)
L.repeat_interleave(x, L.tensor([-1, 1]), 0)
L.repeat_interleave(x, L.tensor([1, 1, 1]), 0)
L.nn.functional.one_hot(L.tensor([2]), 2)
L.bitwise_left_shift(L.tensor([1, -1]), L.tensor([3, 1]))
L.full((2, -1), 1.0)
L.arange(0, 3, 0)
L.arange(0, 3, -1)
L.linspace(0, 1, -1)
""".strip().split("\n")


def free_bytes() -> int:
    """Memory that a test may take; nothing where that is not told."""
    info = Path("/proc/meminfo")
    lines = info.read_text().split("\n") if info.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def plain(result: Any) -> Any:
    """A result as lists, shapes and dtypes; NaN as text, so that it equals itself."""
    if isinstance(result, (tuple, list)) and not hasattr(result, "numel"):
        return [plain(part) for part in result]
    if not hasattr(result, "tolist"):
        return result
    return repr(result.tolist()), tuple(result.shape), str(result.dtype).rpartition(".")[2]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("call", CALLS)
def test_the_answer_or_the_exception(call: str, answers: Any) -> None:
    """Positions out of range, negative or named twice; reductions over nothing; dims that are not there or
    repeated; malformed equations and sizes.
    """

    def outcome(lib: Any) -> Any:
        x, n = lib.arange(6.0).reshape(2, 3), lib.zeros(0, 3)
        try:
            return plain(eval(call, {"L": lib, "x": x, "n": n}))
        except Exception as error:
            assert str(error).strip()
            return type(error).__name__

    assert outcome(kiln) == answers(call, lambda: outcome(torch))


@pytest.mark.parametrize("position", [3, -1])
@pytest.mark.parametrize("name", ["index_select", "take_along_dim", "gather"])
def test_nothing_is_read_beside_the_memory(name: str, position: int) -> None:
    """Along the last dim too, where PyTorch's exception is another or there is none."""
    position -= 3 * (name == "take_along_dim" and position < 0)  # there -1 is the last
    index = kiln.tensor([position]) if name == "index_select" else kiln.tensor([[position]])
    x = kiln.arange(6.0).reshape(2, 3)
    args = (index, 1) if name == "take_along_dim" else (1, index)
    with pytest.raises((IndexError, RuntimeError), match="index|range"):
        getattr(kiln, name)(x, *args)


@pytest.mark.skipif(free_bytes() < 8 * 2**30, reason="8 GiB of memory are not free")
def test_more_than_2_31_elements() -> None:
    """Places beyond 32 bits are written, read, compared, counted and found."""
    size = 2**31 + 7
    x = kiln.zeros(size, dtype=kiln.uint8)
    x[-1] = 3
    x.index_fill_(0, kiln.tensor([size - 3]), 200)
    x.add_(1)
    assert x[-4:].tolist() == [1, 201, 1, 4] and x.sum().item() == size + 203
    assert x.argmax().item() == size - 3
    assert x.index_select(0, kiln.tensor([size - 1, 2**31])).tolist() == [4, 1]
    x.scatter_(0, kiln.tensor([size - 2, 0]), 9)
    assert (x[-2].item(), x[0].item()) == (9, 9)
    assert x.view(-1, 1)[2**31 :].flip(0)[0].item() == 4
    assert (x > 3).nonzero().reshape(-1).tolist() == [0, size - 3, size - 2, size - 1]
