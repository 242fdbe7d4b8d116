"""Random programs with branches and loops on values, as Python and as scripts: the same bits.

    python -m kiln.testing.script_programs --count 10000 --seed 1

A program is the text of a function of two vectors, a number in a tensor and one of Python's; its names keep
their types, and its loops end. It runs as it is and as a script for several inputs; results are compared bit
for bit, gradients within rounding. `--by interpreter`: the script's graph, made once, is computed by the
interpreter, which compiles nothing; `--by onnx`: by ONNX Runtime, within rounding. Of these one of
`--compiled` programs runs as its code besides.
"""

from __future__ import annotations

import argparse
import linecache
import random
from typing import Any

import kiln
from kiln.graph.interpret import interpret
from kiln.onnx.model import model_of
from kiln.scripting.scripted import Variant
from kiln.tracing.expand import expand

_INPUTS = (
    ([1.0, 2.0], [0.5, -1.0], 3, 2),
    ([-1.0, 0.25], [2.0, 3.0], 0, 2),
    ([0.0, -2.5], [-0.75, 4.0], 7, 2),
)


class Writer:
    """Writes one function."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.loops = 0
        self.budget = rng.randint(4, 14)

    def text(self) -> str:
        """The function `f`."""
        self.lines = ["def f(x, y, n, p):", "    a, b = x, y * 0.5", "    s, t = x.sum(), y[0]",
                      "    k, m = int(n), p", "    items = [x, y]"]  # fmt: skip
        self.block(1, False)
        self.lines.append("    return a, b, s * t, k, m, items[0]")
        return "\n".join(self.lines) + "\n"

    def add(self, depth: int, line: str) -> None:
        """A line of the program."""
        self.lines.append("    " * depth + line)

    def block(self, depth: int, loop: bool) -> None:
        """A few statements."""
        for _ in range(self.rng.randint(1, 4)):
            self.budget -= 1
            self.statement(depth, loop)

    def statement(self, depth: int, loop: bool) -> None:
        """One statement."""
        pick = self.rng.random()
        if depth < 4 and self.budget > 0 and pick < 0.55:
            if pick < 0.30:
                self.branch(depth, loop)
            elif pick < 0.42:
                self.loops += 1
                w = f"w{self.loops}"
                self.add(depth, f"{w} = 0")
                self.add(depth, f"while {w} < {self.rng.randint(1, 4)} and {self.condition()}:")
                self.add(depth + 1, f"{w} += 1")
                self.block(depth + 1, True)
            else:
                over = self.rng.choice(["range(k % 4)", "a", "range(3)", "range(int(n) % 3)", "zip(a, b)"])
                self.loops += 1
                self.add(depth, f"for v{self.loops} in {over}:")
                self.block(depth + 1, True)
            return
        if loop and pick < 0.62:
            self.add(depth, f"if {self.condition()}:")
            self.add(depth + 1, self.rng.choice(["break", "continue"]))
        elif pick < 0.66:
            self.add(depth, f"if {self.condition()}:")
            self.add(depth + 1, "return b, a, s + t, m, k, items[1]")
        else:
            self.add(depth, self.assignment())

    def branch(self, depth: int, loop: bool) -> None:
        """An if with what may follow it."""
        self.add(depth, f"if {self.condition()}:")
        self.block(depth + 1, loop)
        for _ in range(self.rng.choice([0, 0, 1])):
            self.add(depth, f"elif {self.condition()}:")
            self.block(depth + 1, loop)
        if self.rng.random() < 0.5:
            self.add(depth, "else:")
            self.block(depth + 1, loop)

    def assignment(self) -> str:
        """A statement that gives a name another value of its type."""
        r = self.rng
        return r.choice([
            f"{r.choice('ab')} = {self.vector()}", f"{r.choice('st')} = {self.scalar()}",
            f"{r.choice('km')} = {self.integer()}", "a, b = b, a", "s, t = t, s", "k, m = m, k",
            f"items[{r.randint(0, 1)}] = {self.vector()}", f"k += {r.randint(-2, 3)}",
            f"a = {self.vector()} if {self.condition()} else {self.vector()}",
            f"k = {self.integer()} if {self.condition()} else m",
        ])  # fmt: skip

    def vector(self) -> str:
        """A vector."""
        r = self.rng
        v, w = r.choice(["a", "b", "x", "items[0]"]), r.choice(["a", "b", "y", "items[1]"])
        return r.choice([
            f"({v} * {w}).tanh()", f"{v} - {w}", f"{v} * 0.5 + {r.choice('st')}.tanh()", f"{v}.abs() - m",
            f"kiln.maximum({v}, {w})", f"({v} + k).sin()", f"{v} / ({w}.abs() + 1)",
        ])  # fmt: skip

    def scalar(self) -> str:
        """A tensor of no dims."""
        r = self.rng
        return r.choice([
            f"({self.vector()}).sum()", f"({self.vector()})[{r.randint(0, 1)}]", "(s * t).tanh()",
            "s - t + k", "max(s, t)", "-s", "abs(t) * 0.5",
        ])  # fmt: skip

    def integer(self) -> str:
        """A number of Python's."""
        return self.rng.choice([
            "k + 1", "k - m", "(k * 3 + 1) % 7", "m * 2 % 5", "int(s.clamp(-9, 9))", "k // 2", "min(k, m)",
            "abs(k) % 6", "int(n) + 1",
        ])  # fmt: skip

    def condition(self, depth: int = 0) -> str:
        """What an if asks."""
        r = self.rng
        plain = [
            "s > 0", "a[0] < b[1]", "k % 2 == 0", "k < m", "t > s", "a.sum() > s", "n > 2", "(a > b).any()",
            "k != 1", "-1 < s < 2", "k > 1 > m", "p == 2", "s.item() < 0.5", "bool(a.max() > 1)",
        ]  # fmt: skip
        if depth < 2 and r.random() < 0.3:
            one, other = self.condition(depth + 1), self.condition(depth + 1)
            return r.choice([f"({one} and {other})", f"({one} or {other})", f"not ({one})"])
        return r.choice(plain)


