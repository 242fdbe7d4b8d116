"""A module whose `forward` is written from a graph."""

from __future__ import annotations

import copy
import itertools
import linecache
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kiln import _core
from kiln.absent import hint_missing as _hint_missing
from kiln.fx import names
from kiln.fx.codegen import PythonCode, PyTreeCodeGen
from kiln.fx.graph import Graph
from kiln.nn import Module as _Module
from kiln.nn import Parameter as _Parameter
from kiln.table.callables import name_helpers as _name_helpers

__all__ = ["GraphModule"]

_USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"
_numbers = itertools.count()


class _CodeOnlyModule(_Module):
    """A module with the attributes it is given and no program: what one is traced from again."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__()
        self.__dict__.update(body)


def _copy_attr(from_module: Any, to_module: Any, target: str) -> None:
    """Copies an attribute by its dotted name, with modules on the way that are missing."""
    *above, last = target.split(".")
    for name in above:
        found, place = getattr(from_module, name), getattr(to_module, name, None)
        if found is place:
            return
        if place is None:
            place = _Module()
            setattr(to_module, name, place)
        from_module, to_module = found, place
    held = getattr(from_module, last)
    if _is_buffer(held):
        to_module.register_buffer(last, held)
    else:
        setattr(to_module, last, held)


def _is_buffer(held: Any) -> bool:
    return isinstance(held, _core.Tensor) and not isinstance(held, _Parameter)


def _assign_attr(held: Any, to_module: Any, target: str) -> None:
    """Assigns an attribute by its dotted name, with modules on the way that are missing."""
    *above, last = target.split(".")
    for name in above:
        place = getattr(to_module, name, None)
        if place is None:
            place = _Module()
            setattr(to_module, name, place)
        to_module = place
    if _is_buffer(held):
        to_module.register_buffer(last, held)
    else:
        setattr(to_module, last, held)


def _compiled(code: PythonCode, name: str) -> Callable[..., Any]:
    """The function of a graph's source; tracebacks show its lines."""
    file = f"<eval_with_key>.{next(_numbers)}"
    known: dict[str, Any] = code.globals.copy()
    linecache.cache[file] = (len(code.src), None, code.src.splitlines(keepends=True), file)
    exec(compile(code.src, file, "exec"), known)
    function: Callable[..., Any] = known.pop(name)
    return function


