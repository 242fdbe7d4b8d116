"""What arguments are, said in other ways: sizes that vary by the tensors that have them, or by examples."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from kiln import _core
from kiln.tracing.dims import Dim
from kiln.tracing.settled import named, specs_like
from kiln.tracing.trees import alike, constants, flatten


class ShapesCollection:
    """Which sizes of which arguments vary, by the tensors themselves: for arguments in deep containers.

    `shapes[x] = (Dim("batch"), None)` or `shapes[x][0] = Dim("batch")`, then
    `export(model, args, dynamic_shapes=shapes)`. AssertionError for two different shapes of one tensor.

    >>> import kiln
    >>> x = kiln.ones(4, 3)
    >>> shapes = kiln.export.ShapesCollection()
    >>> shapes[x][0] = kiln.export.Dim("batch")
    >>> kiln.export.export(lambda d: d["x"] * 2, ({"x": x},), dynamic_shapes=shapes).range_constraints
    {'batch': (0, None)}
    """

    def __init__(self) -> None:
        self._shapes: dict[int, tuple[Any, Any]] = {}  # with the tensor, whose id is the key

    def __setitem__(self, t: Any, shape: Any) -> None:
        if not isinstance(t, _core.Tensor):
            raise AssertionError(f"Cannot assign shape to non-tensor type {type(t)}")
        _, known = self._shapes.setdefault(id(t), (t, shape))
        if known != shape:
            raise AssertionError(f"Shapes assigned to input do not match: expected {known}, got {shape}")

    def __getitem__(self, t: Any) -> Any:
        return self._shapes.setdefault(id(t), (t, {}))[1]

    def __len__(self) -> int:
        return len(self._shapes)

    def dynamic_shapes(
        self, m: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """What `dynamic_shapes` of `export` takes. ValueError for a tensor that is not among the arguments.

        The sizes of other arguments do not vary.
        """
        met: set[int] = set()

        def of(x: Any) -> Any:
            met.add(id(x))
            return self._shapes[id(x)][1] if id(x) in self._shapes else None

        found = {name: specs_like(x, of) for name, x in named(m, args, kwargs).items()}
        if missing := [f"{list(x.shape)}" for k, (x, _) in self._shapes.items() if k not in met]:
            raise ValueError(
                "Some tensors that were assigned shapes were not found in args: tensors of shapes "
                f"{', '.join(missing)}. Pass the tensors themselves, not copies."
            )
        return found


class AdditionalInputs:
    """Further arguments that a program must take: the sizes in which they differ from the example vary. Those
    that are equal to each other in all of them are so in every call.

    `more.add(args, kwargs)`, then `export(model, args, dynamic_shapes=more)`, which also runs the program on
    each of them.

    >>> import kiln
    >>> more = kiln.export.AdditionalInputs()
    >>> more.add((kiln.ones(7, 3),))
    >>> program = kiln.export.export(lambda x: x * 2, (kiln.ones(4, 3),), dynamic_shapes=more)
    >>> program(kiln.ones(5, 3)).shape
    kiln.Size([5, 3])
    """

    def __init__(self) -> None:
        self._examples: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def add(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        """Adds arguments. AssertionError for what is no tuple, or no dict."""
        if not isinstance(args, tuple):
            raise AssertionError(f"Representative args {args} must be a tuple")
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise AssertionError(f"Representative kwargs {kwargs} must be None or a dict")
        self._examples.append((args, dict(kwargs or {})))

    def dynamic_shapes(
        self, m: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """What `dynamic_shapes` of `export` takes. ValueError for arguments that differ otherwise too."""
        first = named(m, args, kwargs)
        leaves: list[Any] = []
        names: list[str] = []
        tree = flatten(first, leaves, names)
        others: list[list[Any]] = []
        for more in self._examples:
            found: list[Any] = []
            came = flatten(named(m, *more), found)
            looks = [(x.dtype, x.ndim) for x in leaves], [(x.dtype, x.ndim) for x in found]
            if not alike(constants(tree, type), constants(came, type)) or looks[0] != looks[1]:
                raise ValueError(
                    "AdditionalInputs: expected arguments like those of the example but for sizes, got "
                    f"{more[0]}, {more[1]}"
                )
            others.append(found)
        dims: dict[tuple[int, ...], Dim] = {}  # by what it is in the example and in each of the others

        def size(k: int, d: int) -> Dim | None:
            sizes = tuple([int(found[k].shape[d]) for found in (leaves, *others)])
            if len(set(sizes)) == 1:
                return None
            return dims.setdefault(sizes, Dim("_".join(re.findall(r"\w+", f"{names[k]} {d}"))))

        shapes = {id(x): tuple([size(k, d) for d in range(x.ndim)]) for k, x in enumerate(leaves)}
        return {name: specs_like(x, lambda t: shapes[id(t)]) for name, x in first.items()}

    def verify(self, ep: Any) -> None:
        """Runs the program on each of them, which raises where it does not take them."""
        for args, kwargs in self._examples:
            ep(*args, **kwargs)


@_core.Function
def register_dataclass(cls: type, *, serialized_type_name: str | None = None) -> None:
    """Checks that objects of a class can be arguments and results of a program: every dataclass can, without
    being registered. A program that was loaded, where the class may not be, gives dicts. ValueError for what
    is no dataclass.
    """
    if not isinstance(cls, type) or not hasattr(cls, "__dataclass_fields__"):
        raise ValueError(f"register_dataclass: expected a dataclass, got {cls!r}")
