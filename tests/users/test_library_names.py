"""Names that libraries built on PyTorch ask for, each by what it does."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from backend import kiln, needs_kiln

pytestmark = needs_kiln

Pair = namedtuple("Pair", "a b")


# ---- storages and files ----


def test_a_storage_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(bytes(range(10)))
    memory = kiln.UntypedStorage.from_file(str(path), False, 5)
    assert memory.tolist() == [0, 1, 2, 3, 4] and memory.nbytes() == len(memory) == 5 and memory[-1] == 4
    part = memory[1:4]
    shared = kiln.asarray(part, dtype=kiln.uint8)
    assert shared.tolist() == part.tolist() == [1, 2, 3] and part.data_ptr() == memory.data_ptr() + 1
    shared.fill_(9)
    assert memory.tolist() == [0, 9, 9, 9, 4] and path.read_bytes() == bytes(
        range(10)
    )  # of this process alone
    assert part.untyped() is part and len(memory[4:2]) == 0
    both = kiln.from_file(str(path), shared=True, size=3)
    assert path.stat().st_size == 12
    both.copy_(kiln.arange(3.0))
    assert kiln.from_file(path, size=3).tolist() == [0, 1, 2]
    for call, words in (
        (lambda: kiln.from_file(path, size=9), "size <12> is smaller than the required mapping size <36>"),
        (lambda: kiln.from_file(tmp_path / "none", size=1), "unable to open file"),
        (lambda: memory[::2], "only a step of 1"),
        (lambda: kiln.ones(2).storage()[:1], "slices are only supported in UntypedStorage"),
    ):
        with pytest.raises(RuntimeError, match=words):
            call()
    with pytest.raises(IndexError, match="index 5 out of range for storage of size 5"):
        memory[5]


def test_a_tensor_becomes_one_of_a_class() -> None:
    class Named(kiln.Tensor):  # type: ignore[misc,name-defined]
        pass

    w = kiln.ones(3, requires_grad=True)
    y = (w * 2).as_subclass(Named)
    assert type(y) is Named and not y.is_leaf
    (y * 3).sum().backward()
    assert w.grad.tolist() == [6, 6, 6]
    x = kiln.zeros(2)
    named = x.as_subclass(Named)
    named.fill_(1)
    assert x.tolist() == [1, 1] and named.is_leaf and type(named.as_subclass(kiln.Tensor)) is kiln.Tensor
    with pytest.raises(TypeError, match="as_subclass"):
        x.as_subclass(int)


# ---- sizes ----

SIZES = """
L.ones(2, 3, 4).shape[-2:]
L.ones(2, 3, 4).shape[1:].numel()
L.ones(2, 3).shape + (1,)
(1,) + L.ones(2, 3).shape
L.ones(2, 3).shape + L.ones(2).shape
L.ones(2, 3).shape * 2
2 * L.ones(2, 3).shape
L.ones(2, 3).shape[0]
L.ones(2, 3).shape[::-1]
L.ones(2, 3).shape + [1]
[1] + L.ones(2, 3).shape
L.ones(2, 3).shape[5]
sum([L.ones(2).shape, L.ones(3).shape], ())
"""


@pytest.mark.parametrize("line", SIZES.strip().splitlines())
def test_parts_of_sizes(line: str, answers: Any) -> None:
    """Sizes as well, as in PyTorch."""

    def found(lib: Any) -> tuple[str, Any]:
        try:
            value = eval(line, {"L": lib})
        except Exception as error:
            return type(error).__name__, None
        return type(value).__name__, list(value) if isinstance(value, tuple) else value

    ours, theirs = answers.both(found)
    assert ours == theirs


# ---- functions of lists ----

LISTS = """
add(x, 1)
add(x, [1, 2])
add(x, y, alpha=2)
add(x, L.tensor(2.0), alpha=3)
add_(x, y)
add(x, [1])
add(x, y[:1])
add([], 1)
mul(x, L.ones(2))
mul_(x, 3)
div(x, L.tensor(2.0))
sub(x, [1, 2])
addcdiv(x, y, y, 2)
addcdiv(x, y, y, [1, 2])
addcmul_(x, y, y, L.tensor([1.0, 2.0]))
lerp(x, y, 0.5)
lerp(x, y, y)
lerp_(x, y, [0.1, 0.2])
pow(2.0, x)
pow(x, y)
pow_(x, 2)
norm(x)
norm(x, 1)
norm(x, float("inf"), dtype=L.float64)
max(y)
maximum(x, y)
maximum_(x, y)
minimum(x, [1, 2])
clamp_max_(x, 1.5)
copy_(x, y)
zero_(x)
sqrt(y)
sigmoid_(x)
neg(x)
mm([L.ones(2, 2)], [L.ones(2, 2)])
powsum(y, 3)
"""


@pytest.mark.parametrize("line", LISTS.strip().splitlines())
def test_functions_of_lists(line: str, answers: Any) -> None:
    def found(lib: Any) -> tuple[Any, ...]:
        x, y = ([lib.tensor(v) for v in vs] for vs in ([[1.0, 2.0], [3.0]], [[4.0, 2.0], [5.0]]))
        try:
            given = eval(f"L._foreach_{line}", {"L": lib, "x": x, "y": y})
        except Exception as error:
            return type(error).__name__, str(error)[:30]
        flat = [[float(v) for t in ts for v in t.flatten().tolist()] for ts in (given, x)]
        return type(given).__name__, str(given[0].dtype).rpartition(".")[2], *flat

    got, expected = answers.both(found)
    assert got[:2] == expected[:2]
    for ours, theirs in zip(got[2:], expected[2:], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)


# ---- futures ----


def test_futures() -> None:
    from kiln.futures import Future, collect_all, wait_all

    first: Any = Future()
    second = first.then(lambda f: f.wait() + 1)
    seen: list[int] = []
    second.add_done_callback(lambda f: seen.append(f.value()))
    assert not first.done() and not second.done()
    with pytest.raises(RuntimeError, match="not completed"):
        first.value()
    worker = threading.Thread(target=first.set_result, args=(3,))
    worker.start()
    assert wait_all([first, second]) == [3, 4] and seen == [4]
    worker.join()
    with pytest.raises(RuntimeError, match="Attempting to mark a completed Future as complete again"):
        first.set_result(4)
    failed: Any = Future()
    late = collect_all([first, failed])
    assert not late.done()
    failed.set_exception(ValueError("no"))
    for future in (failed, late):
        with pytest.raises(ValueError, match="no"):
            future.wait()
    with pytest.raises(RuntimeError, match="when running the callback: ZeroDivisionError"):
        first.then(lambda f: 1 / 0).wait()
    with pytest.raises(AssertionError, match="not an Exception"):
        Future().set_exception(3)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="CPU"):
        Future(devices=["cuda:0"])
    assert collect_all([]).wait() == []


def test_a_callback_that_fails_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from kiln.futures import Future

    future: Any = Future()
    future.add_done_callback(lambda f: 1 / 0)
    future.set_result(1)
    assert "ZeroDivisionError" in capsys.readouterr().err and future.wait() == 1


# ---- trees ----


@dataclass
class Point:
    x: Any
    y: Any


def test_trees_with_paths(answers: Any) -> None:
    from importlib import import_module

    def tree() -> Any:
        pair: Any = Pair(3, [4])
        return {
            "x": [1, (2, None)],
            "p": pair,
            "o": OrderedDict(k=5),
            "d": defaultdict(list, z=6),
            "q": deque([7]),
        }

    def found(lib: Any) -> list[str]:
        p = import_module(f"{lib.__name__}.utils._pytree")
        paths, spec = p.tree_flatten_with_path(tree())
        told = [f"{p.keystr(path)} {leaf} {p.key_get(tree(), path)}" for path, leaf in paths]
        told.append(
            str(p.tree_map_with_path(lambda k, a, b: (p.keystr(k), a, b), {"a": [1, 2]}, {"a": [3, 4]}))
        )
        told += [
            str(spec.num_nodes),
            str(spec.num_leaves),
            str(p.tree_unflatten(spec.flatten_up_to(tree()), spec)),
        ]
        shape = p.tree_structure([1, (2, 3)])
        told += [str(p._broadcast_to_and_flatten(t, shape)) for t in (1, [1, 2], [1, 2, 3])]
        told += [p._get_node_type(t).__name__ for t in (Pair(1, 2), 3, [])]
        told += [str(p.is_namedtuple(t)) for t in (Pair(1, 2), Pair, (1,))]
        told += [str(f(int, lambda v: v > 2, [1, "a", 3])) for f in (p.tree_any_only, p.tree_all_only)]
        for other in ([1, 2, 3], (1, 2), [1, [2]]):
            try:
                told.append(str(p.tree_map(lambda a, b: (a, b), [1, 2], other)))
            except ValueError as error:
                told.append(str(error))
        return told

    ours, theirs = answers.both(found)
    assert ours == theirs


def test_dataclasses_as_trees() -> None:
    from kiln.utils import _pytree as p

    p.register_dataclass(Point)
    try:
        doubled = p.tree_map(lambda v: 2 * v, {"a": Point(1, [2, 3])})
        assert doubled == {"a": Point(2, [4, 6])}
        assert [p.keystr(path) for path, _ in p.tree_leaves_with_path(Point(1, [2]))] == [".x", ".y[0]"]
    finally:
        del p.SUPPORTED_NODES[Point]


# ---- attention by functions ----


def test_flex_attention(answers: Any) -> None:
    """Scores changed and masked by functions, and what blocks of a mask hold, as in PyTorch."""
    import numpy as np

    rng = np.random.default_rng(0)
    values = [rng.normal(size=s).astype("f4") for s in ((2, 4, 20, 4), (2, 4, 20, 4), (2, 4, 20, 3), (4,))]

    def found(lib: Any) -> list[Any]:
        from importlib import import_module

        f = import_module(f"{lib.__name__}.nn.attention.flex_attention")
        q, k, v, bias = map(lib.tensor, values)
        document = lib.tensor([0] * 7 + [1] * 13)
        mask = f.create_block_mask(
            lambda b, h, i, j: (i >= j) & (document[i] == document[j]),
            2,
            None,
            20,
            20,
            device="cpu",
            BLOCK_SIZE=8,
        )
        o, lse = f.flex_attention(q, k, v, block_mask=mask, return_lse=True, scale=0.3)
        told = [
            o, lse, f.flex_attention(q, k, v, lambda s, b, h, i, j: s + bias[h] * (i - j)), mask.to_dense(),
            mask.kv_num_blocks, mask.full_kv_num_blocks,
        ]  # fmt: skip
        refused = [
            lambda: f.flex_attention(q, k[:, :2], v[:, :2]),
            lambda: f.flex_attention(q, k[..., :3], v),
            lambda: f.flex_attention(q, k[:1], v[:1]),
            lambda: f.flex_attention(q[:, :, :9], k, v, block_mask=mask),
        ]
        kinds = []
        for call in refused:
            try:
                call()
            except Exception as error:
                kinds.append((type(error).__name__, str(error)[:50]))
        return [*(t.numpy() for t in told), kinds, tuple(mask.shape), round(mask.sparsity(), 4)]

    got, expected = answers.both(found)
    for a, b in zip(got[:6], expected[:6], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert got[6:] == list(expected[6:])


def test_flex_attention_has_gradients() -> None:
    """Those of attention under the same mask, which PyTorch has on no CPU."""
    from kiln.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

    def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
        return i >= j

    kiln.manual_seed(0)
    q, k, v = (kiln.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3))
    mask = create_block_mask(causal, None, None, 6, 6, BLOCK_SIZE=4)
    ours = kiln.autograd.grad(flex_attention(q, k, v, block_mask=mask).square().sum(), (q, k, v))
    plain = kiln.nn.functional.scaled_dot_product_attention(q, k, v, create_mask(causal, 1, 1, 6, 6))
    for a, b in zip(ours, kiln.autograd.grad(plain.square().sum(), (q, k, v)), strict=True):
        assert (a - b).abs().max() < 1e-5


# ---- measuring ----


def test_measurements_and_tables(answers: Any) -> None:
    """What times say, and the tables of them, letter by letter as PyTorch's."""
    from importlib import import_module

    def found(lib: Any) -> list[str]:
        b = import_module(f"{lib.__name__}.utils.benchmark")

        def made(times: list[float], n: int = 1, **told: Any) -> Any:
            spec = b.TaskSpec(stmt=told.pop("stmt", "x+y"), setup=told.pop("setup", "pass"), **told)
            return b.Measurement(number_per_run=n, raw_times=times, task_spec=spec)

        one = [
            made([1e-3, 1.1e-3, 1.2e-3, 1.05e-3], 10), made([1e-3]),
            made([1e-3, 5e-3, 2e-3, 9e-3, 1e-3], label="lab", sub_label="sub", description="d",
            num_threads=4),
            made([3.2e-5] * 5, 100, label="lab", setup="a=1\nb=2", stmt="for i in x:\n  y"),
        ]  # fmt: skip
        told = ["\n".join(repr(m).splitlines()[1:]) for m in one]
        told += [
            f"{m.median:.6g} {m.mean:.6g} {m.iqr:.6g} {m.significant_figures} {m.has_warnings}" for m in one
        ]
        rows = [
            made([f * g * 1e-5 / t * (1 + 0.02 * i) for i in range(6)], label=label, sub_label=sub,
                 description=d,
                 num_threads=t)
            for label in "AB" for sub, f in (("s1", 1), ("s2", 10))
            for d, g in (("d1", 1), ("d2", 2)) for t in (1, 2)
        ]  # fmt: skip
        table = b.Compare(rows)
        told.append(str(table))
        table.trim_significant_figures()
        told.append(str(table))
        for rowwise in (False, True):
            table.colorize(rowwise=rowwise)
            told.append(str(table))
        told += [str(b.select_unit(t)) for t in (3e-5, 2.0, 3e-9)] + [str(b.trim_sigfig(123456.0, 3))]
        return told

    ours, theirs = answers.both(found)
    assert ours == theirs


