"""Python source of a graph: a line for each node, whose values are let go after their last use."""

from __future__ import annotations

import builtins
import re
import typing
from collections import defaultdict
from collections.abc import Callable
from types import GenericAlias
from typing import Any, NamedTuple

from kiln.fx import _pytree as fx_pytree
from kiln.fx import names
from kiln.fx.node import Node, names_of_type
from kiln.utils import _pytree as pytree

__all__ = ["CodeGen", "PyTreeCodeGen", "PythonCode"]


# the names under which the source shows generic classes
_SHOWN_AS: dict[Any, Any] = {
    list: typing.List, dict: typing.Dict, tuple: typing.Tuple, set: typing.Set,  # noqa: UP006
    frozenset: typing.FrozenSet,  # noqa: UP006
}  # fmt: skip


class PythonCode:
    """What `Graph.python_code` gives: the source, the names that it uses, the lines of each node."""

    def __init__(self, src: str, globals: dict[str, Any], lineno_map: dict[int, int | None]) -> None:
        self.src, self.globals, self._lineno_map = src, globals, lineno_map


class _Globals:
    """Names that the source uses, and what they stand for."""

    def __init__(self, namespace: names.Namespace) -> None:
        self._namespace = namespace
        self.found: dict[str, Any] = {}
        self.wrapped: list[str] = []

    def add(self, hint: str, obj: Any) -> str:
        """The name to write for an object."""
        root = names.root()
        if getattr(builtins, hint, None) is obj and names.is_name(hint):
            return hint
        if hint in self.found and self.found[hint] is obj:
            return hint
        if hint.startswith(f"{root}.") and names.resolve(hint) is obj:
            self.found[root] = names.root_module()
            return hint
        name = self._namespace.create_name(hint.replace(".", "_"), _Same(obj))
        self.found[name] = obj
        return name


class _Same:
    """An object by its identity: a key that needs no hash of its own."""

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __hash__(self) -> int:
        return id(self.obj)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.obj is self.obj


class CodeGen:
    """Writes the source of a graph. Subclasses change what stands around its lines, or how it is called."""

    def __init__(self) -> None:
        self._body_transformer: Callable[[list[str]], list[str]] | None = None
        self._func_name = "forward"

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str) -> str:
        """The line `def forward(...):`."""
        if not free_vars or free_vars[0] != "self":
            free_vars = ["self", *free_vars]
        return f"def {self._func_name}({', '.join(free_vars)}){maybe_return_annotation}:"

    def generate_output(self, output_args: Any) -> str:
        """The line that returns."""
        return f"return {repr(output_args)}"

    def process_inputs(self, *args: Any) -> Any:
        """The arguments of a call as the placeholders' values."""
        return args

    def process_outputs(self, outputs: Any) -> Any:
        """The output node's value as what a call gives."""
        return outputs

    def additional_globals(self) -> list[tuple[str, Any]]:
        """Names that its lines use, with what they stand for."""
        return []

    def _gen_python_code(self, nodes: Any, root: str, namespace: names.Namespace) -> PythonCode:
        known = _Globals(namespace)
        for name, value in self.additional_globals():
            known.found[name] = value
        known.found.update(names.always_there())
        write = _Writer(self, root, known)
        for node in nodes:
            write.node(node)
        lines = self._body_transformer(write.body) if self._body_transformer else write.body
        if len(lines) == 0:
            lines.append("pass\n")
        wrap = f"{names.root()}.fx._symbolic_trace.wrap"
        wrapped = "".join(f'{wrap}("{name}")\n' for name in known.wrapped)
        head = self.gen_fn_def(write.parameters, write.returned)
        code = "".join("    " + line for line in "".join(lines).splitlines(keepends=True))
        src = f"\n{wrapped}\n{head}\n{code}" if wrapped else f"\n\n\n{head}\n{code}"
        return PythonCode(src + ("" if src.endswith("\n") else "\n") + "    ", known.found, {})


