"""Nodes of the graph, as `y.grad_fn` and what it leads to: how they are called, and what they show."""

from __future__ import annotations

from collections.abc import Callable
from re import sub
from typing import Any

from kiln import _core
from kiln.autograd.handles import HookHandle as HookHandle
from kiln.table import registry


class Node(_core.Node):
    """One recorded op, as backward will pass it.

    Beside its own attributes it has `_saved_` and the name of the op's parameter, for what it saved:
    `_saved_self` for the first, `_saved_result` for the result. A user's function's has those of its context.
    """

    __slots__ = ()

    def name(self) -> str:
        """The node's name, such as "MulBackward0"."""
        return type(self).__name__

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """The nodes the gradient goes to: pairs (node, output index)."""
        facts = self.facts()
        inputs = facts[5] if facts else ()
        return tuple([given[:2] for given in inputs if isinstance(given, tuple)])

    @property
    def requires_grad(self) -> bool:
        """True: what is recorded has a gradient."""
        return True

    def _sequence_nr(self) -> int:
        """Later nodes have larger numbers, and are passed earlier; a leaf's comes as soon as it can."""
        facts = self.facts()
        return facts[0] if facts else 2**64 - 1

    def __repr__(self) -> str:
        if self.line is not None:
            return f"<{self.name()} at {self.line}>"
        leaf = self.variable
        of = f" of a {leaf.dtype.name} tensor of shape {list(leaf.shape)}" if leaf is not None else ""
        return f"<{self.name()}{of}>"

    def __setattr__(self, name: str, value: Any) -> None:
        """Of a user's function's node they are the context's attributes."""
        if (context := self._context) is None:
            super().__setattr__(name, value)
        else:
            setattr(context, name, value)

    def __getattr__(self, name: str) -> Any:
        """What is not every node's: of its context, or what it saved."""
        context = self._context
        if context is not None:
            return context.saved_in(self) if name == "saved_tensors" else getattr(context, name)
        if name.startswith("_raw_saved_") and (place := saved_of(self).get(name.removeprefix("_raw_saved_"))):
            return SavedTensor(self, place)
        place = saved_of(self).get(name.removeprefix("_saved_")) if name.startswith("_saved_") else None
        value = self.saved(*place) if place else None
        if value is None:
            raise AttributeError(f"'{self.name()}' object has no attribute '{name}'")
        return value


