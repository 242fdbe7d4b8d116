"""No memory at any moment: each allocation of the core's fails in turn, in a process of its own.

What fails, by a library that is preloaded, is `operator new` as called from the core, what the core asks of
Python's allocators through the interpreter's functions, or memory for tensors. (What fails in the interpreter
while it runs Python code is its own to survive.) The call must end in MemoryError, or do without; then the
same call gives the right result, nothing is recorded or blocked, and modes are as they were.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from backend import needs_kiln

COMPILER = next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)
pytestmark = [
    needs_kiln,
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"),
    pytest.mark.skipif(bool(os.environ.get("ASAN_OPTIONS")), reason="the sanitizer has its own operator new"),
]
SOURCE = Path(__file__).parents[1] / "native" / "fail_allocations.cpp"

# what is done again and again; `work` gives something that is compared
SCENARIOS = {
    "layer_norm": """
x = kiln.arange(12.0).reshape(3, 4).requires_grad_()
w, b = kiln.ones(4, requires_grad=True), kiln.zeros(4, requires_grad=True)
def work():
    for t in (x, w, b): t.grad = None
    kiln.nn.functional.layer_norm(x, (4,), w, b).square().sum().backward()
    return x.grad.tolist(), w.grad.tolist()
""",
    "eager": """
a = kiln.arange(24.0).reshape(2, 3, 4)
def work():
    b = (a * 2 + a.transpose(0, 2).contiguous().transpose(0, 2)).sum((0, 2), keepdim=True)
    c = kiln.cat([a, a], 1)[:, ::2].softmax(-1)
    d = a.clone().add_(1).mul_(a.view(2, 3, 4, 1)[..., 0])
    e = a.index_select(1, kiln.tensor([2, 0]))
    return b.tolist(), c.tolist(), d.tolist(), e.tolist(), a.sort(0)[1].tolist()
""",
    "many dims": """
a = kiln.ones(*(2,) * 12)
def work():
    b = a.permute(*range(11, -1, -1)) + a[0]
    return b.sum().item(), (b * b.expand(2, *b.shape)).sum((0, 3)).shape
""",
    "cross_entropy": """
x, t = kiln.arange(12.0).reshape(3, 4).requires_grad_(), kiln.tensor([0, 3, 1])
def work():
    x.grad = None
    kiln.nn.functional.cross_entropy(x, t).backward()
    return x.grad.tolist()
""",
    "batch_norm": """
m = kiln.nn.BatchNorm2d(3)
x = kiln.arange(24.0).reshape(2, 3, 2, 2).requires_grad_()
def work():
    m.reset_running_stats(); m.zero_grad(); x.grad = None
    m(x).square().sum().backward()
    return x.grad.tolist(), m.weight.grad.tolist(), m.running_mean.tolist()
""",
    "lstm": """
m = kiln.nn.LSTM(3, 4, num_layers=2)
x = kiln.arange(18.0).reshape(3, 2, 3) / 18
def work():
    m.zero_grad()
    m(x)[0].sum().backward()
    return [p.grad.tolist() for p in m.parameters()]
""",
    "adam": """
def work():
    kiln.manual_seed(0)
    m = kiln.nn.Sequential(kiln.nn.Linear(3, 4), kiln.nn.ReLU(), kiln.nn.Linear(4, 1))
    o = kiln.optim.Adam(m.parameters())
    for _ in range(2):
        o.zero_grad()
        m(kiln.ones(2, 3)).sum().backward()
        o.step()
    return [p.tolist() for p in m.parameters()]
""",
    "hooks": """
def work():
    x = kiln.ones(3, requires_grad=True)
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.retain_grad()
    y.register_hook(lambda g: g * 3)
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.tolist()))
    with kiln.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        z = (y * y).sum()
    z.backward()
    return seen, y.grad.tolist(), x.grad.tolist()
""",
    "function": """
class Twice(kiln.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2
    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]
def work():
    x = kiln.ones(3, requires_grad=True)
    Twice.apply(x).sum().backward()
    g, = kiln.autograd.grad((x * x * x).sum(), x, create_graph=True)
    g.sum().backward()
    return x.grad.tolist()
""",
    "compiled": """
@kiln.compile(wait=True)
def f(x, w):
    h = (x @ w).tanh()
    w.mul_(1.0)
    return (h * 2 + 1).sum(0), h.max()
x, w = kiln.arange(6.0).reshape(2, 3) / 6, kiln.ones(3, 3)
def work():
    return [y.tolist() for y in f(x, w)]
""",
    "compiled anew": """
x = kiln.arange(6.0)
def work():
    f = kiln.compile(lambda x: (x * 2).exp() + x.sum())
    return [f(x).tolist() for _ in range(3)]
""",
    "compiled step": """
w = kiln.ones(3, requires_grad=True)
@kiln.compile(wait=True)
def step(x):
    (w * x).square().sum().backward()
    with kiln.no_grad():
        w.sub_(w.grad * 0.0)
    w.grad = None
x = kiln.arange(3.0)
def work():
    step(x)
    return w.tolist(), w.grad
""",
    "files": """
