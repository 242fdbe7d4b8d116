"""Functions of a program, rewritten: found by their source, compiled with its name and its lines."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import CellType, CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from kiln.scripting.lower import RUNTIME
from kiln.scripting.rewrite import rewritten

_FACTORY, _FUNCTION = "_kiln_factory", "_kiln_function"  # no names that the code may mean
_done: set[CodeType] = set()  # the code of rewritten functions, and of those in them
_codes: dict[CodeType, CodeType | None] = {}
runtime_cell = CellType()  # what rewritten code calls; `runtime.py` puts itself there
_made: WeakKeyDictionary[FunctionType, FunctionType] = WeakKeyDictionary()


def is_rewritten(function: FunctionType) -> bool:
    """Whether a function was made by rewriting."""
    return function.__code__ in _done


def rewrite(function: FunctionType) -> FunctionType | None:
    """A function that does the same by calls of what `runtime.py` holds; None where it has no source."""
    found = _made.get(function)
    if found is not None:
        return found
    code = function.__code__
    if code not in _codes:
        _codes[code] = _rewritten_code(function)
    new = _codes[code]
    if new is None:
        return None
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    cells[RUNTIME] = runtime_cell
    closure = tuple([cells[name] for name in new.co_freevars])
    made = FunctionType(new, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__, made.__doc__ = function.__qualname__, function.__doc__
    made.__annotations__, made.__module__ = function.__annotations__, function.__module__
    _made[function] = made
    return made


def _rewritten_code(function: FunctionType) -> CodeType | None:
    code = function.__code__
    node = _source_of(function)
    if node is None:
        return None
    owner = function.__qualname__.split(".")
    within = owner[-2] if len(owner) > 1 and owner[-2] != "<locals>" else ""
    rewritten(node, within)
    body: list[ast.stmt]
    if isinstance(node, ast.Lambda):
        body = [ast.Expr(node)]
    else:
        node.decorator_list, node.name = [], _FUNCTION
        node.returns = None
        for arg in ast.walk(node.args):
            if isinstance(arg, ast.arg):
                arg.annotation = None
        count = len(node.args.defaults)
        node.args.defaults = [ast.Constant(None) for _ in range(count)]
        node.args.kw_defaults = [d and ast.Constant(None) for d in node.args.kw_defaults]
        body = [node]
    names = [ast.arg(n) for n in (*code.co_freevars, RUNTIME)]
    given = ast.arguments(posonlyargs=[], args=names, kwonlyargs=[], kw_defaults=[], defaults=[])
    if isinstance(node, ast.Lambda):
        node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
    factory = ast.FunctionDef(_FACTORY, given, body, [])
    tree = ast.fix_missing_locations(ast.Module([factory], []))
    whole = compile(tree, code.co_filename, "exec", dont_inherit=True, flags=_future(code))
    (outer,) = [c for c in whole.co_consts if isinstance(c, CodeType)]
    inner = next(
        c for c in outer.co_consts if isinstance(c, CodeType) and c.co_name in (_FUNCTION, "<lambda>")
    )
    inner = inner.replace(co_name=code.co_name, co_qualname=code.co_qualname)
    _note(inner)
    return inner


def _future(code: CodeType) -> int:
    """The compiler's flags of `from __future__ import annotations`."""
    return code.co_flags & 0x1000000


def _note(code: CodeType) -> None:
    _done.add(code)
    for c in code.co_consts:
        if isinstance(c, CodeType):
            _note(c)


def _source_of(function: FunctionType) -> ast.FunctionDef | ast.Lambda | None:
    """The syntax tree of a function, with the lines and columns of its file."""
    code = function.__code__
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError):
        return None
    if code.co_name == "<lambda>":
        return _lambda_of(code)
    text = "".join(lines)
    shorter = textwrap.dedent(text)
    try:
        tree = ast.parse(shorter)
    except SyntaxError:
        return None
    indent = len(text) - len(text.lstrip()) if shorter != text else 0
    _move(tree, max(first, 1) - 1, indent)
    node = next((n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == code.co_name), None)
    return node if node is not None and _is_of(node, code) else None


def _lambda_of(code: CodeType) -> ast.Lambda | None:
    """The lambda of a file that is this code's; None where several could be."""
    source = inspect.findsource(code)[0]
    try:
        tree = ast.parse("".join(source))
    except SyntaxError:
        return None
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno]
    if len(found) > 1:
        spans = {(p[0], p[1], p[2], p[3]) for p in code.co_positions() if None not in p}
        found = [
            n
            for n in found
            if any(
                (n.body.lineno, n.body.end_lineno, n.body.col_offset, n.body.end_col_offset) == s
                for s in spans
            )
        ]
    return found[0] if len(found) == 1 else None


def _is_of(node: ast.FunctionDef, code: CodeType) -> bool:
    args = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return args == list(code.co_varnames[: len(args)])


def _move(tree: ast.AST, lines: int, columns: int) -> None:
    node: Any
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno += lines
            node.col_offset += columns
            if getattr(node, "end_lineno", None) is not None:
                node.end_lineno += lines
                node.end_col_offset += columns
