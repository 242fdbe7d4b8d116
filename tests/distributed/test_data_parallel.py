"""`DistributedDataParallel`: gradients have the bits of one process that takes parts one by one."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import ranks

import kiln
import kiln.distributed as dist
from kiln import nn
from kiln.nn.parallel import DistributedDataParallel as Parallel
from kiln.utils.checkpoint import checkpoint

STEPS = 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.second(self.norm(self.first(x)).relu())


class Sometimes(Net):
    """Uses another part of itself as its input says."""

    def forward(self, x: Any, which: int) -> Any:
        y = self.first(x)
        return {"out": (self.second(y), None) if which == 0 else (y * 2,)}


def made(kind: type[nn.Module], seed: int = 0) -> Any:
    kiln.manual_seed(seed)
    return kind()


def inputs(step: int, rank: int) -> Any:
    kiln.manual_seed(1000 + 10 * step + rank)
    return kiln.randn(4 + rank, 5)


def bits(tensors: Any) -> list[Any]:
    return [None if t is None else (list(t.shape), t.detach().numpy().tobytes()) for t in tensors]


def grads(model: nn.Module) -> list[Any]:
    return bits(p.grad for p in model.parameters())


def chain() -> nn.Sequential:
    kiln.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def one_process(size: int, skipped: int = 0) -> list[Any]:
    """Gradients of each step: parts of the ranks added in order, then divided."""
    model = chain()
    found = []
    optimizer = kiln.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(STEPS):
        parts = []
        for rank in range(size):
            model.zero_grad()
            for i in range(skipped + 1):
                model(inputs(step + 10 * i, rank)).square().mean().backward()
            parts.append([p.grad.clone() for p in model.parameters()])
        for p, *g in zip(model.parameters(), *parts):
            total = g[0].clone()
            for part in g[1:]:
                total += part
            p.grad = total / size
        found.append(grads(model))
        optimizer.step()
    return [*found, bits(model.parameters())]


def several(rank: int, size: int, skipped: int, options: dict[str, Any]) -> list[Any]:
    model = Parallel(chain(), **options)
    found = []
    optimizer = kiln.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step != 1)
        for i in range(skipped):
            with model.no_sync():
                model(inputs(step + 10 * i, rank)).square().mean().backward()
        model(inputs(step + 10 * skipped, rank)).square().mean().backward()
        found.append(grads(model))
        optimizer.step()
    return [*found, bits(model.parameters())]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_gradients_are_those_of_one_process(size: int, tmp_path: Path) -> None:
    for options in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001}):
        assert ranks.run(several, size, tmp_path, 0, options) == [one_process(size)] * size


def test_gradients_that_were_accumulated_before(tmp_path: Path) -> None:
    for options in ({}, {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0001}, {"static_graph": True}):
        assert ranks.run(several, 2, tmp_path, 2, options) == [one_process(2, skipped=2)] * 2


def between(rank: int, size: int, how: str, first: bool) -> list[Any]:
    """Gradients of a step with another forward between its forward and its backward, or before both."""
    model = Parallel(chain())

    def other() -> None:
        context = model.no_sync() if how == "no_sync" else kiln.no_grad()
        with context:
            model.train(how != "eval")(inputs(7, rank))
        model.train()

    found = []
    for step in range(STEPS):
        model.zero_grad()
        if first:
            other()
        loss = model(inputs(step, rank)).square().mean()
        if not first:
            other()
        loss.backward()
        found.append(grads(model))
    return found


@pytest.mark.parametrize("how", ["no_grad", "no_sync", "eval"])
def test_a_forward_between_another_and_its_backward(how: str, tmp_path: Path) -> None:
    model = chain()
    expected = []
    for step in range(STEPS):
        parts = []
        for rank in range(2):
            model.zero_grad()
            model(inputs(step, rank)).square().mean().backward()
            parts.append([p.grad.clone() for p in model.parameters()])
        for p, one, two in zip(model.parameters(), *parts):
            p.grad = (one + two) / 2
        expected.append(grads(model))
    for first in (True, False):
        assert ranks.run(between, 2, tmp_path, how, first) == [expected] * 2


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.first(x), self.second(x)


def in_two(rank: int, size: int, times: int) -> list[Any]:
    model = Parallel(made(Two), bucket_cap_mb=0.0001)
    found = []
    for step in range(STEPS):
        model.zero_grad()
        first, second = model(inputs(step, rank))
        for loss in (first.sum(), second.sum()) if times == 2 else (first.sum() + second.sum(),):
            loss.backward()
        found.append(grads(model))
    return found


def test_two_backwards_that_reach_a_half_each(tmp_path: Path) -> None:
    one, two = (ranks.run(in_two, 2, tmp_path, times) for times in (1, 2))
    assert one == two == [one[0]] * 2


def unused(rank: int, size: int) -> list[Any]:
    model = Parallel(made(Sometimes), find_unused_parameters=True)
    found = []
    for step in range(STEPS):
        model.zero_grad()
        out = model(inputs(step, rank), rank if step == 0 else 1)["out"]
        out[0].sum().backward()
        found.append(grads(model))
    return found


def test_parameters_that_only_some_ranks_use(tmp_path: Path) -> None:
    found = ranks.run(unused, 2, tmp_path)
    assert found[0] == found[1]
    model = made(Sometimes)
    parts = []
    for rank in range(2):
        model.zero_grad()
        model(inputs(0, rank), rank)["out"][0].sum().backward()
        parts.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
    for p, *given in zip(model.parameters(), *parts):
        there = [g for g in given if g is not None]
        p.grad = sum(there[1:], there[0]) / 2 if there else None
    assert found[0][0] == grads(model)
    names = [n for n, _ in model.named_parameters()]
    assert [n for n, g in zip(names, found[0][1]) if g is not None] == ["first.weight", "first.bias"]


def static(rank: int, size: int) -> list[Any]:
    model = Parallel(made(Net), static_graph=True)
    for step in range(STEPS):
        model.zero_grad()
        model(inputs(step, rank)).sum().backward()
    return grads(model)


def test_a_static_graph_finds_unused_parameters_once(tmp_path: Path) -> None:
    first, second = ranks.run(static, 2, tmp_path)
    assert first == second and first[-2:] == [None, None] and None not in first[:-2]


def not_asked_for(rank: int, size: int) -> None:
    model = Parallel(made(Net))
    model(inputs(0, rank)).sum().backward()
    model(inputs(1, rank))


def test_unused_parameters_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match="Expected to have finished reduction in the prior iteration"
    ) as e:
        ranks.run(not_asked_for, 2, tmp_path)
    assert "did not receive grad for rank 1: unused.weight, unused.bias" in str(e.value)
    assert "Parameter indices which did not receive grad for rank 1: 6 7" in str(e.value)


def differs(rank: int, size: int, what: str) -> str:
    model = {"shape": nn.Linear(3, 2 + rank), "number": nn.Linear(3, 2, bias=rank == 0)}[what]
    with pytest.raises(RuntimeError) as caught:
        Parallel(model)
    return str(caught.value)


def test_models_that_differ_are_told_on_every_rank(tmp_path: Path) -> None:
    for found in ranks.run(differs, 2, tmp_path, "shape"):
        assert "params[0] (weight) of rank 1 with sizes [3, 3] (kiln.float32" in found
        assert "not to match the same param of rank 0: weight with sizes [2, 3]" in found
    for found in ranks.run(differs, 2, tmp_path, "number"):
        assert "rank 1 has 1 params, while rank 0 has 2 params" in found


def uneven(rank: int, size: int, by_all: bool) -> list[Any]:
    model = Parallel(chain(), bucket_cap_mb=0.0001)
    optimizer = kiln.optim.SGD(model.parameters(), 0.1)
    found = []
    with model.join(divide_by_initial_world_size=by_all):
        for step in range(1 + 2 * rank):
            optimizer.zero_grad()
            model(inputs(step, rank)).square().mean().backward()
            found.append(grads(model))
            optimizer.step()
    # and together again
    optimizer.zero_grad()
    model(inputs(9, rank)).square().mean().backward()
    return [found, grads(model), bits(model.parameters())]


@pytest.mark.parametrize("by_all", [True, False])
def test_ranks_with_different_numbers_of_inputs(by_all: bool, tmp_path: Path) -> None:
    size = 3
    found = ranks.run(uneven, size, tmp_path, by_all)
    assert [len(f[0]) for f in found] == [1, 3, 5] and all(f[1:] == found[0][1:] for f in found)
    model = chain()
    for step in range(5):
        active = [rank for rank in range(size) if step < 1 + 2 * rank]
        total: list[Any] = [kiln.zeros_like(p) for p in model.parameters()]
        for rank in active:
            model.zero_grad()
            model(inputs(step, rank)).square().mean().backward()
            total = [t + p.grad for t, p in zip(total, model.parameters())]
        for p, t in zip(model.parameters(), total):
            p.grad = t / (size if by_all else len(active))
        assert all(found[rank][0][step] == grads(model) for rank in active)
        kiln.optim.SGD(model.parameters(), 0.1).step()
    assert found[0][2] == bits(model.parameters())


def ends_early(rank: int, size: int) -> int:
    model = Parallel(chain())
    done = 0
    with pytest.raises(RuntimeError, match="at least one rank that exhausted inputs"):
        with model.join(throw_on_early_termination=True):
            for step in range(1 + rank):
                model(inputs(step, rank)).sum().backward()
                done += 1
    return done


def test_a_rank_without_inputs_may_end_all(tmp_path: Path) -> None:
    assert ranks.run(ends_early, 2, tmp_path) == [1, 1]


def hooked(rank: int, size: int) -> Any:
    seen = []

    def hook(state: Any, bucket: Any) -> Any:
        seen.append((bucket.index(), bucket.is_last(), len(bucket.gradients()), len(bucket.parameters())))
        work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.MAX, async_op=True)
        return work.get_future().then(lambda future: future.value()[0] * state)

    model = Parallel(chain(), bucket_cap_mb=0.0001)
    model.register_comm_hook(2.0, hook)
    with pytest.raises(RuntimeError, match="can only be called once"):
        model.register_comm_hook(None, hook)
    model(inputs(0, rank)).sum().backward()
    return seen, grads(model)


@pytest.mark.parametrize("size", [1, 2])
def test_a_hook_puts_gradients_together(size: int, tmp_path: Path) -> None:
    found = ranks.run(hooked, size, tmp_path)
    parts = []
    for rank in range(size):
        model = chain()
        model(inputs(0, rank)).sum().backward()
        parts.append([p.grad for p in model.parameters()])
    for p, *given in zip(model.parameters(), *parts):
        p.grad = kiln.stack(given).amax(0) * 2
    for seen, values in found:
        assert values == grads(model)
        assert [s[0] for s in seen] == list(range(len(seen))) and [s[1] for s in seen].index(True) == len(
            seen
        ) - 1
        assert sum(s[2] for s in seen) == 6 and all(s[2] == s[3] for s in seen) and len(seen) > 1


def order(rank: int, size: int) -> list[list[str]]:
    """Which parameters are in which bucket, before and after a first backward that goes another way."""

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.first = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)

        def forward(self, x: Any) -> Any:
            return self.last(self.first(x))

    model = Parallel(Backwards(), bucket_cap_mb=0.00001)
    names = {id(p): n for n, p in model.module.named_parameters()}
    found: list[list[str]] = []

    def hook(state: Any, bucket: Any) -> Any:
        found[-1] += [names[id(p)] for p in bucket.parameters()]
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future()

    model.register_comm_hook(None, hook)
    for step in range(2):
        found.append([])
        model(inputs(step, rank)).sum().backward()
    return found


def test_buckets_follow_the_first_backward(tmp_path: Path) -> None:
    first, second = ["first.weight", "last.weight"], ["last.weight", "first.weight"]
    assert ranks.run(order, 2, tmp_path) == [[first, second]] * 2


def alone(rank: int, size: int) -> None:
    model = Parallel(chain())
    assert model._reducer is None  # nothing is done in a group of one
    with pytest.raises(TypeError, match="a module in a group of processes is not pickled"):
        pickle.dumps(model)
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(RuntimeError, match="doesn't have any parameters that require a gradient"):
        Parallel(frozen)
    with pytest.raises(ValueError, match="only work with GPU modules"):
        Parallel(nn.Linear(2, 2), device_ids=[0])
    for name in (
        "delay_all_reduce_named_params",
        "param_to_hook_all_reduce",
        "mixed_precision",
        "device_mesh",
        "skip_all_reduce_unused_params",
    ):
        with pytest.raises(NotImplementedError, match=name):
            Parallel(nn.Linear(2, 2), **{name: True})
        Parallel(nn.Linear(2, 2), **{name: False if name.startswith("skip") else None})


def test_a_group_of_one(tmp_path: Path) -> None:
    ranks.run(alone, 1, tmp_path)


def copied(rank: int, size: int) -> list[Any]:
    """Gradients of a model that was trained, of its copy, and of one that was not touched by the copy."""
    group = dist.new_group(list(range(size)))
    model = Parallel(chain(), bucket_cap_mb=0.0001, process_group=group)
    model(inputs(0, rank)).square().mean().backward()
    twin = copy.deepcopy(model)
    assert twin.process_group is group and type(twin) is Parallel
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}
    before = bits(twin.parameters())
    found = []
    for one in (twin, model):
        one.zero_grad()
        one(inputs(1, rank)).square().mean().backward()
        found.append(grads(one))
    average = kiln.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    assert list(average.module.state_dict()) == list(model.state_dict())
    return [*found, before == bits(model.parameters()) == bits(average.module.parameters())]


@pytest.mark.parametrize("size", [1, 2])
def test_a_copy_is_in_the_same_group(size: int, tmp_path: Path) -> None:
    found = ranks.run(copied, size, tmp_path)
    assert found == [[found[0][0], found[0][0], True]] * size


def test_no_group() -> None:
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        Parallel(nn.Linear(2, 2))


def compressed(rank: int, size: int, name: str) -> list[Any]:
    from kiln.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = Parallel(chain(), bucket_cap_mb=0.0001)
    hook = getattr(default_hooks, name)
    model.register_comm_hook(None, hook(default_hooks.allreduce_hook) if name.endswith("wrapper") else hook)
    for step in range(2):
        model.zero_grad()
        model(inputs(step, rank)).square().mean().backward()
    return grads(model)


@pytest.mark.parametrize(
    ("name", "dtype", "divides_in"),
    [
        ("allreduce_hook", kiln.float32, kiln.float32),
        ("fp16_compress_hook", kiln.float16, kiln.float32),
        ("bf16_compress_hook", kiln.bfloat16, kiln.float32),
        ("bf16_compress_wrapper", kiln.bfloat16, kiln.bfloat16),
    ],
)
def test_hooks_that_are_there(name: str, dtype: Any, divides_in: Any, tmp_path: Path) -> None:
    model = chain()
    parts = []
    for rank in range(2):
        model.zero_grad()
        model(inputs(1, rank)).square().mean().backward()
        parts.append([p.grad.to(dtype) for p in model.parameters()])
    for p, first, second in zip(model.parameters(), *parts):
        p.grad = ((first + second).to(divides_in) / 2).float()
    assert ranks.run(compressed, 2, tmp_path, name) == [grads(model)] * 2


def narrow_in_join(rank: int, size: int) -> list[Any]:
    """Dtypes of gradients where a hook leaves a bucket with another row, over two epochs."""
    from kiln.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = Parallel(chain(), bucket_cap_mb=0.0001)
    model.register_comm_hook(None, default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook))
    found = []
    for _ in range(2):
        with model.join():
            for step in range(1 + rank):
                model.zero_grad()
                model(inputs(step, rank)).square().mean().backward()
                found.append(grads(model))
    model.zero_grad()
    model(inputs(5, rank)).square().mean().backward()
    rows = [b.buffer().dtype for b in model._reducer.buckets]  # type: ignore[union-attr]
    return [found[0], found[-1 - rank], grads(model), str(rows)]


def test_a_hook_with_rows_of_its_own_where_a_rank_has_no_more_inputs(tmp_path: Path) -> None:
    first, second = ranks.run(narrow_in_join, 2, tmp_path)
    assert first == second and "bfloat16" not in first[-1]


class Checkpointed(nn.Module):
    """A chain one part of which is computed again in backward; "none": no part is. The middle `times`."""

    def __init__(self, part: str, times: int) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.unused = nn.Linear(2, 2)
        self.part, self.times = part, times

    def forward(self, x: Any) -> Any:
        for name in ("first", *["middle"] * self.times, "last"):
            part = getattr(self, name)
            x = checkpoint(part, x.requires_grad_(), use_reentrant=True) if name == self.part else part(x)
        return x


def checkpointed(rank: int, size: int, part: str, options: dict[str, Any]) -> list[Any]:
    kiln.manual_seed(0)
    module = Checkpointed(part, times=2 if options else 1)
    if not options:
        module.unused.requires_grad_(False)
    model = Parallel(module, bucket_cap_mb=0.0001, **options)
    found = []
    for step in range(STEPS):
        model.zero_grad()
        model(inputs(step, rank)).sum().backward()
        found.append(grads(model))
    return found


@pytest.mark.parametrize("options", [{}, {"static_graph": True}], ids=["plain", "static"])
def test_a_backward_in_the_backward(options: dict[str, Any], tmp_path: Path) -> None:
    """Of a part that is computed again: gradients come from two runs of the engine, one in the other.

    In a static graph a parameter may get several.
    """
    plain = ranks.run(checkpointed, 2, tmp_path, "none", options)
    for part in ("first", "middle", "last"):
        assert ranks.run(checkpointed, 2, tmp_path, part, options) == plain == [plain[0]] * 2


def compiled(rank: int, size: int, what: str, options: dict[str, Any]) -> list[Any]:
    module = chain()
    if what == "the module":
        module = kiln.compile(module)
    model: Any = Parallel(module, **options)
    called = kiln.compile(model) if what == "all" else model
    found = []
    for step in range(STEPS):
        model.zero_grad()
        called(inputs(step, rank)).square().mean().backward()
        found.append(grads(model))
    return found


@pytest.mark.parametrize("options", [{}, {"static_graph": True}], ids=["plain", "static"])
def test_a_compiled_module(options: dict[str, Any], tmp_path: Path) -> None:
    eager, *others = (
        ranks.run(compiled, 2, tmp_path, what, options) for what in ("nothing", "the module", "all")
    )
    assert eager[0] == eager[1] and others == [eager] * 2
