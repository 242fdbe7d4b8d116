"""Plans on disk, and the compiling thread: the same bits whatever lies in the cache and whoever forks."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from backend import needs_kiln

pytestmark = needs_kiln
pytest.importorskip("kiln._core")

import kiln  # noqa: E402
from kiln import _core  # noqa: E402
from kiln.capture import background, make, service  # noqa: E402
from kiln.capture.answers import kernels_of  # noqa: E402
from kiln.capture.handle import forward_of  # noqa: E402
from kiln.codegen import compile as compiler  # noqa: E402
from kiln.codegen.store.cache import DiskCache  # noqa: E402
from kiln.codegen.target import host_target  # noqa: E402
from kiln.table.record import Op, Tensor, find, params_of  # noqa: E402
from kiln.testing.random_programs import compiler_warnings  # noqa: E402

ROOT = Path(__file__).parents[2]
LIMIT = 120
FULL = os.environ.get("KILN_TEST_FULL") == "1"

# every kind of answer: pointwise, program, saves, derivative, recipe, a checked index, a user's op, a region
PROGRAM = """
import sys, kiln
def work():
    x = kiln.arange(12.0).reshape(3, 4).requires_grad_()
    y = kiln.softmax(x @ x.t(), 1) * kiln.pointwise(lambda t: t * 0.5 + 1.25)(x[:, :3])
    y = y.gather(1, kiln.zeros(3, 1, dtype=kiln.int64)).sum()
    y = y + kiln.nn.functional.gelu(x).transpose(0, 1).sum()
    g, = kiln.autograd.grad(y, x, create_graph=True)
    (g * g).sum().backward()
    return y.item(), x.grad.tolist()
step = kiln.compile(lambda x: kiln.softmax(x * 2 + 1, 1).sum(0))
print(work(), [step(kiln.ones(4, 5)).tolist() for _ in range(3)])
step.wait()
"""


def run(text: str, cache: Path, **environment: str) -> str:
    """What a process of its own prints; it must end well and say nothing else."""
    variables = {**os.environ, "KILN_CACHE_DIR": str(cache), "KILN_CHECK": "0", **environment}
    done = subprocess.run(
        [sys.executable, "-c", text], env=variables, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A cache that knows the program, and what it prints."""
    cache = tmp_path_factory.mktemp("filled")
    return cache, run(PROGRAM, cache)


def copied(cache: Path, to: Path) -> DiskCache:
    """The same entries in a folder of their own."""
    folder = to / "kernels"
    folder.mkdir(mode=0o700, parents=True)
    for entry in (cache / "kernels").iterdir():
        (folder / entry.name).touch(mode=0o600)
        (folder / entry.name).write_bytes(entry.read_bytes())
    return DiskCache(str(to))


def entries(cache: DiskCache) -> dict[bytes, bytes]:
    """What is kept, by key."""
    assert cache.path is not None
    names = [bytes.fromhex(p.name) for p in (Path(cache.path) / "kernels").iterdir()]
    return {key: content for key in names if (content := cache.load(key)) is not None}


def is_code(content: bytes) -> bool:
    """Whether an entry is a kernel's."""
    return content.startswith((b"\x7fELF", b"KilnObjs"))


def test_a_warm_process_makes_nothing(filled: tuple[Path, str]) -> None:
    """It captures, plans and generates nothing, and imports nothing that could; its region runs as a program
    at once.
    """
    cache, printed = filled
    names = "kiln.capture.make kiln.passes kiln.codegen.nests.generate kiln.capture.background"
    others = "llvmlite numpy json hashlib logging"
    check = (
        f"\nassert not [m for m in {f'{names} {others}'.split()!r} if m in sys.modules], sys.modules"
        "\nstats = step.stats(); assert (stats['runs'], stats['compiles']) == (3, 0), stats"
    )
    assert run(PROGRAM + check, cache) == printed


def test_a_key_does_not_depend_on_what_came_before(tmp_path: Path) -> None:
    """The derivative of an op first seen along one dim is that of matrices, in a region's key too."""
    text = """
import kiln
def work(x):
    (x * kiln.tanh(x)).sum().backward()
    return x.grad
step = kiln.compile(work)
for shape in {}:
    work(kiln.ones(shape, requires_grad=True))
for _ in range(3):
    step(kiln.ones(4, 5, requires_grad=True)).tolist()
    step.wait()
print(step.stats()["compiles"])
"""
    assert run(text.format("[(3,), (4, 5)]"), tmp_path) == "1\n"
    assert run(text.format("[(4, 5)]"), tmp_path) == "0\n"


