"""What every test shares: a cache directory of its own, a seed that is printed when a test fails."""

from __future__ import annotations

import atexit
import gc
import os
import random
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))


def place_of_kernels() -> str:
    """Where this run's kernels are kept: in memory where there is plenty, as a file costs a tenth there."""
    with suppress(OSError):
        room = os.statvfs("/dev/shm")
        if room.f_bavail * room.f_frsize >= 4 << 30:
            return tempfile.mkdtemp(prefix="kiln-tests-", dir="/dev/shm")
    return tempfile.mkdtemp(prefix="kiln-tests-")


# set before the first `import kiln`, inherited by every process a test starts, shared by workers
if "KILN_TEST_CACHE" in os.environ:
    os.environ["KILN_CACHE_DIR"] = os.environ["KILN_TEST_CACHE"]
else:
    os.environ["KILN_CACHE_DIR"] = os.environ["KILN_TEST_CACHE"] = place_of_kernels()
    atexit.register(shutil.rmtree, os.environ["KILN_CACHE_DIR"], ignore_errors=True)
    # a forked child of a test must not remove the directory when it ends
    os.register_at_fork(after_in_child=lambda: atexit.unregister(shutil.rmtree))

# every run of a recorded program is compared with its ops one by one, bit by bit
os.environ.setdefault("KILN_CHECK", "1")

# what the generator makes is tested, not what was made when the wheel was built (test_pack.py looks for that)
os.environ["KILN_PACK"] = "0"

SEED = pytest.StashKey[int]()
BOOKS = pytest.StashKey[dict[str, Any]]()
FILE = pytest.StashKey[Path]()  # whose tests run
WATCH = pytest.StashKey[AbstractContextManager[list[str]]]()
WARNED = pytest.StashKey[list[str]]()

# the same draws in every run, and no directory of remembered ones beside the sources
hypothesis.settings.register_profile("kiln", database=None, derandomize=True, deadline=None)
hypothesis.settings.load_profile("kiln")


def pytest_addoption(parser: pytest.Parser) -> None:
    """--seed N: the base of every test's seed (each test adds a hash of its name). Others: of PyTorch."""
    parser.addoption("--seed", type=int, default=0, help="base seed of all random draws in the tests")
    parser.addoption("--write-answers", action="store_true", help="keep PyTorch's answers: tests/answers.py")
    parser.addoption("--peer", action="store_true", help="only tests that look at PyTorch: tests/peer_use.py")


def pytest_configure(config: pytest.Config) -> None:
    """op_by_op: the test makes regions whose programs fail."""
    config.addinivalue_line("markers", "op_by_op: a program is expected to fail, its ops run one by one")


def seed_of(item: pytest.Item) -> int:
    """The seed of one test: a function of its name, its file's and --seed, whatever else runs."""
    file, separator, name = item.nodeid.partition("::")
    name = f"tests/{file.rpartition('/')[2]}{separator}{name}"
    return (zlib.crc32(name.encode()) + int(item.config.getoption("--seed"))) % 2**31


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> Iterator[int]:
    """Seeds every generator a test can reach; the value is printed beside a failure."""
    import numpy as np

    value = seed_of(request.node)
    request.node.stash[SEED] = value
    random.seed(value)
    np.random.seed(value)
    # torch.manual_seed also writes down a traceback for every kind of device
    for generator in (sys.modules.get("kiln"), getattr(sys.modules.get("torch"), "default_generator", None)):
        if generator is not None:
            generator.manual_seed(value)
    yield value


# Hooks, no fixtures: one that every test has costs it a quarter of a millisecond.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """From here on it is noted what the compiler warns of. At a file's first test: what was collected, and
    what the files before left in caches, no search for garbage looks at again.
    """
    from kiln.testing.random_programs import compiler_warnings

    if item.config.stash.get(FILE, None) != item.path:
        item.config.stash[FILE] = item.path
        gc.collect()
        gc.freeze()
    item.stash[WATCH] = watch = compiler_warnings()
    item.stash[WARNED] = watch.__enter__()
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Fails a test where a region ran op by op because its program could not be made or did not fit."""
    try:
        yield
    finally:
        item.stash[WATCH].__exit__(None, None, None)
    if item.get_closest_marker("op_by_op") is None:
        assert not item.stash[WARNED], item.stash[WARNED]


@pytest.fixture
def rng(seed: int) -> Any:
    """A NumPy generator with the test's seed."""
    import numpy as np

    return np.random.default_rng(seed)


@pytest.fixture
def answers(request: pytest.FixtureRequest) -> Any:
    """PyTorch's answers: its own where it is installed, else those that were kept."""
    from answers import Answers, Book
    from backend import kiln, torch

    config, module = request.config, request.path.stem
    books = config.stash.setdefault(BOOKS, {})
    if module not in books:
        books[module] = Book(module)
    more = bool(config.getoption("--seed")) or os.environ.get("KILN_TEST_FULL") == "1" or not kiln.is_kiln
    write = bool(config.getoption("--write-answers"))
    if write and not (torch and find_spec("scipy")):
        pytest.exit("--write-answers needs PyTorch, and SciPy, without which some tests are not there")
    return Answers(books[module], request.node.name, torch is not None, write, more)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """--write-answers: writes those of the files that ran."""
    config = session.config
    if config.getoption("--write-answers"):
        for book in config.stash.get(BOOKS, {}).values():
            book.write(bool(config.option.keyword) or any("::" in arg for arg in config.args))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Looks for no garbage among the trees of the files that are read and the tests that are made: a quarter
    of the time that collecting takes.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if was:
            gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """--peer: leaves only the tests that look at PyTorch."""
    if config.getoption("--peer"):
        from peer_use import uses_peer

        chosen = {item: uses_peer(item) for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not chosen[item]])
        items[:] = [item for item in items if chosen[item]]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Puts the seed of a failed test under its traceback."""
    result: Any = yield
    report = result.get_result()
    if report.failed and SEED in item.stash:
        report.sections.append(
            ("seed", f"seed {item.stash[SEED]} (base --seed {item.config.getoption('--seed')})")
        )