class SavedTensor:
    """A tensor that a node saved, before anybody reads it: `_raw_saved_` and the parameter's name."""

    __slots__ = ("_node", "_place")

    def __init__(self, node: Node, place: tuple[str, int]) -> None:
        self._node, self._place = node, place

    def register_hooks(self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        """Keeps `pack_hook(tensor)` in its place; backward reads `unpack_hook` of that. Once for each.

        >>> import kiln
        >>> x = kiln.tensor([1.0, 2.0], requires_grad=True)
        >>> y = x**2
        >>> y.grad_fn._raw_saved_self.register_hooks(lambda t: t.tolist(), kiln.tensor)
        >>> y.sum().backward()
        >>> x.grad
        tensor([2., 4.])
        """
        self._node.pack(*self._place, pack_hook, unpack_hook)


def saved_of(node: Node) -> dict[str, tuple[str, int]]:
    """What an op's node may have saved, by PyTorch's names: "self", "other", "result"."""
    names: dict[str, tuple[str, int]] = {"result": ("output", 0)}
    facts = node.facts()
    record = registry.OPS.get(facts[1]) if facts else None
    operands = [p for p in record.params if p.kind != "S"] if record else []
    for k, param in enumerate(operands):
        if param.kind not in "TVN":  # lists and what may be missing: places are not theirs
            break
        names["self" if k == 0 else param.name] = "input", k
    return names


# Titles that are not made of the op's name, as PyTorch's op has another.
_TITLES = {
    "write": "CopySlices",
    **{
        name: f"{title}Backward0"
        for name, title in (
            ("add_at", "IndexAdd"), ("add_windows", "Col2Im"), ("affine_places", "AffineGridGenerator"),
            ("bounded", "Hardtanh"), ("class_margins", "MultiMarginLoss"), ("concat", "Cat"),
            ("convert", "ToCopy"), ("convolve", "Convolution"), ("convolve_input", "Convolution"),
            ("copy_at", "IndexCopy"), ("cross_entropy_classes", "NllLoss"), ("dropout_values", "Dropout"),
            ("entr", "SpecialEntr"), ("erfcx", "SpecialErfcx"), ("exponential_unit", "Celu"),
            ("fill_masked", "MaskedScatter"), ("filled", "Fill"), ("gated", "Glu"),
            ("gather_wrapped", "Gather"), ("i0e", "SpecialI0E"), ("i1", "SpecialI1"), ("i1e", "SpecialI1E"),
            ("largest", "Max"), ("layer_norm", "NativeLayerNorm"), ("log_ndtr", "SpecialLogNdtr"),
            ("logit_open", "Logit"), ("logsigmoid", "LogSigmoid"), ("middle", "Median"),
            ("ndtri", "SpecialNdtri"), ("neighbour", "Nextafter"), ("norm", "LinalgVectorNorm"),
            ("norm_along", "LinalgVectorNorm"), ("normalize_batch", "NativeBatchNorm"),
            ("normalize_groups", "NativeGroupNorm"), ("placed", "DiagEmbed"), ("polygamma_of", "Polygamma"),
            ("put_along", "Scatter"), ("reduce_along", "ScatterReduce"), ("relu6", "Hardtanh"),
            ("replaced", "NanToNum"), ("reshape", "View"), ("row_distances", "Cdist"),
            ("rows_at", "MaskedSelect"), ("sampled", "GridSampler"), ("selu", "Elu"),
            ("shrunk", "Softshrink"), ("sloped", "PreluKernel"), ("smallest", "Min"), ("square", "Pow"),
            ("std_mean_of", "StdMean"), ("surround", "ConstantPadNd"), ("take_at", "Index"),
            ("take_flat", "Take"), ("var_mean_of", "VarMean"), ("xlog1py", "SpecialXlog1Py"),
            ("zeta", "SpecialZeta"),
        )
    },
}  # fmt: skip
_PADS = {"reflect": "Reflection", "replicate": "Replication", "circular": "Circular"}
# those that PyTorch has one op of for each number of dims: the title of a structure
_BY_DIMS: dict[str, Callable[[Any], str]] = {
    "adaptive_max": lambda structure: f"AdaptiveMaxPool{len(structure[2])}DBackward0",
    "adaptive_mean": lambda structure: f"AdaptiveAvgPool{len(structure[2])}DBackward0",
    "extend": lambda structure: f"{_PADS[structure[1]]}Pad{len(structure[2])}DBackward0",
    "pool_max": lambda structure: f"MaxPool{structure[1]}DWithIndicesBackward0",
    "pool_mean": lambda structure: f"AvgPool{structure[1]}DBackward0",
}

_classes: dict[str, type[Node]] = {}  # by title


def class_of(name: str | None, structure: tuple[Any, ...] | None, of_user: bool) -> type[Node]:
    """The class of nodes of an op at a structure, of a user's function, or (without a name) of a leaf."""
    if name is None:
        title = "AccumulateGrad"
    elif of_user and "." not in name:  # those of kiln's own have the path of their function
        title = f"{name}Backward"
    else:
        title = _title(name, structure)
    if title not in _classes:
        _classes[title] = _core.node_class(f"kiln.autograd.graph.{title}", Node)
    return _classes[title]


def _title(name: str, structure: tuple[Any, ...] | None) -> str:
    """ "log1p" is "Log1PBackward0": made of the op's name, as PyTorch makes it."""
    if name in ("sum", "mean", "prod"):  # over everything it is PyTorch's 0, over dims its 1
        return f"{name.title()}Backward{int(structure is not None and structure[1] is not None)}"
    if name in _BY_DIMS and structure is not None:
        return _BY_DIMS[name](structure)
    words = sub("[A-Za-z]+", lambda word: word[0][0].upper() + word[0][1:], name)
    return _TITLES.get(name, sub("[_.]", "", words) + "Backward0")
