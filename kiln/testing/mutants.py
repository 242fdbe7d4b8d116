"""Mutants of functions: the same code with one small mistake in it.

    a + b        a - b           an operator replaced (of `and`, `or` too)
    2.0          3.5             a constant changed, True made False
    a < b        a > b           a comparison reversed, a condition negated
    f(a, b)      f(b, a)         neighbouring arguments of a call swapped
    -a, not a    a               a negation dropped

A mutant is compiled from the syntax tree of its source, and put in by the code object: a function keeps its
identity, so whoever imported it, or a record that holds it, runs the mutant. What makes a message (`raise`,
f-strings, `message(...)`), what only refuses arguments (functions called `check...`, `require` and so on, at
which the scan of errors looks), decorators and defaults are left as they are.
"""

from __future__ import annotations

import ast
import copy
import dis
import gc
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.MatMult: ast.Mult,
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMMUTES = {
    "maximum",
    "minimum",
    "larger",
    "smaller",
    "max",
    "min",
    "logaddexp",
    "add",
    "mul",
    "logical_and",
    "logical_or",
}
_REFUSING = ("check", "require", "expect", "refuse", "same_dtype", "explain", "unsupported")
_FLAGS = annotations.compiler_flag

Functions = dict[Any, list[FunctionType]]


class Mutant(NamedTuple):
    """One mistake: where, what stands there and what the mutant has, and the changed code objects."""

    path: str
    line: int
    function: str  # the qualified name of the function it is in
    before: str
    after: str
    codes: tuple[tuple[CodeType, CodeType], ...]

    @property
    def label(self) -> str:
        """What it is known by, wherever its line moves."""
        return f"{self.function}: {self.before} -> {self.after}"

    def put_in(self, functions: Functions) -> int:
        """Makes every living function of the changed code a mutant; how many there are."""
        changed = [(f, new) for old, new in self.codes for f in functions.get(key_of(old), ())]
        for function, new in changed:
            function.__code__ = new
        return len(changed)


def key_of(code: CodeType) -> Any:
    """What tells code objects apart however often they were compiled."""
    return code.co_qualname, code.co_firstlineno, code.co_code, code.co_linetable


def living_functions(start: str) -> Functions:
    """Every function whose source lies below a path, by its code: those that closures made are several."""
    found: Functions = {}
    for x in gc.get_objects():
        if isinstance(x, FunctionType) and x.__code__.co_filename.startswith(start):
            found.setdefault(key_of(x.__code__), []).append(x)
    return found


