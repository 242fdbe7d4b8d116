"""What a process may be like: small stacks, other rounding, another language, no memory, no home, forks."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kiln

LIMIT = 240

# eager, backward, a product, a library's function, a compiled function; what it prints is the same everywhere
PROGRAM = """
import kiln
def work():
    x = kiln.arange(12.0).reshape(3, 4).div(7).requires_grad_()
    y = kiln.softmax(x @ x.t(), 1) * kiln.pointwise(lambda t: t * 0.1 + 1.25)(x[:, :3])
    (y * y).sum().backward()
    step = kiln.compile(lambda x: (kiln.nn.functional.gelu(x) @ x.t()).tanh().sum(1), wait=True)
    for _ in range(3):
        z = step(x.detach())
    inverse = kiln.linalg.inv(kiln.eye(300) * 3)
    return [repr(v) for v in (x.grad, z, inverse[0, 0].item(), x.detach().sort(1, descending=True)[0])]
"""


SHORT = """
import kiln
def work():
    x = kiln.arange(12.0).reshape(3, 4).div(7).requires_grad_()
    y = kiln.softmax(x, 1) * kiln.pointwise(lambda t: t * 0.1 + 1.25)(x)
    (y * y).sum().backward()
    return [repr(v) for v in (x.grad, y, y[0, 0].item(), x.detach().sort(1, descending=True)[0])]
"""


def run(text: str, cache: Path | str, **environment: str) -> str:
    """What a process of its own prints; it must end well and say nothing else."""
    variables = {**os.environ, "KILN_CACHE_DIR": str(cache), "KILN_CHECK": "0", **environment}
    done = subprocess.run(
        [sys.executable, "-P", "-c", text], env=variables, capture_output=True, text=True, timeout=LIMIT
    )
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr)
    return done.stdout


# -- the float environment ----------------------------------------------------------------------------

DEFAULT = 0x1F80
CONTROLS = {
    "flush": DEFAULT | 0x8040,
    "up": DEFAULT | 0x4000,
    "down": DEFAULT | 0x2000,
    "to zero": DEFAULT | 0x6000,
}


def set_control(bits: int) -> None:
    """This thread's MXCSR."""
    libm = ctypes.CDLL("libm.so.6")
    state = (ctypes.c_uint32 * 8)()
    libm.fegetenv(state)
    state[7] = bits
    libm.fesetenv(state)


@contextmanager
def control(bits: int) -> Iterator[None]:
    """This thread's MXCSR as another library may leave it."""
    set_control(bits)
    try:
        yield
    finally:
        set_control(DEFAULT)


def arithmetic(number: float) -> list[Any]:
    """Results that rounding or flushed denormals would change; kernels that hold `number` are made here."""
    x = kiln.tensor([0.1, 1e-40, 16777217.0, 1 / 3])
    f = kiln.pointwise(lambda t, number=number: kiln.tanh(t * number) / 3.0)
    leaf = x.clone().requires_grad_()
    (kiln.exp(leaf) * number).sum().backward()
    large = kiln.full((300_000,), 1e-40)
    return [
        x, x[1].item(), x.tolist(), f(x), leaf.grad, x * 0.1, x.sum(), x @ x, large.sum(), large * 0.7,
        kiln.tensor([0.1, 1e-7], dtype=kiln.float16), kiln.tensor([0.1, 1e-40], dtype=kiln.bfloat16),
        kiln.tensor(2**53 + 1).double(), kiln.linspace(0, 1, 7), kiln.softmax(x, 0), kiln.log_softmax(x, 0),
        kiln.linalg.inv(kiln.tensor([[3.0, 1.0], [1.0, 7.0]])), kiln.linalg.det(kiln.eye(3) * 0.1),
    ]  # fmt: skip


def bits(results: list[Any]) -> list[Any]:
    return [r.detach().double().numpy().tobytes() if isinstance(r, kiln.Tensor) else repr(r) for r in results]


@pytest.mark.skipif(os.uname().machine != "x86_64" or sys.platform != "linux", reason="MXCSR, through glibc")
@pytest.mark.parametrize("name", CONTROLS)
def test_the_float_environment_is_ours(name: str) -> None:
    """Kernels, the pool's, conversions and LAPACK round to nearest and keep denormals, whatever the calling
    thread does; what is compiled there is what is compiled anywhere.
    """
    number = 1.1 + list(CONTROLS).index(name)
    found: list[list[Any]] = []

    def elsewhere() -> None:
        with control(CONTROLS[name]):
            found.append(arithmetic(number))

    with control(CONTROLS[name]):
        found.append(arithmetic(number))
        tiny = np.full(3, 1e-40, np.float32)
        flushed = (tiny * np.float32(1)).view(np.int32).any() == 0
        worker = threading.Thread(target=elsewhere)
        worker.start()
        worker.join()
    assert flushed == (name == "flush")
    found.append(arithmetic(number))
    assert bits(found[0]) == bits(found[1]) == bits(found[2])
    assert (
        found[0][1] == float(np.float32(1e-40))
        and found[0][2] == np.float32([0.1, 1e-40, 16777217, 1 / 3]).tolist()
    )