@pytest.mark.parametrize("lost", ["kernels", "answers"])
def test_half_of_it_is_gone(lost: str, filled: tuple[Path, str], tmp_path: Path) -> None:
    """Answers without their kernels, and kernels without answers: what is missing is made again."""
    cache = copied(filled[0], tmp_path)
    for key, content in entries(cache).items():
        if is_code(content) == (lost == "kernels"):
            (tmp_path / "kernels" / key.hex()).unlink()
    assert run(PROGRAM, tmp_path) == filled[1]


def damaged(rng: random.Random, whole: dict[str, bytes]) -> dict[str, bytes]:
    """Every file with a flipped bit, cut, grown, with zeros, or with a part of another; the header too."""

    def damage(name: str) -> bytes:
        content, at = whole[name], rng.randrange(len(whole[name]))
        other = whole[rng.choice(sorted(whole))]
        end = min(len(content), at + rng.choice([1, 8, 64, 4096]))
        changed = [
            content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :],
            content[:at],
            content + other[:8],
            content[:at] + bytes(end - at) + content[end:],
            content[:at] + other[at:end] + content[end:],
            content[:48] + other[48:],  # all but the key
            content[:64] + other[64:],
            other,
        ]
        kept = [c for c in changed if c != content]
        return rng.choice(kept)

    return {name: damage(name) for name in sorted(whole)}


@pytest.mark.parametrize("round_", range(20 if FULL else 2))
def test_every_file_is_damaged(round_: int, filled: tuple[Path, str], tmp_path: Path, seed: int) -> None:
    """None is believed, all are made anew, as they were, and the answers are right."""
    cache = copied(filled[0], tmp_path)
    folder = tmp_path / "kernels"
    whole = {p.name: p.read_bytes() for p in folder.iterdir()}
    for name, content in damaged(random.Random(seed), whole).items():
        (folder / name).write_bytes(content)
    assert entries(cache) == {}
    assert run(PROGRAM, tmp_path) == filled[1]
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == whole


def test_no_damage_is_believed(filled: tuple[Path, str], tmp_path: Path, seed: int) -> None:
    """A miss each time, of a thousand, or a hundred thousand."""
    cache = copied(filled[0], tmp_path)
    folder, rng = tmp_path / "kernels", random.Random(seed)
    whole = {p.name: p.read_bytes() for p in folder.iterdir()}
    for _ in range(1000 if FULL else 8):
        for name, content in damaged(rng, whole).items():
            (folder / name).write_bytes(content)
        assert entries(cache) == {}


def test_processes_at_once(filled: tuple[Path, str], tmp_path: Path) -> None:
    """Three processes fill one cache; nothing half-written is left."""
    variables = {**os.environ, "KILN_CACHE_DIR": str(tmp_path), "KILN_CHECK": "0"}
    command = [sys.executable, "-c", PROGRAM]
    children = [
        subprocess.Popen(command, env=variables, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [child.communicate(timeout=LIMIT)[0] for child in children] == [filled[1]] * 3
    assert not [p for p in (tmp_path / "kernels").iterdir() if p.name.startswith(".")]


def test_nowhere_to_write(filled: tuple[Path, str], tmp_path: Path) -> None:
    """No folder, or one that takes nothing: only time is lost."""
    assert run(PROGRAM, Path("/proc/nowhere")) == filled[1]
    copied(filled[0], tmp_path)
    (tmp_path / "kernels").chmod(0o500)
    assert run(PROGRAM, tmp_path) == filled[1]
    (tmp_path / "kernels").chmod(0o700)


def test_a_users_op_is_what_it_does(tmp_path: Path) -> None:
    """Another constant is another op, in another process too; another name is not."""
    text = "import kiln\n@kiln.pointwise\ndef {}(x):\n    return x * {}\nprint({}(kiln.ones(3)).tolist())"
    assert run(text.format("f", 2.0, "f"), tmp_path) == "[2.0, 2.0, 2.0]\n"
    count = len(entries(DiskCache(str(tmp_path))))
    assert run(text.format("g", 2.0, "g"), tmp_path) == "[2.0, 2.0, 2.0]\n"
    assert len(entries(DiskCache(str(tmp_path)))) == count
    assert run(text.format("f", 3.0, "f"), tmp_path) == "[3.0, 3.0, 3.0]\n"


def test_only_kilns_own_source_names_an_op(place: Path) -> None:
    """What an op from elsewhere does, no key knows: its plans stay in the process."""

    def body(x: Tensor) -> Any:
        return x * 2.0 + 1.0

    op = Op("foreign", "composite", params_of(body), body, listed=False)
    kept = set(place.glob("*"))
    assert forward_of(op, ("t",)).identity is None
    assert forward_of(find("exp"), ()).identity == forward_of(find("exp"), ()).identity is not None
    assert service.compile("classify", (forward_of(op, ("t",)), (MATRIX,)))
    assert set(place.glob("*")) == kept


# -- one entry, every byte ---------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))
    return tmp_path / "kernels"


MATRIX = ("float32", (0, 0), None)
REQUESTS: dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]] = {
    "classify": ("softmax", ("t", 1, None), ((MATRIX,),)),
    "saves": ("mul", (), ((MATRIX, "f"),)),
    "pointwise": ("mul", (), ((MATRIX, MATRIX), 1, (1, 1, 1), ())),
    "program": ("softmax", ("t", 1, None), ((MATRIX,), 0)),
    "derivative": ("mul", (), ((MATRIX, MATRIX), 3, 1, 0, 0, -1, -1)),
}