def test_a_timer_measures() -> None:
    import time

    from kiln.utils.benchmark import Compare, Timer

    clock = iter(range(10**6))  # each look at it is a second later
    spins: list[int] = []
    timer = Timer(
        "spins.append(1)", globals={"spins": spins}, timer=lambda: next(clock), label="l", num_threads=1
    )
    found = timer.timeit(300)
    assert found.raw_times == [1] and found.times == [1 / 300] and len(spins) == 3 + 300
    ranged = timer.blocked_autorange(min_run_time=0.5)
    assert (ranged.number_per_run, ranged.raw_times) == (1, [1])
    real = Timer("f()", setup="f = sleep.sleep\nf = lambda: None", globals={"sleep": time})
    assert real.blocked_autorange(min_run_time=0.001).median < 1e-3
    assert real.adaptive_autorange(min_run_time=0.001, max_run_time=0.01).number_per_run >= 1
    threads = kiln.get_num_threads()
    told: list[int] = []
    Timer("told.append(kiln.get_num_threads())", globals={"told": told}, num_threads=1).timeit(1)
    assert set(told) == {1} and kiln.get_num_threads() == threads
    for wrong in (lambda: Timer(lambda: 1), lambda: Compare([3])):  # type: ignore[arg-type,list-item]
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(NotImplementedError, match="Python"):
        Timer("x", language="c++")
    with pytest.raises(NotImplementedError, match="blocked_autorange"):
        timer.collect_callgrind()