class _Writer:
    """The lines of a graph's nodes."""

    def __init__(self, codegen: CodeGen, root: str, known: _Globals) -> None:
        self.codegen, self.root, self.known = codegen, root, known
        self.body: list[str] = []
        self.parameters: list[str] = []
        self.returned = ""
        self.last: dict[Node, list[Node]] | None = None

    def text(self, value: Any) -> str:
        """An argument as source."""
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            kind = self.known.add(names.qualified_name(type(value)), type(value))
            return f"{kind}({', '.join(map(self.text, value))})"
        if isinstance(value, tuple) and type(value) is not tuple:
            value = tuple(value)
        if isinstance(value, tuple):
            return f"({self.text(value[0])},)" if len(value) == 1 else f"({', '.join(map(self.text, value))})"
        if isinstance(value, list):
            return f"[{', '.join(map(self.text, value))}]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{self.text(k)}: {self.text(v)}" for k, v in value.items()) + "}"
        if isinstance(value, slice):
            return f"slice({self.text(value.start)}, {self.text(value.stop)}, {self.text(value.step)})"
        if isinstance(value, Node):
            return value.name
        if value is None or value is Ellipsis or type(value) in (bool, int, float, complex, str, bytes):
            return repr(value)
        written = repr(value)
        if re.fullmatch(rf"{names.root()}(\.\w+)+", written) and names.resolve(written) is value:  # a dtype
            return self.known.add(written, value)
        if type(value).__name__ == "device" and written.startswith("device("):
            return written
        if callable(value) and hasattr(value, "__name__"):
            return self.known.add(names.qualified_name(value), value)
        return self.known.add(f"_{names.snake_case(type(value).__name__)}", value)

    def call(self, function: str, args: Any, kwargs: Any) -> str:
        """`function(a, key = b)`."""
        given = [self.text(a) for a in args]
        given += [f"{key} = {self.text(a)}" for key, a in kwargs.items() if names.is_name(key)]
        given += [f"**{{{key!r}: {self.text(a)}}}" for key, a in kwargs.items() if not names.is_name(key)]
        return f"{function}({', '.join(given)})"

    def attribute(self, base: str, path: str) -> str:
        """What a dotted name below something stands for: by `getattr` where a part is no name."""
        for part in path.split("."):
            base = f"{base}.{part}" if names.is_name(part) else f"getattr({base}, {_quoted(part)})"
        return base

    def node(self, node: Node) -> None:
        """Adds the lines of one node."""
        if self.last is None:
            self.last = _last_uses(node.graph)
        annotated = f" : {self._typed(node.type)}" if node.type is not None else ""
        if node.op == "placeholder":
            self._placeholder(node, annotated)
        elif node.op == "output":
            if node.type is not None:
                self.returned = f" -> {self._typed(node.type)}"
            value = _Written(self.text(node.args[0]), node.args[0])
            self.body.append(f"{self.codegen.generate_output(value)}\n")
        else:
            self.body.append(f"{self._assigned(node, annotated)}{self._let_go(node)}\n")

    def _typed(self, kind: Any) -> str:
        text = names_of_type(kind)
        if isinstance(kind, str):
            return repr(kind)
        if isinstance(kind, type) and not getattr(kind, "__args__", None):
            return self.known.add(text, kind)
        parts, origin = getattr(kind, "__args__", ()), getattr(kind, "__origin__", None)
        if not isinstance(kind, GenericAlias):
            origin = _SHOWN_AS.get(origin, origin)
        if (
            parts
            and origin not in (None, Callable)
            and all(isinstance(p, type) or hasattr(p, "__origin__") for p in parts)
        ):
            return f"{self.known.add(names_of_type(origin), origin)}[{','.join(map(self._typed, parts))}]"
        return self.known.add(f"type_{text}", kind)

    def _placeholder(self, node: Node, annotated: str) -> None:
        target = str(node.target)
        raw = target.replace("*", "")
        if not names.is_name(raw):
            raise ValueError(f"Graph.python_code: a placeholder's target must be a name, got {target!r}")
        default = f" = {self.text(node.args[0])}" if node.args else ""
        self.parameters.append(f"{target}{annotated}{default}")
        if raw != node.name:
            self.body.append(f"{node.name} = {raw}\n")

    def _assigned(self, node: Node, annotated: str) -> str:
        name = f"{node.name}{annotated}"
        if node.op == "get_attr":
            return f"{name} = {self.attribute(self.root, str(node.target))}"
        if node.op == "call_module":
            return (
                f"{name} = {self.call(self.attribute(self.root, str(node.target)), node.args, node.kwargs)}"
            )
        if node.op == "call_method":
            method = self.attribute(self.text(node.args[0]), str(node.target))
            return f"{name} = {self.call(method, node.args[1:], node.kwargs)}"
        function, args = node.target, node.args
        if not node.kwargs:
            if function in names.INFIX and len(args) == names.INFIX[function].count("{}"):
                return f"{name} = {names.INFIX[function].format(*map(self.text, args))}"
            if function in names.IN_PLACE and len(args) == 2:
                written = names.IN_PLACE[function].format(*map(self.text, args))
                return f"{written};  {name} = {self.text(args[0])}"
            if function is getattr and len(args) == 2 and names.is_name(args[1]):
                return f"{name} = {self.attribute(self.text(args[0]), args[1])}"
        assert callable(function)
        written = self.known.add(names.qualified_name(function, node._called), function)
        if node.meta.get("is_wrapped") and written not in self.known.wrapped:
            self.known.wrapped.append(written)
        return f"{name} = {self.call(written, args, node.kwargs)}"

    def _let_go(self, node: Node) -> str:
        assert self.last is not None
        done = [*self.last.get(node, ()), *([] if node.users else [node])]
        return f";  {' = '.join([n.name for n in done] + ['None'])}" if done else ""


