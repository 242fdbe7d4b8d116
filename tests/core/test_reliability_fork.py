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
                others = threading.current_thread() is not threading.main_thread()
                if others and name == "kiln.ops.elementwise.special":
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
    """What comes later in the order is in time, and each is taken back once."""
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
            register(2)
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


@needs_kiln
def test_two_threads_fork_at_once() -> None:
    """Each gives back what it took: the second begins when the first is about to fork."""
    assert (
        run(
            """
        import os, signal, sys, threading
        about_to, second_waits = threading.Event(), threading.Event()
        def last():  # of the first, after kiln's steps
            if threading.current_thread().name == "first":
                about_to.set()
                second_waits.wait(60)
        os.register_at_fork(before=last)
        import kiln
        from kiln.capture import background, service
        from kiln.codegen import compile as generator
        def watch(frame, event, argument):
            if event == "c_call" and argument.__name__ == "acquire" and argument.__self__ is generator._lock:
                second_waits.set()
        def work():
            f = kiln.compile(lambda x: x * 2 + 1)
            for _ in range(3):
                f(kiln.ones(2))
            kiln.compiler.wait()
            assert f(kiln.ones(2)).tolist() == [3.0, 3.0] and f.stats()["runs"]
        work()
        codes = []
        def fork(second):
            if second:
                about_to.wait(60)
                sys.setprofile(watch)
            if (child := os.fork()) == 0:
                signal.alarm(30)
                work()
                os._exit(0)
            sys.setprofile(None)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        signal.alarm(60)
        threads = [threading.Thread(target=fork, args=(second,), name=("first", "second")[second])
                   for second in (False, True)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        work()
        print(codes, background._worker.held, generator._forking)
        """
        )
        == "[0, 0] set() set()\n"
    )


@needs_kiln
def test_processes_of_a_pool_while_programs_are_compiled() -> None:
    """multiprocessing forks its workers from a program whose compiling thread is at work."""
    assert (
        run(
            """
        import multiprocessing, signal
        import kiln
        @kiln.compile
        def f(x):
            return (x * 2 + 1).sum()
        def work(n):
            signal.alarm(30)
            return [f(kiln.ones(n)).item() for _ in range(3)]
        if __name__ == "__main__":
            signal.alarm(100)
            context = multiprocessing.get_context("fork")
            for n in (2, 3):
                other = kiln.compile(lambda x: x.exp() * n - x)
                for _ in range(2):
                    other(kiln.ones(n)), work(n)  # the second is handed to the compiling thread
                with context.Pool(2) as pool:
                    print(pool.map(work, [n, n + 1]))
                    pool.close()
                    pool.join()
            kiln.compiler.wait()
            assert f(kiln.ones(2)).item() == 6 and f.stats()["runs"]
        """
        )
        == "[[6.0, 6.0, 6.0], [9.0, 9.0, 9.0]]\n[[9.0, 9.0, 9.0], [12.0, 12.0, 12.0]]\n"
    )
