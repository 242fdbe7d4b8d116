"""Ctrl-C, and the end of a process, while kernels, recordings or backward passes run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from backend import needs_kiln


@needs_kiln
@pytest.mark.parametrize("work", ["a @ a", "kiln.tanh(a)", "f(a)"])
def test_the_process_ends_while_a_daemon_computes(work: str) -> None:
    """A thread in a kernel at exit neither crashes the process nor keeps it."""
    code = (
        "import threading, kiln\n"
        "a = kiln.ones(500, 500)\n"
        "f = kiln.compile(lambda x: kiln.tanh(x) @ x)\n"
        "begun = threading.Event()\n"
        "def go():\n"
        "    while True:\n"
        f"        {work}\n"
        "        begun.set()\n"
        "threading.Thread(target=go, daemon=True).start()\n"
        "begun.wait(60)\n"
        "print((a[0] * 2).sum().item())\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", "1000.0")


@needs_kiln
def test_an_interrupt_during_a_long_kernel() -> None:
    """Ctrl-C while kernels run is raised at the line after; nothing is left busy or half done."""
    code = (
        "import _thread, faulthandler, signal, kiln\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "faulthandler.dump_traceback_later(200, exit=True)\n"
        "a, w = kiln.ones(600, 600), kiln.zeros(600, 600)\n"
        "f = kiln.compile(lambda: (w.add_(1), a @ a)[1])\n"
        "def stop(begun):\n"
        "    begun.acquire(timeout=60)\n"
        "    _thread.interrupt_main()\n"
        "for run in (lambda: (w.add_(1), a @ a)[1], f):\n"
        "    begun = _thread.allocate_lock()\n"  # an interrupt can leave an Event locked
        "    begun.acquire()\n"
        "    try:\n"
        "        _thread.start_new_thread(stop, (begun,))\n"
        "        while True:\n"
        "            run()\n"
        "            if begun.locked(): begun.release()\n"
        "    except KeyboardInterrupt:\n"
        "        low, high = w.min().item(), w.max().item()\n"
        "        assert low == high > 0, (low, high)\n"
        "        assert (a @ a)[0, 0].item() == 600\n"
        "print('done')\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


# What is called one after the other in C, so that Ctrl-C waits and is noticed by the second alone.
_INTERRUPTED = """
import _thread, functools, operator, signal
import kiln
from kiln import _core
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupted(call):
    return list(map(operator.call, (_thread.interrupt_main, call)))[1]
def caught(function, *args):
    try:
        function(*args)
    except KeyboardInterrupt:
        return True
    return False
"""


def _interrupted(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _INTERRUPTED + code], capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr


@needs_kiln
@pytest.mark.parametrize("wait", [False, True], ids=["op by op", "a program"])
def test_an_interrupt_ends_a_long_recording(wait: bool) -> None:
    """Between two ops, or two launches of a program. What was not computed says so; the next call works."""
    _interrupted(
        "big, kept = kiln.ones(600, 600) / 600, []\n"
        "def many(x, stop):\n"
        "    for _ in range(300):\n"
        "        x = x @ big\n"
        "    kept.append(x)\n"
        "    return interrupted(x.sum().item) if stop else x\n"
        f"f = kiln.compile(many, wait={wait})\n"
        "few = f(big[:2], False)\n"
        "assert caught(f, big, True)\n"
        "try:\n"
        "    kept[-1].sum().item()\n"
        "except RuntimeError as error:\n"
        "    assert 'never computed' in str(error) and 'interrupted' in str(error), error\n"
        "    assert (f(big[:2], False) == few).all().item()\n"
        "    print('done')\n"
    )


@needs_kiln
def test_an_interrupt_ends_a_backward_pass() -> None:
    """Before its next node: no gradient has come, and the graph is still there for another pass."""
    _interrupted(
        "w = kiln.ones(3, requires_grad=True)\n"
        "y = (w + w).sum()\n"
        "back = functools.partial(_core.run_backward, (y,), (None,), False, False, None, True)\n"
        "assert caught(interrupted, back) and w.grad is None\n"
        "y.backward()\n"
        "assert w.grad.tolist() == [2, 2, 2]\n"
        "print('done')\n"
    )


@needs_kiln
def test_a_handler_of_the_users_waits_until_the_call_is_over() -> None:
    """It may read what the recording writes."""
    _interrupted(
        "w, seen = kiln.zeros(3), []\n"
        "signal.signal(signal.SIGINT, lambda *_: seen.append(w.tolist()))\n"
        "def step(run):\n"
        "    w.add_(1); w.mul_(2)\n"
        "    return run(w.sum().item)\n"
        "f = kiln.compile(step, wait=True)\n"
        "assert f(operator.call) == 6 and f(interrupted) == 18 and seen == [[6, 6, 6]], seen\n"
        "print('done')\n"
    )


@needs_kiln
@pytest.mark.parametrize("where", ["compiling", "a hook"])
def test_the_process_ends_while_a_daemon_is_in_python(where: str) -> None:
    """A thread in Python code that the core called ends where it stands."""
    code = (
        "import threading, kiln\n"
        "from kiln.capture import make\n"
        "begun = threading.Event()\n"
        "def forever(*_):\n"
        "    begun.set()\n"
        "    while True:\n"
        "        sum(range(1000))\n"
        "x = kiln.ones(3, requires_grad=True)\n"
        "y = (x * x).sum()\n"
        "def compiling():\n"
        "    make.make = forever\n"
        "    kiln.pointwise(lambda x: x * 3.0 + 7.0)(x)\n"
        "def hook():\n"
        "    x.register_hook(forever)\n"
        "    y.backward()\n"
        f"threading.Thread(target={'hook' if where == 'a hook' else 'compiling'}, daemon=True).start()\n"
        "assert begun.wait(60)\n"
        "print('end')\n"
    )
    variables = {**os.environ, "KILN_CACHE_DIR": "/proc/nowhere"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120, env=variables
    )
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", "end")
