"""Forks while another thread is in the middle of something that the child may need."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from backend import needs_kiln


def run(text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr)
    return done.stdout


CHILD = """
def child(work):
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that waits for what is not there ends by a signal
        work()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@needs_kiln
def test_a_thread_in_the_middle_of_an_import() -> None:
    """The child imports what it needs itself: the thread that was about to is not there."""
    assert (
        run(
            f"""
        import importlib.abc, importlib.machinery, os, signal, sys, threading
        import kiln
        {textwrap.indent(CHILD, " " * 8).strip()}
        begun, go_on = threading.Event(), threading.Event()
        class Slow(importlib.abc.MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == "kiln.ops.special" and threading.current_thread() is not threading.main_thread():
                    spec = importlib.machinery.PathFinder.find_spec(name, path)
                    run = spec.loader.exec_module
                    def half(module):
                        begun.set()
                        go_on.wait(60)
                        run(module)
                    spec.loader.exec_module = half
                    return spec
        sys.meta_path.insert(0, Slow())
        thread = threading.Thread(target=lambda: kiln.special.digamma(kiln.ones(2)))
        thread.start()
        begun.wait(60)
        child(lambda: kiln.special.digamma(kiln.ones(2)).tolist())
        go_on.set()
        thread.join()
        print(kiln.special.digamma(kiln.ones(1)).shape)
        """
        )
        == "0\nkiln.Size([1])\n"
    )


@needs_kiln
def test_parts_that_are_registered_while_a_fork_begins() -> None:
    """What was not done before a fork is not taken back after it, and the other way round."""
    assert (
        run(
            """
        import os
        from kiln.codegen import fork
        seen = []
        def register(place):
            fork.at_fork(place, lambda: seen.append(f"before {place}"), lambda: seen.append(f"after {place}"),
                         lambda: None)
        fork._steps.clear()
        def first():
            seen.append("before 1")
            register(0)  # too late for this fork
            register(2)  # in time
        fork.at_fork(1, first, lambda: seen.append("after 1"), lambda: None)
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        print(*seen, sep=", ")
        """
        )
        == "before 1, before 2, after 2, after 1\n"
    )


@needs_kiln
def test_a_fork_inside_a_nodes_destructor() -> None:
    """While another thread is in the middle of freeing a graph: the child frees its own nodes."""
    assert (
        run(
            f"""
        import gc, os, signal, threading, weakref
        import kiln
        {textwrap.indent(CHILD, " " * 8).strip()}
        begun, go_on = threading.Event(), threading.Event()
        class Last:
            def __del__(self):
                begun.set()
                go_on.wait(60)
        def free():
            x = kiln.ones(2, requires_grad=True)
            y = x * 2
            y.grad_fn.metadata["last"] = Last()
            del y
        thread = threading.Thread(target=free)
        thread.start()
        begun.wait(60)
        def work():
            class Kept:
                pass
            kept = Kept()
            gone = weakref.ref(kept)
            y = kiln.ones(2, requires_grad=True) * 3
            y.grad_fn.metadata["kept"] = kept
            del kept, y
            gc.collect()
            assert gone() is None
        child(work)
        go_on.set()
        thread.join()
        """
        )
        == "0\n"
    )