class GraphModule(_Module):
    """A module that runs a graph: `root` holds the parameters and submodules that its nodes name; those are
    taken over. `graph` may be changed; `recompile()` then makes `forward` and `code` anew. Each object has a
    class of its own, called `class_name`.

    >>> import kiln
    >>> class Twice(kiln.nn.Module):
    ...     def forward(self, x):
    ...         return x + x
    >>> m = kiln.fx.symbolic_trace(Twice())
    >>> print(m.code.strip())
    def forward(self, x):
        add = x + x;  x = None
        return add
    >>> m(kiln.ones(2))
    tensor([2., 2.])
    """

    def __new__(cls: type[GraphModule], *args: Any, **kwargs: Any) -> GraphModule:
        own = next(t for t in cls.__mro__ if not t.__dict__.get("_kiln_one_object"))

        # a class of its own, whose `forward` it is
        made = type(own.__name__, (own,), {"_kiln_one_object": True, "__module__": own.__module__})
        instance: GraphModule = super().__new__(made)
        return instance

    def __init__(self, root: Any, graph: Graph, class_name: str = "GraphModule") -> None:
        super().__init__()
        type(self).__name__ = class_name
        if isinstance(root, _Module):
            self.training = root.training
            targets = [str(n.target) for n in graph.nodes if n.op in ("get_attr", "call_module")]
            for target in dict.fromkeys(targets):
                _copy_attr(root, self, target)
            kept = getattr(root, "meta", {})
            self.meta = copy.copy(kept) if isinstance(kept, dict) else {}
        elif isinstance(root, dict):
            wanted = []
            for node in graph.nodes:
                if node.op in ("get_attr", "call_module"):
                    if node.target not in root:
                        raise RuntimeError(
                            f"Node {node} referenced target {node.target} but that target was not provided "
                            "in ``root``!"
                        )
                    wanted.append(str(node.target))
            for target in sorted(dict.fromkeys(wanted), key=lambda t: t.count(".")):
                _assign_attr(root[target], self, target)
            self.meta = {}
        else:
            raise RuntimeError(f"Unsupported type {root} passed for root!")
        self.graph = graph
        self._tracer_cls = graph._tracer_cls
        self._tracer_extras = graph._tracer_extras or {}

    @property
    def graph(self) -> Graph:
        """The program. Assigning another one makes `forward` anew."""
        found: Graph = self.__dict__["_graph"]
        return found

    @graph.setter
    def graph(self, g: Graph) -> None:
        if not isinstance(g, Graph):
            raise AssertionError(f"Expected a Graph instance, but got {type(g).__name__}")
        self.__dict__["_graph"] = g
        g.owning_module = self
        self.recompile()

    @property
    def code(self) -> str:
        """The source of `forward`."""
        if "_code" not in self.__dict__:
            raise RuntimeError("GraphModule.code: no source was written yet, recompile() does")
        return str(self.__dict__["_code"])

    def recompile(self) -> PythonCode:
        """Makes `forward` and `code` of the graph as it is now."""
        if isinstance(self.graph._codegen, PyTreeCodeGen):
            self._in_spec = self.graph._codegen.pytree_info.in_spec
            self._out_spec = self.graph._codegen.pytree_info.out_spec
        written = self.graph.python_code(root_module="self")
        self.__dict__["_code"] = written.src
        forward = _compiled(written, self.graph._codegen._func_name)
        type(self).forward = forward  # type: ignore[method-assign]
        return written

    def add_submodule(self, target: str, m: Any) -> bool:
        """Adds a submodule under a dotted name, with empty modules on the way; False if something else is
        there.
        """
        *above, last = target.split(".")
        module: Any = self
        for name in above:
            found = getattr(module, name, None)
            if found is None:
                found = _Module()
                setattr(module, name, found)
            if not isinstance(found, _Module):
                return False
            module = found
        module.add_module(last, m)
        return True

    def delete_submodule(self, target: str) -> bool:
        """Takes out the submodule of a dotted name; False if there is none."""
        *above, last = target.split(".")
        module: Any = self
        for name in above:
            module = getattr(module, name, None)
            if not isinstance(module, _Module):
                return False
        if not isinstance(getattr(module, last, None), _Module):
            return False
        delattr(module, last)
        return True

    def delete_all_unused_submodules(self) -> None:
        """Takes out submodules that no node names, below one that is called or above one that is used."""
        used: list[str] = []
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                parts = str(node.target).split(".")
                used += [".".join(parts[:k]) for k in range(1, len(parts) + 1)]
                if node.op == "call_module":
                    try:
                        below = self.get_submodule(str(node.target))
                    except AttributeError:
                        continue
                    used += [f"{node.target}.{name}" for name, _ in below.named_modules() if name]
        for name in [name for name, _ in self.named_modules() if name and name not in used]:
            self.delete_submodule(name)

    def print_readable(
        self,
        print_output: bool = True,
        include_stride: bool = False,
        include_device: bool = False,
        colored: bool = False,
        **more: Any,
    ) -> str:
        """The source as a class, with those of submodules that are graphs too; printed and returned."""
        head = f"class {type(self).__name__}({names.root()}.nn.Module):\n"
        lines = self.code.strip().splitlines()
        if not any(node.stack_trace for node in self.graph.nodes):
            at = next(k for k, line in enumerate(lines) if line.startswith("def ")) + 1
            lines.insert(at, "    # No stacktrace found for following nodes")
        text = head + "".join(f"    {line}\n" if line.strip() else "\n" for line in lines)
        for name, module in self.named_children():
            if isinstance(module, GraphModule):
                inner = module.print_readable(print_output=False).splitlines()
                inner[0] = f"class {name}({names.root()}.nn.Module):"
                text += "\n" + "".join(f"    {line}\n" if line else "\n" for line in inner)
        if print_output:
            print(text)
        return text

    def to_folder(self, folder: Any, module_name: str = "FxModule") -> None:
        """Writes the source and the state of the module into a folder, as a package with that class."""
        kiln = names.root_module()
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        kiln.save(dict(self.named_children()), place / "modules.pt")
        state = {k: v for k, v in self.state_dict().items() if "." not in k}
        kiln.save(state, place / "state_dict.pt")
        written = self.graph.python_code("self")
        foreign = sorted(n for n, v in written.globals.items() if n not in names.always_there())
        if foreign:
            raise NotImplementedError(
                f"GraphModule.to_folder: the source uses {', '.join(foreign)}, which it cannot import: "
                "pickle the module instead"
            )
        root = names.root()
        body = "".join(f"    {line}\n" if line.strip() else "\n" for line in written.src.strip().splitlines())
        (place / "module.py").write_text(
            f"from math import inf, nan\nfrom pathlib import Path\n\nimport {root}\n"
            f"from {root} import device\n\n\nclass {module_name}({root}.nn.Module):\n"
            "    def __init__(self):\n        super().__init__()\n        here = Path(__file__).parent\n"
            f"        for name, module in {root}.load(here / 'modules.pt', weights_only=False).items():\n"
            "            setattr(self, name, module)\n"
            f"        for name, value in {root}.load(here / 'state_dict.pt').items():\n"
            f"            setattr(self, name, {root}.nn.Parameter(value))\n\n{body}"
        )
        (place / "__init__.py").write_text("from .module import *\n")

    def __reduce__(self) -> Any:
        own = next(t for t in type(self).__mro__ if not t.__dict__.get("_kiln_one_object"))
        state = {k: v for k, v in self.__dict__.items() if k not in ("_graph", "_code")}
        return _loaded, (own, state, self.graph, type(self).__name__)

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphModule:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        for key, value in self.__dict__.items():
            if key not in ("_graph", "_code"):
                made.__dict__[key] = copy.deepcopy(value, memo)
        made.graph = copy.deepcopy(self.graph, memo)
        made._tracer_cls = self._tracer_cls
        return made

    def __copy__(self) -> GraphModule:
        made = type(self).__new__(type(self))
        made.__dict__.update({k: v for k, v in self.__dict__.items() if k not in ("_graph", "_code")})
        for kind in ("_parameters", "_buffers", "_modules"):
            made.__dict__[kind] = copy.copy(self.__dict__[kind])
        made.graph = self.graph
        return made

    def _replicate_for_data_parallel(self) -> GraphModule:
        return copy.copy(self)

    def __str__(self) -> str:
        hint = "# To see more debug info, please use `graph_module.print_readable()`"
        return f"{super().__repr__()}\n{self.code}\n{hint}"

    def _get_name(self) -> str:
        return type(self).__name__


def _loaded(own: type[GraphModule], state: dict[str, Any], graph: Graph, name: str) -> GraphModule:
    made = own.__new__(own)
    made.__dict__.update(state)
    type(made).__name__ = name
    made.graph = graph
    return made


_name_helpers(globals(), __name__)
_hint_missing(__name__)
