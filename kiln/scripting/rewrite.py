"""A function's syntax tree with every construct that may depend on a tensor's value as a call.

    if a: x = f(y)            def yes(): nonlocal x; x = k.call(f, y)
                              def no(): pass
                              def get(): x, or that it is not set
                              def put(values): nonlocal x; ...
                              k.if_(a, yes, no, get, put, ("x",), line)
    a and b                   k.and_(a, lambda: b)
    x[i] = v                  k.set_item(v, x, i)

`k` (kiln/scripting/runtime.py) looks whether the condition is a value of Python's; then it is Python's own
`if`. Lines and columns stay, so tracebacks and debuggers show the user's program.
"""

from __future__ import annotations

import ast
from typing import Any

from kiln.scripting.lower import (
    PREFIX,
    RUNTIME,
    SCOPES,
    Lower,
    clear,
    load,
    own_nodes,
    placed,
    placed_lambda,
    put,
    runtime,
)

_NATIVE = ("locals", "globals", "vars", "eval", "exec", "dir")
_OPS = {
    ast.Add: "iadd", ast.Sub: "isub", ast.Mult: "imul", ast.Div: "itruediv", ast.FloorDiv: "ifloordiv",
    ast.Mod: "imod", ast.Pow: "ipow", ast.MatMult: "imatmul", ast.BitAnd: "iand", ast.BitOr: "ior",
    ast.BitXor: "ixor", ast.LShift: "ilshift", ast.RShift: "irshift",
}  # fmt: skip


def rewritten(function: ast.FunctionDef | ast.Lambda, owner: str) -> None:
    """Rewrites a function in its place; `owner`: the class it is a method of, for names like `__x`."""
    _Rewrite(owner).of_function(function)


def assigned(body: list[ast.stmt]) -> set[str]:
    """The names that statements may bind."""
    found: set[str] = set()
    for node in own_nodes(body):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
    return found - _of_comprehensions(body)


def _of_comprehensions(body: list[ast.stmt]) -> set[str]:
    """Names that comprehensions alone bind."""
    inner: set[int] = set()
    names: set[str] = set()
    for node in own_nodes(body):
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            for part in node.generators:
                for target in ast.walk(part.target):
                    if isinstance(target, ast.Name):
                        inner.add(id(target))
                        names.add(target.id)
    outer = {
        n.id
        for n in own_nodes(body)
        if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load) and id(n) not in inner
    }
    return names - outer


def _is_generator(body: list[ast.stmt]) -> bool:
    kinds = (ast.Yield, ast.YieldFrom, ast.Await)
    return any(isinstance(node, kinds) for node in own_nodes(body))


def _has_walrus(node: ast.AST) -> bool:
    return any(isinstance(n, ast.NamedExpr) for n in ast.walk(node))