# ---- under PyTorch's name ----

UNDER = """
import torch, tempfile
from torch.distributed import rpc
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.device_mesh import DeviceMesh
from torch.fft import fft, rfft
from torch._dynamo.eval_frame import OptimizedModule
from torch._subclasses.fake_tensor import is_fake
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype as grouped
from torch.utils.checkpoint import get_device_states, set_device_states, detach_variable
from torch.serialization import DEFAULT_PROTOCOL, MAP_LOCATION, FileLike
from torch import ScriptModule, SymInt, TensorType, Future, Stream

x = torch.ones(2)
assert torch.torch is torch and not isinstance(x, (DTensor, SymInt))
assert not isinstance(torch.nn.ReLU(), OptimizedModule)
assert not is_fake(x) and get_proxy_mode() is None and not isinstance(x, rpc.RRef) and not rpc.is_available()
for call in (lambda: fft(x), lambda: rpc.init_rpc("a"), lambda: rpc.RRef(x), lambda: Shard(0),
             lambda: DeviceMesh("cpu", [0]),
             lambda: FullyShardedDataParallel(torch.nn.ReLU()), lambda: ZeroRedundancyOptimizer([x])):
    try: call()
    except NotImplementedError as error: assert ": kiln " in str(error), error
    else: raise AssertionError
assert get_device_states(x) == ([], []) and set_device_states([], []) is None
assert detach_variable((x, 1))[1] == 1
groups = grouped([[x, x.double(), x], [None, x, x]], with_indices=True)
assert [(str(k[1]), v[1]) for k, v in groups.items()] == [("torch.float32", [0, 2]), ("torch.float64", [1])]
assert torch._C._nn._parse_to("cpu", torch.float64, True) == (torch.device("cpu"), torch.float64, True, None)
torch._assert(True, "")
try: torch._assert(False, "words")
except AssertionError as error: assert str(error) == "words"
with torch.device("meta"): model = torch.nn.Linear(2, 2)
assert model(x).shape == (2,) and torch.autograd.forward_ad.unpack_dual(x).tangent is None
path = tempfile.mkdtemp() + "/a.pt"
torch.save({"a": torch.arange(4)}, path)
reader = torch.PyTorchFileReader(path)
assert reader.has_record("data/0") and not reader.has_record("x") and "data.pkl" in reader.get_all_records()
assert reader.get_storage_from_record("data/0", 4, torch.int64).tolist() == [0, 1, 2, 3]
try: reader.get_record("x")
except RuntimeError as error: assert "failed locating file" in str(error)
from torch.cuda.amp.autocast_mode import autocast
from torch.cuda.amp.grad_scaler import GradScaler
from torch.cpu.amp.autocast_mode import autocast as cpu_autocast
assert autocast is torch.cuda.amp.autocast and GradScaler is torch.cuda.amp.GradScaler
assert cpu_autocast is torch.cpu.amp.autocast
assert torch.nn.attention.SDPBackend.MATH.name == "MATH"
assert torch.utils.deterministic.fill_uninitialized_memory and torch.utils._foreach_utils.Indices
assert not torch.backends.cusparselt.is_available() and not torch.backends.kleidiai.is_available()
print("all of it")
"""