# -- stack and memory -----------------------------------------------------------------------------------

SMALL = """
import sys, threading
said = []
def go():
    try:
        said.append(work())
    except RuntimeError as error:
        said.append(str(error))
expected = work() if sys.argv[1:] else None
for size in {sizes}:
    threading.stack_size(size << 10)
    thread = threading.Thread(target=go)
    thread.start()
    thread.join()
step = kiln.compile(lambda x: (x @ x).cos().sum())
step(kiln.ones(3, 3)), step(kiln.ones(3, 3)), step.wait()
print(*said, sep="\\n")
"""


def test_small_stacks(tmp_path: Path) -> None:
    """A thread whose stack is too small hears so, also where kernels are there; 7 MiB are enough
    for all, LAPACK's part of it 6, and the compiling thread has its own.
    """
    said = run(PROGRAM + SMALL.format(sizes=[64, 7168, 64, 1024, 128]), tmp_path).splitlines()
    assert said[1] == run(PROGRAM + "print(work())", tmp_path).strip()
    for k, needed in (0, 256), (2, 256), (3, 6144), (4, 256):
        assert "KiB of stack left" in said[k] and f"needs {needed}" in said[k], said[k]


MANY = """
import threading
x = kiln.arange(60000, dtype=kiln.float64).reshape(100, 600).cos()
step = kiln.compile(lambda x: kiln.stack([y.double() for y in parts(x)]), wait=True)
def parts(x):
    found = [(x * float(k)).sum(0) for k in range(10)] + [(x + float(k)).argmax(0) for k in range(10)]
    total = (x * 0.5).argmin(0)
    for k in range(60):
        total = total + (x - float(k)).argmax(0)
    return [*found, total]
expected = kiln.stack([y.double() for y in parts(x)])
for _ in range(3):
    step(x)
same = []
threading.stack_size(320 << 10)
thread = threading.Thread(target=lambda: same.append(bool((step(x) == expected).all())))
thread.start()
thread.join()
print(*same)
"""


def test_kernels_of_many_sums_on_a_small_stack(tmp_path: Path) -> None:
    """What a kernel holds of every column fits where a program runs at all."""
    assert run("import kiln\n" + MANY, tmp_path).split() == ["True"]


TIGHT = """
import resource, sys
from kiln.capture import make  # what compiles is here
x = kiln.ones(10) * 2
errors = [None] * 64  # there before memory is short
size = int(open("/proc/self/statm").read().split()[0]) * 4096
def limit(extra):
    resource.setrlimit(resource.RLIMIT_AS, (extra if extra < 0 else size + (extra << 10), -1))
calls = [
    lambda: kiln.ones(30, 40) @ kiln.ones(40, 3), lambda: kiln.softmax(kiln.ones(3, 5), 1).sort(),
    lambda: kiln.compile(lambda x: (x.tanh() @ x).sum())(kiln.ones(4, 4)), lambda: kiln.ones(9000, 9000) + 1,
]
def tried():  # in a function: a name of the module that comes and goes may need memory
    met = 0
    for extra in LIMITS:
        limit(extra)
        for call in calls:
            try:
                call()
            except (MemoryError, RuntimeError, ImportError, OSError) as error:
                errors[met], met = error, met + 1
            except SystemError as error:  # what CPython 3.11 raises where a function's frame gets no memory
                assert str(error) == "error return without exception set", error
    limit(-1)
    return met
met = tried()
assert met and (x + 1).sum().item() == 30 and (kiln.ones(30, 40) @ kiln.ones(40, 3)).sum().item() == 3600
print(all(str(error) or isinstance(error, MemoryError) for error in errors[:met]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs an address space limit")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer needs memory itself")
@pytest.mark.parametrize("unit", [1, 17, 1024, 30000, 70000])
def test_no_memory_at_any_point(tmp_path: Path, unit: int) -> None:
    """Whatever meets the limit (in KiB beside what the process has) raises, LLVM and its threads included;
    afterwards everything works.
    """
    limits = [unit * k for k in (0, 1, 3, 7, 20, 50, 80, 110, 150, 170, 180, 200, 220, 260)]
    variables = {**os.environ, "KILN_CACHE_DIR": str(tmp_path), "KILN_CHECK": "0"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import kiln" + TIGHT.replace("LIMITS", str(limits))],
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), (done.returncode, done.stderr[-2000:])


# -- language, home, disk -------------------------------------------------------------------------------


def test_a_decimal_comma(tmp_path: Path) -> None:
    """Kernels, what is kept of them, printing and reading numbers know no locale."""
    compiler = shutil.which("localedef")
    made = tmp_path / "locales" / "de_DE.UTF-8"
    made.parent.mkdir()
    if compiler is not None:
        subprocess.run([compiler, "-i", "de_DE", "-f", "UTF-8", made], capture_output=True)
    if not made.exists():
        pytest.skip("no locale with a decimal comma can be made here")
    comma = 'import locale\nlocale.setlocale(locale.LC_ALL, "de_DE.UTF-8")\nassert locale.str(1.5) == "1,5"\n'
    end = """