import os, tempfile
path = os.path.join(tempfile.mkdtemp(), "file")
def work():
    kiln.save({"x": kiln.arange(5.0), "y": [kiln.ones(2, 2)]}, path)
    found = kiln.load(path)
    return found["x"].tolist(), found["y"][0].tolist()
""",
    "data": """
import numpy as np
def work():
    a = kiln.from_numpy(np.arange(6.0).reshape(2, 3))
    b = kiln.tensor([[1, 2], [3, 4]])
    c = kiln.from_dlpack(a.__dlpack__())
    return a.numpy().tolist(), b.tolist(), c.tolist(), [t.item() for t in a.unbind(0)[0]]
""",
}

DRIVER = """
import ctypes, os, signal, sys
import kiln
from kiln import _core
library = ctypes.CDLL(os.environ["LD_PRELOAD"])
library.allocations.restype = ctypes.c_long
core = os.path.realpath(_core.__file__)
places = [line.split()[0].split("-") for line in open("/proc/self/maps") if line.rstrip().endswith(core)]
library.fail_allocations_of(
    ctypes.c_int(int(os.environ["FAILING"])),
    *(ctypes.c_uint64(f(int(p[k], 16) for p in places)) for k, f in ((0, min), (1, max)))
)
{scenario}
for _ in range(4):
    want = work()
def state():
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return _core.modes(), _core.recording(), _core.saved_tensors_hooks(), mask
before = state()
n, refused = int(sys.argv[1]), 0
while True:
    os.write(3, b"%d " % n)
    _core.empty_cache()
    library.fail_allocation(ctypes.c_long(n))
    try:
        work()
    except MemoryError:
        refused += 1
    done = library.allocations() < n
    library.fail_allocation(ctypes.c_long(0))
    if done:
        break
    assert state() == before, (n, state())
    found = work()
    assert found == want, (n, found, want)
    assert (kiln.ones(2) + 1).tolist() == [2.0, 2.0]
    n += 1
print(n - 1, refused)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("library") / "fail_allocations.so"
    command = [str(COMPILER), "-shared", "-fPIC", "-O1", "-std=c++20", str(SOURCE), "-o", str(made)]
    subprocess.run(command, check=True)
    return str(made)


KINDS = {"objects": "0", "python": "1", "memory": "2"}
FULL = os.environ.get("KILN_TEST_FULL") == "1"
SOME = {"python": ("hooks", "batch_norm"), "memory": ("eager", "compiled anew")}  # without KILN_TEST_FULL


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in KINDS for name in SCENARIOS if FULL or name in SOME.get(kind, SCENARIOS)],
)
def test_each_allocation_fails_in_turn(kind: str, name: str, library: str, tmp_path: Path) -> None:
    with open(tmp_path / "reached", "w+b") as reached:
        descriptor = reached.fileno()
        done = subprocess.run(
            [sys.executable, "-P", "-c", DRIVER.replace("{scenario}", SCENARIOS[name]), "1"],
            env={**os.environ, "LD_PRELOAD": library, "FAILING": KINDS[kind]},
            capture_output=True,
            text=True,
            preexec_fn=lambda: os.dup2(descriptor, 3),
            pass_fds=[3],
            timeout=600,
        )
        last = (tmp_path / "reached").read_text().split()[-1:]
    assert done.returncode == 0, (name, "allocation", last, done.returncode, done.stderr[-2000:])
    tried, refused = map(int, done.stdout.split())
    assert tried > 0 and refused > 0


FIRST = (
    DRIVER[: DRIVER.index("for _ in range(4)")]
    + """
library.fail_allocation(ctypes.c_long(int(sys.argv[1])))
said = "did without"
try:
    work()
except MemoryError:
    said = "refused"
if library.allocations() < int(sys.argv[1]):
    said = "all"
library.fail_allocation(ctypes.c_long(0))
assert work() == work()
assert _core.modes() == (True, False, None) and not _core.recording()
print(said)
"""
)


FIRST_CALLS = [
    (kind, name)
    for kind in ("objects", "python")
    for name in ("eager", "layer_norm", "lstm", "compiled", "function")
]


@pytest.mark.parametrize(("kind", "name"), FIRST_CALLS if FULL else [("python", "eager")])
def test_allocations_of_a_first_call(kind: str, name: str, library: str) -> None:
    """The same for what is allocated once, tables, kernels, programs: a process for each."""
    n, refused = 1, 0
    once = FIRST.replace("{scenario}", SCENARIOS[name])
    while FULL or n < 5:
        done = subprocess.run(
            [sys.executable, "-P", "-c", once, str(n)], capture_output=True, text=True, timeout=100,
            env={**os.environ, "LD_PRELOAD": library, "FAILING": KINDS[kind], "KILN_CHECK": "0"},
        )  # fmt: skip
        assert done.returncode == 0, (name, "allocation", n, done.returncode, done.stderr[-2000:])
        if done.stdout == "all\n":
            break
        refused += done.stdout == "refused\n"
        n += 1 if n < 30 else 11
    assert n >= (30 if FULL else 5) and refused > 0