class _Rewrite(ast.NodeTransformer):
    """The rewriting of one function; functions inside it have their own."""

    def __init__(self, owner: str, counter: list[int] | None = None) -> None:
        self.owner = owner
        self.first = ""  # the first parameter, which `super()` means
        self.locals: set[str] = set()
        self.shared: set[str] = set()  # declared global
        self.counter = [0] if counter is None else counter
        self.pending: list[ast.stmt] = []  # statements that follow the one at hand

    # -- functions --------------------------------------------------------------------------------------

    def of_function(self, f: ast.FunctionDef | ast.Lambda) -> None:
        """Rewrites a function's body."""
        a = f.args
        names = [*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else []), *a.kwonlyargs]
        names += [a.kwarg] if a.kwarg else []
        self.first = (names[0].arg if names else "") if isinstance(f, ast.FunctionDef) else ""
        if isinstance(f, ast.Lambda):
            f.body = self.visit(f.body)
            return
        if _is_generator(f.body):
            return
        declared = [n for n in own_nodes(f.body) if isinstance(n, (ast.Global, ast.Nonlocal))]
        self.shared = {x for n in declared if isinstance(n, ast.Global) for x in n.names}
        lowered = Lower().function(f.body)
        own = assigned(lowered) - {x for n in declared for x in n.names}
        self.locals = (own | {x.arg for x in names}) | {
            x for n in declared if isinstance(n, ast.Nonlocal) for x in n.names
        }
        own -= {x.arg for x in names}
        body = self.body(lowered)
        if own:  # binds every name here, without a value
            targets: list[ast.expr] = [ast.Name(self._mangled(x), ast.Store()) for x in sorted(own)]
            never = ast.If(ast.Constant(False), [ast.Assign(targets, ast.Constant(None))], [])
            at = 1 if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) else 0
            while at < len(body) and isinstance(body[at], (ast.Global, ast.Nonlocal)):
                at += 1
            body.insert(at, placed(never, f.body[0]))
        f.body = body

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        self._defaults(node.args)
        node.name = self._mangled(node.name)
        _Rewrite(self.owner, self.counter).of_function(node)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        self._defaults(node.args)
        inner = _Rewrite(self.owner, self.counter)
        inner.first = self.first
        inner.of_function(node)
        return node

    def _defaults(self, args: ast.arguments) -> None:
        args.defaults = [self.visit(d) for d in args.defaults]
        args.kw_defaults = [None if d is None else self.visit(d) for d in args.kw_defaults]

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        return node

    # -- names ------------------------------------------------------------------------------------------

    def _mangled(self, name: str) -> str:
        hidden = name.startswith("__") and not name.endswith("__") and self.owner.strip("_")
        return f"_{self.owner.lstrip('_')}{name}" if hidden else name

    def visit_Name(self, node: ast.Name) -> Any:
        node.id = self._mangled(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        node.attr = self._mangled(node.attr)
        node.value = self.visit(node.value)
        return node

    # -- statements -------------------------------------------------------------------------------------

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Statements, each with what follows it."""
        made: list[ast.stmt] = []
        for s in statements:
            before, self.pending = self.pending, []
            new = self.visit(s)
            made += new if isinstance(new, list) else [new]
            made += self.pending
            self.pending = before
        return made or [ast.Pass(lineno=1, col_offset=0)]

    def _name(self, kind: str) -> str:
        self.counter[0] += 1
        return f"{PREFIX}{kind}{self.counter[0]}"

    def _function(
        self, kind: str, body: list[ast.stmt], names: list[str], like: ast.AST, args: tuple[str, ...] = ()
    ) -> ast.FunctionDef:
        """A function that binds names of the function around it."""
        shared = sorted({*names} & self.shared)
        outer = sorted({*names} - self.shared)
        given = ast.arguments(
            posonlyargs=[], args=[ast.arg(x) for x in args], kwonlyargs=[], kw_defaults=[], defaults=[]
        )
        head: list[ast.stmt] = [ast.Nonlocal([self._mangled(n) for n in outer])] if outer else []
        head += [ast.Global(shared)] if shared else []
        made = ast.FunctionDef(self._name(kind), given, [*head, *body], [])
        placed(made, like)
        return made

    def _state(self, names: list[str], like: ast.AST) -> tuple[list[ast.stmt], list[ast.expr]]:
        """Functions that read and write names, as statements; their arguments in a call."""
        names = [n for n in names if n not in self.shared]
        unset = ast.Attribute(load(RUNTIME), "UNSET", ast.Load())
        read: list[ast.stmt] = []
        write: list[ast.stmt] = []
        for k, name in enumerate(names):
            own = self._mangled(name)
            one = ast.Assign([ast.Name(f"v{k}", ast.Store())], load(own))
            none = ast.Assign([ast.Name(f"v{k}", ast.Store())], unset)
            handler = ast.ExceptHandler(load("NameError"), None, [none])
            read.append(ast.Try([one], [handler], [], []))
            item = ast.Subscript(load("values"), ast.Constant(k), ast.Load())
            write.append(ast.Assign([ast.Name(own, ast.Store())], item))
            is_unset = ast.Compare(load(own), [ast.Is()], [unset])
            write.append(ast.If(is_unset, [ast.Delete([ast.Name(own, ast.Del())])], []))
        read.append(ast.Return(ast.List([load(f"v{k}") for k in range(len(names))], ast.Load())))
        get = self._function("get", read, [], like)
        set_ = self._function("put", write or [ast.Pass()], names, like, ("values",))
        told = ast.Tuple([ast.Constant(n) for n in names], ast.Load())
        line = ast.Constant(getattr(like, "lineno", 0))
        return [get, set_], [load(get.name), load(set_.name), told, line]

    def _bound(self, *bodies: list[ast.stmt]) -> list[str]:
        return sorted({n for body in bodies for n in assigned(body)} & (self.locals | self.shared))

    def visit_If(self, node: ast.If) -> Any:
        names = self._bound(node.body, node.orelse)
        test = self.visit(node.test)
        yes = self._function("then", self.body(node.body), self._bound(node.body), node)
        no = self._function("else", self.body(node.orelse), self._bound(node.orelse), node)
        state, args = self._state(names, node)
        call = runtime("if_", test, load(yes.name), load(no.name), *args)
        return [yes, no, *state, placed(ast.Expr(call), node)]

    def visit_While(self, node: ast.While) -> Any:
        names = self._bound(node.body)
        test = self.visit(node.test)
        flags = getattr(node, "go", [])
        if flags:
            test = runtime("and_", clear(flags), placed_lambda(test))
        condition = self._function("while", [ast.Return(test)], [], node)
        body = self._function("body", self.body(node.body), names, node)
        state, args = self._state(names, node)
        call = runtime("while_", load(condition.name), load(body.name), *args)
        return [condition, body, *state, placed(ast.Expr(call), node)]

    def visit_For(self, node: ast.For) -> Any:
        bind: ast.stmt = placed(ast.Assign([node.target], load(f"{PREFIX}item")), node)
        names = self._bound([bind, *node.body])
        targets = self._bound([bind])
        over = self.visit(node.iter)
        flags = getattr(node, "go", [])
        body = self._function("body", self.body([bind, *node.body]), names, node, (f"{PREFIX}item",))
        go: ast.expr = ast.Constant(None)
        made: list[ast.stmt] = [body]
        if flags:
            ends = self._function("go", [ast.Return(clear(flags))], [], node)
            made.append(ends)
            go = load(ends.name)
        state, args = self._state(names, node)
        told = ast.Tuple([ast.Constant(n) for n in targets], ast.Load())
        call = runtime("for_", over, load(body.name), go, told, *args)
        return [*made, *state, placed(ast.Expr(call), node)]

    def visit_Try(self, node: ast.Try) -> Any:
        inner = self.body(node.body)
        guard = ast.With([ast.withitem(runtime("trying"), None)], inner)
        node.body = [placed(guard, node)]
        for handler in node.handlers:
            handler.type = None if handler.type is None else self.visit(handler.type)
            handler.body = self.body(handler.body)
        node.orelse = self.body(node.orelse) if node.orelse else []
        node.finalbody = self.body(node.finalbody) if node.finalbody else []
        return node

    def visit_With(self, node: ast.With) -> Any:
        node.items = [
            ast.withitem(self.visit(i.context_expr), i.optional_vars and self._target(i.optional_vars, node))
            for i in node.items
        ]
        stores, self.pending = self.pending, []
        node.body = [*stores, *self.body(node.body)]
        return node

    def visit_Assert(self, node: ast.Assert) -> Any:
        message = ast.Constant(None) if node.msg is None else placed_lambda(self.visit(node.msg))
        return placed(ast.Expr(runtime("assert_", self.visit(node.test), message)), node)

    def visit_Raise(self, node: ast.Raise) -> Any:
        if node.exc is None:
            return node
        cause = ast.Constant(None) if node.cause is None else placed_lambda(self.visit(node.cause))
        made = ast.Raise(runtime("raised", placed_lambda(self.visit(node.exc)), cause), None)
        return placed(made, node)

    def visit_Assign(self, node: ast.Assign) -> Any:
        node.value = self.visit(node.value)
        first = node.targets[0]
        if len(node.targets) == 1 and isinstance(first, (ast.Subscript, ast.Attribute)):
            return placed(ast.Expr(self._store(first, node.value)), node)
        node.targets = [self._target(t, node) for t in node.targets]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None:
            return placed(ast.Pass(), node)
        told = ast.Constant(ast.unparse(node.annotation))
        value = runtime("annotated", self.visit(node.value), told)
        if isinstance(node.target, (ast.Subscript, ast.Attribute)):
            return placed(ast.Expr(self._store(node.target, value)), node)
        return placed(ast.Assign([self.visit(node.target)], value), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        op = ast.Constant(_OPS[type(node.op)])
        value = self.visit(node.value)
        target = node.target
        if isinstance(target, ast.Name):
            name = self._mangled(target.id)
            return put(name, runtime("augment", op, load(name), value), node)
        held = self.visit(target.value)
        if isinstance(target, ast.Attribute):
            call = runtime("augment_attr", op, held, ast.Constant(self._mangled(target.attr)), value)
        else:
            call = runtime("augment_item", op, held, self._key(target.slice), value)
        return placed(ast.Expr(call), node)

    def visit_Delete(self, node: ast.Delete) -> Any:
        made: list[ast.stmt] = []
        for t in node.targets:
            if isinstance(t, ast.Subscript):
                call = runtime("del_item", self.visit(t.value), self._key(t.slice))
                made.append(placed(ast.Expr(call), node))
            else:
                made.append(placed(ast.Delete([self.visit(t)]), node))
        return made

    def _store(self, target: ast.Subscript | ast.Attribute, value: ast.expr) -> ast.expr:
        held = self.visit(target.value)
        if isinstance(target, ast.Attribute):
            return runtime("set_attr", value, held, ast.Constant(self._mangled(target.attr)))
        return runtime("set_item", value, held, self._key(target.slice))

    def _target(self, target: ast.expr, like: ast.AST) -> ast.expr:
        """A target that is a name; what is stored elsewhere is stored by a statement that follows."""
        if isinstance(target, (ast.Tuple, ast.List)):
            target.elts = [self._target(t, like) for t in target.elts]
            return target
        if isinstance(target, ast.Starred):
            target.value = self._target(target.value, like)
            return target
        if isinstance(target, (ast.Subscript, ast.Attribute)):
            name = self._name("part")
            self.pending.append(placed(ast.Expr(self._store(target, load(name))), like))
            return ast.copy_location(ast.Name(name, ast.Store()), target)
        found: ast.expr = self.visit(target)
        return found

    # -- expressions ------------------------------------------------------------------------------------

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        values = [self.visit(v) for v in node.values]
        if any(map(_has_walrus, values)):
            node.values = [*(runtime("python", v) for v in values[:-1]), values[-1]]
            return ast.copy_location(node, node)
        found = values[-1]
        for v in reversed(values[:-1]):
            found = runtime("and_" if isinstance(node.op, ast.And) else "or_", v, placed_lambda(found))
        return ast.copy_location(found, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        node.operand = self.visit(node.operand)
        return (
            ast.copy_location(runtime("not_", node.operand), node) if isinstance(node.op, ast.Not) else node
        )

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        test, yes, no = map(self.visit, (node.test, node.body, node.orelse))
        if _has_walrus(yes) or _has_walrus(no):
            return ast.copy_location(ast.IfExp(runtime("python", test), yes, no), node)
        line = ast.Constant(node.lineno)
        return ast.copy_location(runtime("choose", test, placed_lambda(yes), placed_lambda(no), line), node)

    def visit_Compare(self, node: ast.Compare) -> Any:
        left = self.visit(node.left)
        rights = [self.visit(c) for c in node.comparators]
        if len(rights) == 1:
            return ast.copy_location(self._compared(left, node.ops[0], rights[0]), node)
        # a < b < c: b is evaluated once
        args = [left, *(placed_lambda(r) for r in rights)]
        signs = [type(op).__name__ for op in node.ops]
        return ast.copy_location(
            runtime("chain", ast.Tuple([ast.Constant(s) for s in signs], ast.Load()), *args), node
        )

    def _compared(self, a: ast.expr, op: ast.cmpop, b: ast.expr) -> ast.expr:
        if isinstance(op, (ast.In, ast.NotIn)):
            found = runtime("contains", b, a)
            return found if isinstance(op, ast.In) else runtime("not_", found)
        if isinstance(op, (ast.Eq, ast.NotEq)):  # of lists
            return runtime("compared", ast.Constant(type(op).__name__), a, b)
        return ast.Compare(a, [op], [b])

    def visit_Call(self, node: ast.Call) -> Any:
        f = node.func
        if isinstance(f, ast.Name) and f.id == "super" and not node.args and self.first:
            node.args = [load("__class__"), load(self.first)]
            return ast.copy_location(node, node)
        if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name) and f.value.id == RUNTIME:
            node.args = [self.visit(a) for a in node.args]
            return node
        func = self.visit(f)
        node.args = [self.visit(a) for a in node.args]
        for k in node.keywords:
            k.value = self.visit(k.value)
        if isinstance(f, ast.Name) and f.id in _NATIVE:
            node.func = func
            return node
        call = runtime("call", func, *node.args)
        assert isinstance(call, ast.Call)
        call.keywords = node.keywords
        return ast.copy_location(call, node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        return ast.copy_location(runtime("item", self.visit(node.value), self._key(node.slice)), node)

    def _key(self, key: ast.expr) -> ast.expr:
        if isinstance(key, ast.Slice):
            parts = [
                ast.Constant(None) if p is None else self.visit(p) for p in (key.lower, key.upper, key.step)
            ]
            return ast.copy_location(runtime("slice", *parts), key)
        if isinstance(key, ast.Tuple):
            return ast.copy_location(ast.Tuple([self._key(k) for k in key.elts], ast.Load()), key)
        found: ast.expr = self.visit(key)
        return found

    def _new(self, node: Any) -> Any:
        self.generic_visit(node)
        return ast.copy_location(runtime("new", node), node)

    visit_Dict = visit_Set = visit_SetComp = visit_DictComp = _new

    def visit_ListComp(self, node: ast.ListComp) -> Any:
        if len(node.generators) > 1 or node.generators[0].is_async or _has_walrus(node):
            return self._new(node)
        line, over = ast.Constant(node.lineno), node.generators[0].iter
        node.generators[0].iter = load(f"{PREFIX}over")
        self.generic_visit(node)
        given = ast.arguments([], [ast.arg(f"{PREFIX}over")], None, [], [], None, [])
        return ast.copy_location(runtime("listed", self.visit(over), ast.Lambda(given, node), line), node)

    def visit_List(self, node: ast.List) -> Any:
        return self._new(node) if isinstance(node.ctx, ast.Load) else self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        makes = (ast.List, ast.ListComp)
        is_list = isinstance(node.left, makes) or isinstance(node.right, makes)
        self.generic_visit(node)
        return ast.copy_location(runtime("new", node), node) if is_list else node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> Any:
        node.value = ast.copy_location(runtime("shown", self.visit(node.value)), node.value)
        node.format_spec = None if node.format_spec is None else self.visit(node.format_spec)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> Any:
        node.iter = ast.copy_location(runtime("over", self.visit(node.iter)), node.iter)
        node.ifs = [ast.copy_location(runtime("python", self.visit(i)), i) for i in node.ifs]
        return node


__all__ = ["RUNTIME", "SCOPES", "rewritten"]