@pytest.mark.parametrize("request_", REQUESTS)
def test_damage_is_made_good(request_: str, place: Path) -> None:
    """Truncated at every byte, bytes changed, another request's answer: the same answer, kept again."""
    name, structure, rest = REQUESTS[request_]
    arguments = (forward_of(find(name), structure), *rest)
    answer = service.compile(request_, arguments)
    other = service.compile("classify", (forward_of(find("exp"), ()), (MATRIX,)))
    found = {p: p.read_bytes() for p in place.iterdir()}
    (path,) = [p for p, whole in found.items() if whole.endswith(answer) and answer != other]
    (foreign,) = [whole for whole in found.values() if whole.endswith(other)][:1]
    whole = found[path]
    damaged = [whole[:n] for n in range(len(whole))]
    damaged += [whole[:n] + bytes([whole[n] ^ 4]) + whole[n + 1 :] for n in range(0, len(whole), 5)]
    for entry in (*damaged, whole + b"x", foreign):
        path.write_bytes(entry)
        assert service.compile(request_, arguments) == answer
        assert path.read_bytes() == whole


MISREAD = """
import struct, sys, types, kiln
from kiln import _core
from kiln.capture import service
change, said, place, length = None, {}, 0, 8
def compile(request, arguments):
    global length
    answer = service.compile(request, arguments)
    if change is None or request != "program":
        return answer
    length = len(answer)
    return change(answer)
fake = types.ModuleType("fake")
fake.compile = compile
sys.modules["fake"] = fake
_core.set_compiler("fake")
def call(change_):
    global change
    change = change_
    x = kiln.ones([1 + (call.count >> d & 1) for d in range(11)])
    call.count += 1
    try:
        x.sum().item()
        return None
    except SystemError as error:
        return str(error).partition(" ")[0]
call.count = 0
call(None)
while place < length:  # cut anywhere
    assert call(lambda answer: answer[: min(place, len(answer) - 1)]) == "answer:", place
    place += 7
assert call(lambda answer: answer + bytes(8)) == "answer:"
for count in (-1, 1 << 20, 1 << 62):  # of kernels: more than there are bytes for
    assert call(lambda answer: struct.pack("<q", count) + answer[8:]) == "answer:", count
change = None
assert kiln.ones(3, 1, 2, 1, 5).sum().item() == 30
"""


def test_the_core_reads_no_further(tmp_path: Path) -> None:
    """An answer cut short, with something behind it, or with a count beyond its bytes is an error."""
    run(MISREAD, tmp_path)


# -- the compiling thread ----------------------------------------------------------------------------


@pytest.fixture
def free(place: Path) -> Iterator[None]:
    """No check mode, which compiles where it stands; a cache that does not know the programs yet."""
    before = _core.set_check(False)
    yield
    service.wait()
    _core.set_check(before)


def chain(x: Any) -> Any:
    """A few ops."""
    return kiln.softmax(x * 3 - 1, 1).sum(0) * x