def test_names_under_pytorchs_name(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(UNDER)
    done = subprocess.run(
        [sys.executable, "-m", "kiln", "program.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr


# ---- older names ----


def test_functional_call_of_before_pytorch_2() -> None:
    layer = kiln.nn.Linear(2, 1)
    given = {"weight": kiln.tensor([[1.0, 2.0]]), "bias": kiln.tensor([3.0])}
    with pytest.warns(FutureWarning, match="stateless.functional_call` is deprecated"):
        assert kiln.nn.utils.stateless.functional_call(layer, given, kiln.ones(1, 2)).tolist() == [[6.0]]
    with pytest.raises(AttributeError, match="module 'kiln.nn.utils' has no attribute 'statefull'"):
        kiln.nn.utils.statefull  # noqa: B018


def test_assert_allclose(answers: Any) -> None:
    """It compares as PyTorch's, whose tolerances are wider than those of assert_close."""

    def close(library: Any) -> list[str]:
        one, found = library.ones(2), []
        nan = library.tensor([float("nan")])
        for actual, expected, options in (
            (one.half(), one + 2e-4, {}),
            (one, one + 2e-4, {}),
            (one, [1.0, 1.00009], {}),
            (one.double(), one.double() * (1 + 2e-5), {}),
            (1, 1.0, {}),
            (nan, nan, {}),
            (nan, nan, {"equal_nan": False}),
            (one, one + 0.1, {"rtol": 0.2, "atol": 0.0}),
            (one, one + 0.1, {"rtol": 0.2}),
            (one, 1.0, {}),
            (one, one + 0.1, {"msg": "mine"}),
        ):
            try:
                with pytest.warns(FutureWarning):
                    library.testing.assert_allclose(actual, expected, **options)
                found.append("close")
            except (AssertionError, ValueError) as error:
                found.append(f"{type(error).__name__} {str(error)[:4]}")
        return found

    ours, theirs = answers.both(close)
    assert ours == theirs


def test_modules_are_printed_by_the_name_that_programs_print_with() -> None:
    from kiln.nn.modules.module import _addindent

    assert _addindent("a\nb\n(c", 2) == "a\n  b\n  (c" and _addindent("a", 2) == "a"


def test_memory_is_made_of_numbers() -> None:
    assert kiln.UntypedStorage(4).tolist() == [0, 0, 0, 0] == kiln.ByteStorage(4).tolist()
    made = kiln.FloatStorage([1, 2.5])
    assert isinstance(made, kiln.FloatStorage) and not isinstance(made, kiln.DoubleStorage)
    assert type(made) is kiln.TypedStorage and made.dtype is kiln.float32 and kiln.FloatTensor(made)[1] == 2.5
    assert made.pickle_storage_type() == "FloatStorage"
    assert made.long().tolist() == [1, 2] and made.untyped().nbytes() == 8
    big = kiln.ShortStorage.from_buffer(b"\x01\x02\x03\x04", "big")
    assert big.tolist() == [0x0102, 0x0304]
    with pytest.raises(TypeError, match="invalid combination of arguments"):
        kiln.FloatStorage(kiln.ones(2))
    with pytest.raises(RuntimeError, match="Keyword argument 'dtype' cannot be specified"):
        kiln.FloatStorage(dtype=kiln.float32)
    with pytest.raises(AssertionError, match="not compiled with CUDA"):
        kiln.cuda.FloatStorage(2)