def helpers(function: FunctionType) -> Iterator[FunctionType]:
    """The functions that a function names: globals, what is asked of modules, what its closure holds."""
    code = [i for c in codes_of(function.__code__) for i in dis.get_instructions(c)]
    names = sorted({i.argval for i in code if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")})
    attributes = sorted({i.argval for i in code if i.opname in ("LOAD_ATTR", "LOAD_METHOD")})
    known = [function.__globals__[n] for n in names if n in function.__globals__]
    modules = [m for m in known if isinstance(m, ModuleType)]
    asked = [getattr(m, n) for m in modules for n in attributes if hasattr(m, n)]
    for cell in function.__closure__ or ():
        try:
            known.append(cell.cell_contents)
        except ValueError:  # it is empty
            pass
    wrapped = getattr(function, "__wrapped__", None)
    yield from (x for x in (*known, *asked, wrapped) if isinstance(x, FunctionType))


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """A code object and those inside it."""
    yield code
    for inner in _inner(code):
        yield from codes_of(inner)


def mutants(path: str, is_wanted: Callable[[CodeType], bool]) -> Iterator[Mutant]:
    """All mutants of the functions of a file whose code is wanted, in the order of the source."""
    with open(path) as file:
        text = file.read()
    for statement in ast.parse(text).body:
        plain = _compiled(statement, path)
        if any(is_wanted(code) for code in codes_of(plain)):
            yield from _of_statement(statement, path, plain, is_wanted)


def _compiled(statement: ast.stmt, path: str) -> CodeType:
    module = ast.Module([statement], [])
    made: CodeType = compile(module, path, "exec", _FLAGS, dont_inherit=True)
    return made


def _of_statement(
    statement: ast.stmt, path: str, plain: CodeType, is_wanted: Callable[[CodeType], bool]
) -> Iterator[Mutant]:
    for holder, place, node in list(_places(statement)):
        for other in _alternatives(node):
            ast.fix_missing_locations(ast.copy_location(other, node))
            _put(holder, place, other)
            try:
                mutant = _compiled(statement, path)
                codes = list(_changes(plain, mutant, is_wanted))
            except (SyntaxError, ValueError):  # no program, or one of other functions
                continue
            finally:
                _put(holder, place, node)
            inside = [old.co_qualname for old, _, wanted in codes if wanted]
            if inside:
                line: int = node.lineno  # type: ignore[attr-defined]
                pairs = tuple((old, new) for old, new, _ in codes)
                yield Mutant(path, line, inside[-1], _words(node), _words(other), pairs)


def _changes(
    old: CodeType, new: CodeType, is_wanted: Callable[[CodeType], bool], inside: bool = False
) -> Iterator[tuple[CodeType, CodeType, bool]]:
    """The code objects that differ, outer ones first, and whether what differs is in wanted code itself."""
    if old.co_freevars != new.co_freevars:
        raise ValueError("no code for the same closure")
    inside = inside or is_wanted(old)
    within = zip(_inner(old), _inner(new), strict=True)
    deeper = [change for a, b in within for change in _changes(a, b, is_wanted, inside)]
    differs = _content(old) != _content(new)
    if differs or deeper:
        yield old, new, differs and inside
        yield from deeper


def _content(code: CodeType) -> Any:
    """What a code object does by itself, without those inside it and their places in the source."""
    constants = [(type(c), repr(c)) for c in code.co_consts if not isinstance(c, CodeType)]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def _inner(code: CodeType) -> list[CodeType]:
    return [c for c in code.co_consts if isinstance(c, CodeType)]


def _words(node: ast.AST) -> str:
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) <= 70 else f"{text[:33]} ... {text[-32:]}"


Place = tuple[str, int]


def _put(holder: ast.AST, place: Place, node: ast.AST) -> None:
    field, k = place
    if k < 0:
        setattr(holder, field, node)
    else:
        getattr(holder, field)[k] = node


def _places(node: ast.AST) -> Iterator[tuple[ast.AST, Place, ast.AST]]:
    """Every node below one that may be changed, and where it stands."""
    for field, value in ast.iter_fields(node):
        if field in ("decorator_list", "args") and not isinstance(node, ast.Call):
            continue  # decorators; parameters, their annotations and defaults
        if field in ("returns", "annotation") or (isinstance(node, ast.Assert) and field == "msg"):
            continue
        for k, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST) and not _is_told(child):
                yield node, (field, k if isinstance(value, list) else -1), child
                yield from _places(child)


def _is_told(node: ast.AST) -> bool:
    """Whether it only makes words for people, or refuses arguments."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "message":
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return refuses(_name(node.value.func))
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, (ast.Raise, ast.JoinedStr))


def refuses(name: str) -> bool:
    """Whether a function is one that does nothing but raise, by its name."""
    return name.lstrip("_").startswith(_REFUSING)


def _alternatives(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in a node's place by mistake."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _OPERATORS:
        yield _with(node, op=_OPERATORS[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.Constant):
        yield from map(ast.Constant, _constants(node.value))
    elif isinstance(node, ast.Compare):
        for k, how in enumerate(node.ops):
            ops = [*node.ops[:k], _COMPARISONS[type(how)](), *node.ops[k + 1 :]]
            yield _with(node, ops=ops)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not, ast.Invert)):
        yield node.operand
    elif isinstance(node, (ast.If, ast.IfExp)) and isinstance(node.test, (ast.Name, ast.Attribute, ast.Call)):
        yield _with(node, test=ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test))
    elif isinstance(node, ast.Call) and _name(node.func) not in _COMMUTES:
        for k, (a, b) in enumerate(zip(node.args, node.args[1:])):
            if ast.dump(a) != ast.dump(b) and not isinstance(b, ast.Starred):
                yield _with(node, args=[*node.args[:k], b, a, *node.args[k + 2 :]])


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _constants(value: object) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield value * 1.25 + 0.5 if abs(value) < 1e30 else value / 3


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other
