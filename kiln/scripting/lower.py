"""`return`, `break` and `continue` as flags, so that every statement has one way in and one way out.

    if a: return x            if a: value = x; left = True
    rest                      else: rest

    while a:                  while not stop and a:
        if b: break               if b: stop = True
        rest                      else: rest

What follows a branch that always leaves moves into the other branch; where neither does, it is guarded by the
flags. So the values of a name meet where branches end, and nowhere else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import NamedTuple

PREFIX = "_kiln_"
RUNTIME = f"{PREFIX}k"  # what the constructs call
VALUE, LEFT = f"{PREFIX}value", f"{PREFIX}left"  # of a return

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LOOPS = (ast.For, ast.While)


class Loop(NamedTuple):
    """The flags of a loop."""

    stop: str
    skip: str


def load(name: str) -> ast.expr:
    """A name that is read."""
    return ast.Name(name, ast.Load())


def put(name: str, value: ast.expr, like: ast.AST) -> ast.stmt:
    """name = value"""
    return placed(ast.Assign([ast.Name(name, ast.Store())], value), like)


def placed(node: ast.stmt, like: ast.AST) -> ast.stmt:
    """A statement at the line of another one. What is inside gets its lines when the function is compiled."""
    return ast.copy_location(node, like)


def runtime(name: str, *args: ast.expr) -> ast.expr:
    """A call of what the constructs call."""
    return ast.Call(ast.Attribute(load(RUNTIME), name, ast.Load()), list(args), [])


def clear(flags: Iterable[str]) -> ast.expr:
    """Whether no flag is set."""
    return runtime("clear", *map(load, flags))


def own_nodes(nodes: Iterable[ast.AST]) -> Iterable[ast.AST]:
    """All nodes, without those of functions and classes inside."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, SCOPES):
            stack += ast.iter_child_nodes(node)


def returns_inside(body: list[ast.stmt]) -> bool:
    """Whether there is a return that is not the last statement."""
    nested = [s for s in body if not isinstance(s, ast.Return)]
    return any(isinstance(n, ast.Return) for n in own_nodes(nested))


class Lower:
    """The lowering of one function."""

    def __init__(self) -> None:
        self.count = 0

    def function(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements of a function."""
        if not returns_inside(body):
            return self.block(body, None)
        first, last, ends = body[0], body[-1], _ends(body)
        made = self.block(body, None, returns=True)
        left = ast.Constant(True) if ends else load(LEFT)
        end = ast.Return(runtime("returned", left, placed_lambda(load(VALUE))))
        return [put(LEFT, ast.Constant(False), first), *made, placed(end, last)]

    def block(self, body: list[ast.stmt], loop: Loop | None, returns: bool = False) -> list[ast.stmt]:
        """Statements in an order in which they run; `returns`: returns are flags too."""
        made: list[ast.stmt] = []
        for at, s in enumerate(body):
            if isinstance(s, ast.Return) and returns:
                value = s.value or ast.copy_location(ast.Constant(None), s)
                return [*made, put(VALUE, value, s), put(LEFT, ast.Constant(True), s)]
            if isinstance(s, (ast.Break, ast.Continue)) and loop is not None:
                flag = loop.stop if isinstance(s, ast.Break) else loop.skip
                return [*made, put(flag, ast.Constant(True), s)]
            rest = body[at + 1 :]
            flags = self._flags(s, loop, returns)
            if isinstance(s, ast.If):
                if flags and rest and _ends(s.body):
                    s.orelse, rest = [*s.orelse, *rest], []
                elif flags and rest and _ends(s.orelse):
                    s.body, rest = [*s.body, *rest], []
                s.body = self.block(s.body, loop, returns)
                s.orelse = self.block(s.orelse, loop, returns)
                made.append(s)
                if len(rest) < len(body) - at - 1:
                    return made
            elif isinstance(s, _LOOPS):
                made += self._loop(s, loop, returns)
            else:
                self._inside(s, loop, returns)
                made.append(s)
            if flags and rest:
                guard = ast.If(clear(flags), self.block(rest, loop, returns), [])
                return [*made, placed(guard, rest[0])]
        return made

    def _flags(self, s: ast.stmt, loop: Loop | None, returns: bool) -> list[str]:
        """The flags that a statement may set which end what follows it."""
        found = {LEFT} if returns and any(isinstance(n, ast.Return) for n in own_nodes([s])) else set()
        if loop is not None:
            found |= {loop.stop if isinstance(n, ast.Break) else loop.skip for n in _of_this_loop([s])}
        return sorted(found)

    def _loop(self, s: ast.For | ast.While, around: Loop | None, returns: bool) -> list[ast.stmt]:
        self.count += 1
        own = Loop(f"{PREFIX}stop{self.count}", f"{PREFIX}skip{self.count}")
        if isinstance(s, ast.While) and any(isinstance(n, ast.NamedExpr) for n in ast.walk(s.test)):
            leave = placed(ast.If(ast.UnaryOp(ast.Not(), s.test), [ast.Break()], []), s)
            s.test, s.body = ast.copy_location(ast.Constant(True), s.test), [leave, *s.body]
        kinds = {type(n) for n in _of_this_loop(s.body)}
        leaves = self._flags(s, None, returns)
        before = [put(own.stop, ast.Constant(False), s)] if ast.Break in kinds else []
        flags = [*([own.stop] if before else []), *leaves]
        skips = [put(own.skip, ast.Constant(False), s)] if ast.Continue in kinds else []
        s.body = [*skips, *self.block(s.body, own, returns)]
        s.go = flags  # type: ignore[union-attr]
        after: list[ast.stmt] = []
        if s.orelse:
            orelse = self.block(s.orelse, around, returns)
            after = [placed(ast.If(clear(flags), orelse, []), s.orelse[0])] if flags else orelse
            s.orelse = []
        return [*before, s, *after]

    def _inside(self, s: ast.stmt, loop: Loop | None, returns: bool) -> None:
        """What a `with` or `try` holds."""
        for name in ("body", "orelse", "finalbody"):
            if isinstance(s, (ast.With, ast.Try)) and getattr(s, name, None):
                setattr(s, name, self.block(getattr(s, name), loop, returns))
        for handler in getattr(s, "handlers", []):
            handler.body = self.block(handler.body, loop, returns)


def placed_lambda(value: ast.expr) -> ast.expr:
    """A function of nothing that gives a value."""
    none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(none, value)


def _of_this_loop(nodes: Iterable[ast.AST]) -> Iterable[ast.AST]:
    """The breaks and continues that belong to the loop these are statements of."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Break, ast.Continue)):
            yield node
        elif isinstance(node, _LOOPS):
            stack += node.orelse
        elif not isinstance(node, SCOPES):
            stack += ast.iter_child_nodes(node)


def _ends(body: list[ast.stmt]) -> bool:
    """Whether what follows these statements never runs after them."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return _ends(last.body) and _ends(last.orelse)
    if isinstance(last, ast.With):
        return _ends(last.body)
    if isinstance(last, ast.Try):
        return _ends(last.finalbody) or (
            (_ends(last.body) or _ends(last.orelse)) and all(_ends(h.body) for h in last.handlers)
        )
    if isinstance(last, ast.While) and isinstance(last.test, ast.Constant) and last.test.value:
        return not any(isinstance(n, ast.Break) for n in _of_this_loop(last.body))
    return isinstance(last, (ast.Return, ast.Break, ast.Continue, ast.Raise))
