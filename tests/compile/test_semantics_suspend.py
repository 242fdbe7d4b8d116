"""Rule 24: generators, coroutines and asynchronous generators are regions resume by resume."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from functools import partial
from typing import Any

import pytest
from backend import WAYS, kiln, needs_kiln, recorded, tensor, values


def nothing_recorded() -> bool:
    """Whether no region is open on this thread."""
    if not kiln.is_kiln:
        return True
    from kiln import _core

    return not _core.recording()


class TestGenerators:
    """What a generator is sent, thrown and left with is what it would get eagerly."""

    @WAYS
    def test_sent_thrown_closed(self, way: Any) -> None:
        log: list[Any] = []

        def program(x: Any) -> Generator[Any, Any, str]:
            factor = 1
            while True:
                try:
                    factor = yield x * factor
                except KeyError:
                    log.append(values(x + 100))
                    factor = -1
                except GeneratorExit:
                    log.append("closed")
                    raise
                if factor == 0:
                    return "done"

        run = way(program)
        for _ in range(3):
            log.clear()
            g = run(tensor(1, 2))
            assert values(next(g)) == [1.0, 2.0]
            assert values(g.send(3)) == [3.0, 6.0]
            assert values(g.throw(KeyError("stop"))) == [-1.0, -2.0]
            assert log == [[101.0, 102.0]]
            with pytest.raises(StopIteration) as stop:
                g.send(0)
            assert stop.value.value == "done"
            g = run(tensor(1))
            next(g)
            g.close()
            assert log[-1] == "closed"
            assert nothing_recorded()

    @WAYS
    def test_an_error_inside_leaves_what_eager_leaves(self, way: Any) -> None:
        def program(w: Any) -> Iterator[Any]:
            w.add_(1)
            yield w * 2
            w.add_(10)
            raise ValueError("mine")

        for _ in range(3):
            w = tensor(1, 2)
            g = way(program)(w)
            assert values(next(g)) == [4.0, 6.0]
            with pytest.raises(ValueError, match="mine"):
                next(g)
            assert values(w) == [12.0, 13.0]
            with pytest.raises(StopIteration):
                next(g)
            assert nothing_recorded()

    @WAYS
    @pytest.mark.parametrize("started", [False, True])
    def test_abandoned(self, way: Any, started: bool) -> None:
        """A generator nobody finishes runs its `finally`, and no region stays open."""
        w, log = tensor(0), []

        def program() -> Iterator[Any]:
            try:
                while True:
                    w.add_(1)
                    yield w * 2
            finally:
                w.add_(100)
                log.append("left")

        run = way(program)
        for k in range(3):
            g = run()
            if started:
                next(g)
                next(g)
            del g
            gc.collect()
            assert nothing_recorded()
            assert values(w) == [102.0 * (k + 1) if started else 0.0]
            assert log == ["left"] * (k + 1 if started else 0)

    @WAYS
    def test_the_outermost_region_flushes(self, way: Any) -> None:
        """A generator driven from inside a region is part of that region."""
        source = recorded(lambda x: iter([x]))

        def parts(x: Any) -> Iterator[Any]:
            for k in range(3):
                x.add_(1)
                yield x * k

        inner = recorded(parts)

        def program(x: Any) -> Any:
            total = kiln.zeros(2)
            for y in inner(x):
                total = total + y
            return total, next(source(x))

        run = way(program)
        for _ in range(4):
            total, x = run(tensor(1, 2))
            assert values(total) == [11.0, 14.0]
            assert values(x) == [4.0, 5.0]

    @needs_kiln
    def test_each_resume_is_a_program(self) -> None:
        """From the second sight on a resume is one program; nothing is pending at a yield."""
        from kiln import _core

        @kiln.compile(wait=True)
        def program(x: Any) -> Iterator[Any]:
            while True:
                x = kiln.tanh(x) * 2 + 1
                yield x

        g = program(tensor(1, 2))
        for _ in range(4):
            y = next(g)
            assert not _core.recording()
            assert y.shape == (2,)
        assert program.stats()["runs"] >= 3
        assert "suspended" in program.explain()

    @pytest.mark.parametrize("kind", ["method", "partial", "object", "from"])
    def test_kinds_of_functions(self, kind: str) -> None:
        class Source:
            def method(self, x: Any) -> Iterator[Any]:
                for k in range(3):
                    yield x * k

            def __call__(self, x: Any) -> Iterator[Any]:
                yield from self.method(x)

        made: dict[str, Callable[..., Any]] = {
            "method": Source().method,
            "partial": partial(Source().method),
            "object": Source(),
            "from": lambda x: (yield from Source().method(x)),
        }
        run = recorded(made[kind])
        for _ in range(3):
            assert [values(y) for y in run(tensor(1, 2))] == [[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]]


class Gate:
    """An awaitable that suspends once and gives what it is sent."""

    def __await__(self) -> Generator[str, Any, Any]:
        return (yield "waiting")


class TestCoroutines:
    """Coroutines and asynchronous generators, driven by a loop and by hand."""

    @WAYS
    def test_a_write_before_an_await_is_seen_by_others(self, way: Any) -> None:
        shared = tensor(0, 0)
        seen: list[list[float]] = []

        async def writer() -> Any:
            for _ in range(3):
                shared.add_(1)
                await asyncio.sleep(0)
            return shared * 2

        async def reader() -> None:
            for _ in range(3):
                seen.append(values(shared))
                await asyncio.sleep(0)

        async def main() -> Any:
            return (await asyncio.gather(way(writer)(), reader()))[0]

        assert values(asyncio.run(main())) == [6.0, 6.0]
        assert seen == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]

    @WAYS
    def test_it_says_what_it_is(self, way: Any) -> None:
        """`asyncio.iscoroutinefunction`, of functions and of methods; a plain function is none."""

        class Holder:
            @way
            async def method(self, x: Any) -> Any:
                return x * 2

        @way
        async def program(x: Any) -> Any:
            return x * 2

        assert asyncio.iscoroutinefunction(program)
        assert asyncio.iscoroutinefunction(Holder().method)
        assert not asyncio.iscoroutinefunction(way(lambda x: x))
        assert values(asyncio.run(Holder().method(tensor(1)))) == [2.0]

    @WAYS
    def test_driven_by_hand(self, way: Any) -> None:
        async def program(x: Any) -> Any:
            y = x * 2
            got = await Gate()
            return y + got

        run = way(program)
        for _ in range(3):
            coroutine = run(tensor(1, 2))
            assert coroutine.send(None) == "waiting"
            assert nothing_recorded()
            with pytest.raises(StopIteration) as stop:
                coroutine.send(10)
            assert values(stop.value.value) == [12.0, 14.0]
            coroutine = run(tensor(1))
            coroutine.send(None)
            with pytest.raises(ValueError, match="thrown"):
                coroutine.throw(ValueError("thrown"))
            coroutine = run(tensor(1))
            coroutine.close()
            assert nothing_recorded()

    @WAYS
    def test_cancelled(self, way: Any) -> None:
        """A cancelled task leaves its writes up to the await, and its `finally`."""
        w = tensor(0)

        async def program() -> None:
            try:
                w.add_(1)
                await asyncio.Event().wait()
                w.add_(1000)
            finally:
                w.add_(10)

        async def main() -> None:
            task = asyncio.ensure_future(way(program)())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert values(w) == [11.0]
        assert nothing_recorded()

    @WAYS
    def test_an_asynchronous_generator(self, way: Any) -> None:
        async def program(x: Any) -> AsyncIterator[Any]:
            for k in range(3):
                x.add_(1)
                await asyncio.sleep(0)
                yield x * k

        run = way(program)

        async def main() -> list[Any]:
            whole = [values(y) async for y in run(tensor(1))]
            x = tensor(1)
            part = run(x)
            whole.append(values(await part.__anext__()))
            await part.aclose()
            return [*whole, values(x)]

        for _ in range(3):
            assert asyncio.run(main()) == [[0.0], [3.0], [8.0], [0.0], [2.0]]
            assert nothing_recorded()

    def test_an_asynchronous_generator_is_sent_values(self) -> None:
        async def program(x: Any) -> Any:
            factor = 1
            while factor:
                try:
                    factor = yield x * factor
                except KeyError:
                    factor = -1

        async def main(run: Any) -> list[Any]:
            g = run(tensor(1, 2))
            got = [values(await g.asend(None)), values(await g.asend(3))]
            got.append(values(await g.athrow(KeyError("stop"))))
            with pytest.raises(StopAsyncIteration):
                await g.asend(0)
            return got

        assert asyncio.run(main(program)) == asyncio.run(main(recorded(program)))
        assert nothing_recorded()
