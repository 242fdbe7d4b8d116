"""What a program's modules are called with: `ExportedProgram.module_call_graph`, `call_spec`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kiln.export.graph_module import node_names
from kiln.export.graph_signature import ConstantArgument, TensorArgument
from kiln.tracing.captured import Captured
from kiln.tracing.trees import Tree, build
from kiln.tuples import NamedTuple
from kiln.utils._pytree import TreeSpec, tree_flatten, tree_structure


class CallSpec(NamedTuple):
    """How arguments, ((args), {kwargs}), and results are built of tensors."""

    in_spec: TreeSpec | None
    out_spec: TreeSpec | None


@dataclass
class ModuleCallSignature:
    """What a call of a module is given and gives: tensors by their nodes, and how they are put together."""

    inputs: list[Any]
    outputs: list[Any]
    in_spec: TreeSpec
    out_spec: TreeSpec
    forward_arg_names: list[str] | None = None


@dataclass
class ModuleCallEntry:
    """A module of the model, or a further call of it (`name@1`), with its signature where that was kept."""

    fqn: str
    signature: ModuleCallSignature | None = None


def call_spec(found: Captured) -> CallSpec:
    """The description of a program's arguments and results."""
    return CallSpec(_spec(found.in_tree), _spec(found.out_tree))


def _spec(tree: Tree) -> TreeSpec:
    return tree_structure(build(tree, iter([0] * tree.leaves)))


def module_calls(found: Captured) -> list[ModuleCallEntry]:
    """The program itself, every module of the model, then further calls of those whose signature was kept."""
    in_spec, out_spec = call_spec(found)
    assert in_spec is not None and out_spec is not None
    own = ModuleCallSignature([], [], in_spec, out_spec, list(found.parameters))
    entries = [ModuleCallEntry("", own)]
    held = found.hierarchy
    if held is None:
        return entries
    kept: dict[str, list[ModuleCallSignature]] = {}
    names = _names(found) if any(c.in_tree is not None for c in held.calls) else {}
    for call in held.calls:
        if call.in_tree is not None and call.out_tree is not None:
            inputs, in_spec = _arguments(call.in_tree, [names.get(k, "") for k in call.given])
            outputs, out_spec = _arguments(call.out_tree, [names.get(k, "") for k in call.returned])
            made = ModuleCallSignature(inputs, outputs, in_spec, out_spec)
            kept.setdefault(call.module, []).append(made)
    for name, own_name_of in held.modules:
        entries.append(ModuleCallEntry(name, kept.get(own_name_of, [None])[0]))
    for name, signatures in kept.items():
        entries += [ModuleCallEntry(f"{name}@{k}", s) for k, s in enumerate(signatures) if k]
    return entries


def _names(found: Captured) -> dict[int, str]:
    """The node of `graph_module` that each input and node of the graph is."""
    nodes = node_names(found)
    assert found.graph is not None  # (which is made, or read, with the numbers)
    return {place: nodes[k] for place, k in found.numbers.items() if k in nodes}


def _arguments(tree: Tree, names: list[str]) -> tuple[list[Any], TreeSpec]:
    leaves, spec = tree_flatten(build(tree, iter([TensorArgument(n) for n in names])))
    return [x if isinstance(x, TensorArgument) else ConstantArgument("", x) for x in leaves], spec