def test_no_call_waits(free: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the other thread compiles, calls go on op by op; then the program runs. The bits never change."""
    go, begun = threading.Event(), threading.Event()
    region = make.region

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert go.wait(LIMIT)
        return region(*arguments)

    monkeypatch.setattr(make, "region", slow)
    step, x = kiln.compile(chain), kiln.arange(12.0).reshape(3, 4)
    expected = chain(x).tolist()
    for _ in range(2):
        assert step(x).tolist() == expected
    assert begun.wait(LIMIT)
    for _ in range(20):
        assert step(x).tolist() == expected
    assert "is being compiled" in step.explain()
    assert step.stats()["runs"] == 0 and 0 < step.stats()["replays"] <= 22  # in between it may rest
    go.set()
    step.wait()
    assert step(x).tolist() == expected
    assert (step.stats()["runs"], step.stats()["compiles"]) == (1, 1)
    assert "is being compiled" not in step.explain()


def test_first_sight_waits_if_told_to(free: None) -> None:
    """wait=True compiles in the first call."""
    step = kiln.compile(chain, wait=True)
    step(kiln.ones(3, 4))
    assert (step.stats()["runs"], step.stats()["compiles"], step.stats()["replays"]) == (1, 1, 0)


def test_another_region_finds_the_program_on_disk(free: None) -> None:
    """First sight looks on disk."""
    one, two = kiln.compile(chain), kiln.compile(lambda x: chain(x))
    for step in (one, two):
        for _ in range(2):
            step(kiln.ones(3, 4))
            step.wait()
    assert (one.stats()["runs"], one.stats()["compiles"]) == (0, 1)
    assert (two.stats()["runs"], two.stats()["compiles"]) == (2, 0)


@pytest.mark.op_by_op
def test_failure_over_there(free: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be compiled is logged once and runs op by op."""

    def broken(*arguments: Any) -> Any:
        raise ValueError("no such plan")

    monkeypatch.setattr(make.regions, "region", broken)
    step, x = kiln.compile(chain), kiln.ones(3, 4)
    with compiler_warnings() as said:
        for _ in range(4):
            assert step(x).tolist() == chain(x).tolist()
            step.wait()
    assert len([line for line in said if "no such plan" in line]) == 1
    assert step.stats()["replays"] == 4
    assert "compiling it failed" in step.explain()


def test_the_thread_itself_fails(free: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error outside of any plan leaves the recording as it was: it is asked for again."""
    region = make.region
    calls: list[int] = []

    def once(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise MemoryError
        return region(*arguments)

    monkeypatch.setattr(make, "region", once)
    step, x = kiln.compile(chain), kiln.ones(3, 4)
    for _ in range(4):
        assert step(x).tolist() == chain(x).tolist()
        step.wait()
    assert (len(calls), step.stats()["runs"]) == (2, 1)


def test_the_default_dtype_changes_meanwhile(free: None) -> None:
    """What is being compiled is compiled under the default dtype it was recorded under."""

    def mean(x: Any) -> Any:
        return (x / 3).sum(0) * 2

    step, x = kiln.compile(mean), kiln.arange(12).reshape(3, 4)
    expected = mean(x)
    step(x), step(x)
    kiln.set_default_dtype(kiln.float64)
    try:
        wide = mean(x)
        for _ in range(3):
            assert step(x).dtype == kiln.float64 and step(x).tolist() == wide.tolist()
            step.wait()
    finally:
        kiln.set_default_dtype(kiln.float32)
    assert step(x).dtype == kiln.float32 and step(x).tolist() == expected.tolist()


FORKS = """
import os, kiln
def make(n):
    def step(x):
        for _ in range(n):
            x = kiln.tanh(x * 1.5 + 0.25)
        return x.sum(0)
    return step
x = kiln.ones(3, 4)
for n in range(2, 12):
    step = kiln.compile(make(n))
    expected = make(n)(x).tolist()
    step(x), step(x)
    child = os.fork()
    if not child:
        right = all(step(x).tolist() == expected for _ in range(3))
        step.wait()
        right &= step(x).tolist() == expected and step.stats()["runs"] > 0
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0, n
    assert step(x).tolist() == expected
    step.wait()
    step(x)
    assert step.stats()["runs"] > 0
"""


def test_fork_while_compiling(tmp_path: Path) -> None:
    """Parent and child both go on, and both get their programs."""
    run(FORKS, tmp_path)


def test_exit_while_compiling(tmp_path: Path) -> None:
    """The interpreter ends at once, whatever is being compiled."""
    text = FORKS.split("x = kiln.ones")[0] + (
        "x = kiln.ones(3, 4)\nfor n in range(2, 40):\n"
        "    step = kiln.compile(make(n))\n    step(x), step(x)\n"
    )
    run(text, tmp_path)


TOGETHER = """
import sys, threading, kiln
def work(n, found):
    x = kiln.arange(24.0).reshape(2, 3, 4).requires_grad_()
    step = kiln.compile(lambda x: (kiln.softmax(x * n, 2) @ x.transpose(1, 2)).sum(0).tanh())
    for _ in range(4):
        y = step(x)
    y = y.mean() + kiln.nn.functional.layer_norm(x, (4,)).std() + (x.permute(2, 0, 1)[1:] ** 2).sum()
    y.backward()
    found.append((y.item(), x.grad.tolist()))
found, alone = [], []
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=work, args=(2, found)) for _ in range(4)]
for t in threads: t.start()
for t in threads: t.join()
work(2, alone)
assert len(found) == 4 and all(f == alone[0] for f in found), (found, alone)
"""


def test_threads_capture_at_once(tmp_path: Path) -> None:
    """Several threads and the compiling one make the same answers at once, switching as often as they can."""
    run(TOGETHER, tmp_path)


def test_held_and_stopped() -> None:
    """A job rests at its checkpoint while a fork holds the thread, and is given up when the process ends."""
    worker = background._Worker()
    at, go, log = threading.Event(), threading.Event(), []

    def job(checkpoint: Callable[[], None]) -> None:
        at.set()
        assert go.wait(LIMIT)
        checkpoint()
        log.append("went on")
        worker.stopped = True
        checkpoint()
        log.append("was not stopped")

    worker.submit(job, lambda: log.append("gave up"))
    assert at.wait(LIMIT)
    worker.held.add(threading.get_ident())  # before the job goes on: it is to rest at its first checkpoint
    go.set()
    worker.hold()  # returns when it does
    assert log == [] and not worker.running
    worker.release()
    assert worker.thread is not None
    worker.thread.finish()
    assert log == ["went on", "gave up"]
    worker.submit(job, lambda: log.append("too late"))
    assert log[-1] == "too late"


def test_what_waits_is_given_up_at_the_end() -> None:
    """A process that ends does not start what its compiling thread had before it, but says so."""
    worker = background._Worker()
    at, log = threading.Event(), []

    def job(checkpoint: Callable[[], None]) -> None:
        at.set()
        while True:
            checkpoint()

    worker.submit(job, lambda: log.append("first"))
    for name in ("second", "third"):
        worker.submit(lambda checkpoint: log.append("began"), lambda name=name: log.append(name))
    assert at.wait(LIMIT)
    worker.stop()
    assert log == ["first", "second", "third"]
    worker.wait()  # for nothing


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_finds_the_thread_at_rest() -> None:
    """A child is never made in the middle of what the compiling thread may not be cut in."""
    begun, done, inside = threading.Event(), [], []

    def job(checkpoint: Callable[[], None]) -> None:
        while not done:
            inside.append(1)
            sum(range(300_000))  # longer than a switch interval
            inside.clear()
            begun.set()
            checkpoint()

    background.submit(job, lambda: None)
    assert begun.wait(LIMIT)
    try:
        for _ in range(10):
            pid = os.fork()
            if pid == 0:
                os._exit(1 if inside else 0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        done.append(1)
        background.wait()


def test_regions_of_another_machine(filled: tuple[Path, str], tmp_path: Path) -> None:
    """A region's program that was made for other features is not taken, though its kernels are there."""
    cache = copied(filled[0], tmp_path)
    check = "\nstats = step.stats(); assert stats['runs'] < 3 and stats['compiles'] == {}, stats"
    if host_target().name in ("x86-64-v3", "aarch64"):
        pytest.skip("this machine has nothing to take away")
    lowered = {"KILN_TARGET_FEATURES": "-avx512*"}
    before = set(entries(cache))
    assert run(PROGRAM + check.format(1), tmp_path, **lowered) == filled[1]
    made = set(entries(cache)) - before
    assert any(cache.load(key)[:4] != b"\x7fELF" for key in made)
    warm = "\nstats = step.stats(); assert (stats['runs'], stats['compiles']) == (3, 0), stats"
    assert run(PROGRAM + warm, tmp_path, **lowered) == filled[1]


def test_kernels_of_an_answer() -> None:
    """The keys an answer begins with; none of what is none."""
    answer = service.compile("program", (forward_of(find("softmax"), ("t", 1, None)), (MATRIX,), 0))
    keys = kernels_of(answer)
    assert keys and all(len(key) == 32 for key in keys)
    assert [kernels_of(answer[:n]) for n in (0, 7, 8, 30)] == [[], [], [], []]
    assert compiler.kernel_key("a") != compiler.kernel_key("b")