def function_of(text: str, name: str) -> Any:
    """The function that a text defines; its source can be found."""
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    space: dict[str, Any] = {"kiln": kiln}
    exec(compile(text, name, "exec"), space)
    return space["f"]


def arguments(given: Any) -> list[Any]:
    """The arguments of one call."""
    x, y, n, p = given
    return [kiln.tensor(x, requires_grad=True), kiln.tensor(y, requires_grad=True), kiln.tensor(n), p]


def check(seed: int, by: str = "code") -> str:
    """What is wrong with the program of a seed, by "code", the "interpreter" or "onnx"; "" for nothing."""
    text = Writer(random.Random(seed)).text()
    try:
        f = function_of(text, f"<script program {seed}>")
        script = kiln.jit.script(f)
        run = script
        if by != "code":
            run = WAYS[by](script._calls.variant(tuple(arguments(_INPUTS[0])), {}))
        near = 1e-3 if by == "onnx" else 0.0
        for given in _INPUTS:
            args, own = arguments(given), arguments(given)
            expected = f(*args)
            came = run(*own)
            for k, (a, b) in enumerate(zip(expected, came, strict=True)):
                if not _same(a, b, near):
                    return f"result {k} of {given}: {a} is {b}\n{text}"
            if by == "code" and (told := _gradients(expected, args, came, own)):
                return f"{told} of {given}\n{text}"
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{text}"
    return ""


def _of(whole: Variant, run: Any) -> Any:
    """A script's graph as a function: `run` is given NumPy's arrays and gives them."""
    found = whole.captured

    def call(*args: Any) -> list[Any]:
        tensors = [x.detach().numpy() for x in args if isinstance(x, kiln.Tensor)]
        made = [kiln.from_numpy(y) for y in run(tensors)] if found.op else []
        return list(whole.result(made[: len(found.outputs)]))

    return call


def _interpreted(whole: Variant) -> Any:
    """A script by the interpreter."""
    state = [s.tensor.detach().numpy() for s in whole.captured.state]
    return _of(whole, lambda tensors: interpret(expand(whole.captured.graph), [*tensors, *state]))


def _in_onnx(whole: Variant) -> Any:
    """A script as a model, by ONNX Runtime."""
    try:
        from onnxruntime import InferenceSession
    except ImportError as error:
        raise SystemExit("ONNX Runtime is not installed: pip install kiln[runtimes]") from error

    found = whole.captured
    if not found.outputs:
        return _of(whole, None)
    session = InferenceSession(model_of(found), providers=["CPUExecutionProvider"])
    names = {x.name for x in session.get_inputs()}

    def run(tensors: list[Any]) -> Any:
        given = {x.name: t for x, t in zip(found.inputs, tensors) if x.name in names}
        return session.run(None, given)

    return _of(whole, run)


WAYS = {"interpreter": _interpreted, "onnx": _in_onnx}


def _same(a: Any, b: Any, near: float) -> bool:
    if not isinstance(a, kiln.Tensor):
        return type(a) is type(b) and bool(a == b)
    if not isinstance(b, kiln.Tensor) or a.dtype != b.dtype or a.shape != b.shape:
        return False
    if near:
        return kiln.allclose(a, b, rtol=near, atol=near, equal_nan=True)
    return a.detach().numpy().tobytes() == b.detach().numpy().tobytes()


def _gradients(expected: Any, args: list[Any], came: Any, own: list[Any]) -> str:
    """How gradients differ."""
    both = []
    for results, inputs in ((expected, args), (came, own)):
        total: Any = sum([y.sum() for y in results if isinstance(y, kiln.Tensor)])
        given = [x for x in inputs if isinstance(x, kiln.Tensor) and x.requires_grad]
        found = kiln.autograd.grad(total, given, allow_unused=True)
        both.append([kiln.zeros_like(x) if g is None else g for x, g in zip(given, found)])
    for a, b in zip(*both):
        if not kiln.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True):
            return f"a gradient {a} is {b}"
    return ""


def main() -> None:
    """Runs the programs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--by", default="code", choices=["code", *WAYS], help="without gradients but by code")
    parser.add_argument(
        "--compiled", type=int, default=20, help="with others: one of so many runs as its code too"
    )
    given = parser.parse_args()
    wrong = 0
    for seed in range(given.seed, given.seed + given.count):
        told = check(seed, given.by)
        if not told and given.by != "code" and seed % given.compiled == 0:
            told = check(seed)
        linecache.cache.clear()
        if told:
            wrong += 1
            print(f"seed {seed}: {told}")
    print(f"{given.count} programs, {wrong} wrong")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