class _Written:
    """The output's argument: its `repr` is its source."""

    def __init__(self, text: str, value: Any) -> None:
        self._text, self.value = text, value

    def __repr__(self) -> str:
        return self._text


def _quoted(text: str) -> str:
    """A text as source, in double quotes where that says the same."""
    return f'"{text}"' if text.isascii() and text.isprintable() and not set('"\\') & set(text) else repr(text)


def _last_uses(graph: Any) -> dict[Node, list[Node]]:
    """node -> the nodes whose values it is the last to use."""
    seen: set[Node] = set()
    last: dict[Node, list[Node]] = defaultdict(list)
    for user in reversed(graph.nodes):
        for used in user._input_nodes:
            if used not in seen:
                seen.add(used)
                last[user].append(used)
    return last


class _PyTreeInfo(NamedTuple):
    """How a program with dicts and lists of values among its arguments is called."""

    orig_args: list[str]
    in_spec: Any
    out_spec: Any


class PyTreeCodeGen(CodeGen):
    """Source whose arguments are trees: flattened at its beginning, put together where it returns."""

    def __init__(self, pytree_info: _PyTreeInfo) -> None:
        super().__init__()
        self.pytree_info = pytree_info

    def process_inputs(self, *inputs: Any) -> Any:
        return pytree.tree_leaves(inputs)

    def process_outputs(self, out: Any) -> Any:
        if not isinstance(out, (list, tuple)):
            out = [out]
        if self.pytree_info.out_spec is None:
            raise AssertionError("process_outputs: the tree of the outputs is not known")
        return pytree.tree_unflatten(list(out), self.pytree_info.out_spec)

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str) -> str:
        arguments = self.pytree_info.orig_args
        own = arguments if arguments and arguments[0] == "self" else ["self", *arguments]
        head = super().gen_fn_def(list(own), maybe_return_annotation)
        if not free_vars:
            return head
        given = [re.split(r"\s*[:=]", text)[0] for text in free_vars]
        tree = ", ".join(a for a in own if a != "self")
        return f"{head}\n    {', '.join(given)}, = fx_pytree.tree_flatten_spec([{tree}], self._in_spec)"

    def generate_output(self, output_args: Any) -> str:
        if self.pytree_info.out_spec is None:
            return super().generate_output(output_args)
        text = repr(output_args)
        value = getattr(output_args, "value", output_args)
        if not isinstance(value, (list, tuple)):
            text = f"[{text}]"
        return f"return pytree.tree_unflatten({text}, self._out_spec)"

    def additional_globals(self) -> list[tuple[str, Any]]:
        return [("fx_pytree", fx_pytree), ("pytree", pytree)]