kiln.save({"a": kiln.tensor([1.5])}, PLACE)
print(work(), kiln.tensor(1e-7), kiln.load(PLACE), kiln.arange(0, 1, 0.25), f"{kiln.tensor(0.5):.2f}")
"""
    text = SHORT + end.replace("PLACE", repr(str(tmp_path / "saved.safetensors")))
    printed = [
        run(begin + text, tmp_path / cache, LOCPATH=str(made.parent), KILN_NUM_THREADS="2")
        for begin, cache in ((comma, "one"), ("", "one"), ("", "two"))
    ]
    assert len(set(printed)) == 1 and "1.5" in printed[0]
    assert names(tmp_path / "one") == names(tmp_path / "two")


def names(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "kernels").iterdir())


@pytest.mark.parametrize("home", ["", "/dev/null/nowhere"])
def test_no_home(home: str, tmp_path: Path) -> None:
    """Without a place for kernels they are made each time; nothing is written where the process stands."""
    text = f"import os\nos.chdir({str(tmp_path)!r})\n" + SHORT + "print(work(), os.listdir())"
    printed = run(text, "", HOME=home, XDG_CACHE_HOME=home)
    assert printed.endswith("[]\n") and printed == run(text, tmp_path.parent / "cache")


def test_the_cache_is_removed_meanwhile(tmp_path: Path) -> None:
    """A process whose cache folder is deleted, or whose files may not grow, computes all the same."""
    expected = run(SHORT + "print(work())", tmp_path / "a")
    gone = "kiln.ones(3) + 1\nimport shutil\nshutil.rmtree({!r})\nprint(work())"
    assert run(SHORT + gone.format(str(tmp_path / "b")), tmp_path / "b") == expected
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    assert run(full + SHORT + "print(work())", tmp_path / "c") == expected
    assert all(not n.startswith(".") for n in names(tmp_path / "c"))


# -- imports and forks ----------------------------------------------------------------------------------


def test_imported_anew(tmp_path: Path) -> None:
    """Reloaded, or imported by several threads at once, kiln goes on with the tensors there were."""
    text = """
import importlib, sys, threading
threads = [threading.Thread(target=lambda: __import__("kiln").ones(2)) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
import kiln
x = kiln.ones(2, requires_grad=True)
y = x * 3
for name in ("kiln", "kiln.ops", "kiln.tensor", "kiln.autograd", "kiln"):
    importlib.reload(sys.modules.get(name) or importlib.import_module(name))
(y * kiln.ones(2)).sum().backward()
print(x.grad.tolist(), isinstance(x, kiln.Tensor), tuple(kiln.nn.Linear(2, 2)(x).shape))
"""
    assert run(text, tmp_path) == "[3.0, 3.0] True (2,)\n"


@pytest.mark.parametrize("before", ["", "work(); kiln.ones(1000000).exp()\n"], ids=["before", "after"])
def test_fork_around_the_first_op(before: str, tmp_path: Path) -> None:
    """Parent and child compute the same, on several threads too, whether or not the parent did before."""
    text = f"""
import os, sys
{before}
child = os.fork()
sys.stdout.write(f"{{work()}} {{kiln.ones(1000000).exp().sum().item()}}\\n")
sys.stdout.flush()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    lines = run(SHORT + text, tmp_path, KILN_NUM_THREADS="2").splitlines()
    assert len(lines) == 2 and lines[0] == lines[1]
