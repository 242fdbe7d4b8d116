"""Anomaly mode: where what failed in backward, or gave NaN, was computed.

Every node made inside keeps the traceback of its call in `metadata["traceback_"]`, and in
`metadata["parent_"]` the node whose backward made it, if one did. kiln.compile records nothing: ops run
on their lines.
"""

from __future__ import annotations

import os
import traceback
from types import TracebackType
from typing import Any

from kiln import _core, ops
from kiln.errors import warn
from kiln.table.arguments import answered
from kiln.table.callables import name_constructor

_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_check_nan = True


def is_anomaly_enabled() -> bool:
    """Whether anomaly mode is on, in all threads."""
    return bool(answered("is_anomaly_enabled", _core.anomaly_enabled()))


def is_anomaly_check_nan_enabled() -> bool:
    """Whether anomaly mode, when it is on, raises for a gradient that is NaN."""
    return _check_nan


def set_anomaly_enabled(enabled: bool, check_nan: bool = True) -> None:
    """Switches anomaly mode on or off."""
    global _check_nan
    _core.set_anomaly(enabled)
    _check_nan = check_nan


class _Mode:
    """Puts back what was found."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found = is_anomaly_enabled(), is_anomaly_check_nan_enabled()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_anomaly_enabled(*self._found)


class detect_anomaly(_Mode):
    """Inside, an error in backward comes with a warning that holds the traceback of the op it belongs to.

    With `check_nan`, a gradient that is NaN raises RuntimeError, which also names the line where it arose.
    For debugging only: every op becomes much slower.

    >>> import kiln, warnings
    >>> warnings.simplefilter("ignore")
    >>> with kiln.autograd.detect_anomaly():
    ...     x = kiln.zeros(1, requires_grad=True)
    ...     (x.sqrt() * 0).backward()
    Traceback (most recent call last):
    RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.
    """

    __slots__ = ("check_nan",)

    def __init__(self, check_nan: bool = True) -> None:
        super().__init__()
        self.check_nan = check_nan
        warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should only be "
            "enabled for debugging."
        )

    def __enter__(self) -> None:
        set_anomaly_enabled(True, self.check_nan)


class set_detect_anomaly(_Mode):
    """Switches anomaly mode on or off at once; as a context manager it also puts back what it found."""

    __slots__ = ()

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        super().__init__()
        set_anomaly_enabled(mode, check_nan)

    def __enter__(self) -> None:
        pass


# -- what the core calls -----------------------------------------------------------------------------------


def note(node: Any, parent: Any) -> None:
    """A node was made, while `parent` (or None) was passed."""
    node.metadata["traceback_"] = [
        line.rstrip("\n")
        for frame in traceback.extract_stack()
        if not frame.filename.startswith(_HERE)
        for line in traceback.format_list([frame])
    ]
    if parent is not None:
        node.metadata["parent_"] = parent


def check(node: Any, gradients: tuple[Any, ...]) -> None:
    """Raises RuntimeError if one of the gradients a node gave is NaN."""
    if not _check_nan:
        return
    for k, g in enumerate(gradients):
        if g is None or not bool(ops.isnan(g).any()):
            continue
        raise RuntimeError(
            f"Function '{node.name()}' returned nan values in its {k}th output.{_origin(node)}"
        )


def tell(node: Any, _: None) -> None:
    """Warns that a node's backward failed, and says where its op was called."""
    text = f"Error detected in {node.name()}."
    told = "Traceback of forward call that caused the error:"
    while True:
        lines = node.metadata.get("traceback_")
        if lines is None:
            text += (
                " No forward pass information available. Enable detect anomaly during forward pass for more "
                "information."
            )
        else:
            text += f" {told}\n" + "\n".join(lines)
        if (node := node.metadata.get("parent_")) is None:
            break
        text += f"\n\nPrevious calculation was induced by {node.name()}."
        told = "Traceback of forward call that induced the previous calculation:"
    warn(text)


def _origin(node: Any) -> str:
    """Where a NaN arose that a node's derivative reads, as far back as saved values tell; "" for none."""
    place = ""
    while True:
        bad = [(kind, value) for kind, value in _saved(node) if bool(ops.isnan(value).any())]
        made = [value.grad_fn for kind, value in bad if kind == "input" and value.grad_fn is not None]
        if not made:
            if any(kind == "input" for kind, _ in bad):
                place = f"was given to {node.name()} at {node.line}"
            elif bad:
                place = f"was computed by {node.name()} at {node.line}"
            return place and f" A value that its derivative reads was NaN already; it {place}."
        node = made[0]
        place = f"was computed by {node.name()} at {node.line}"


def _saved(node: Any) -> list[tuple[str, Any]]:
    """What a node saved that may be NaN, with its kind."""
    try:
        found = [(kind, node.saved(kind, k)) for kind, k, *_ in node.facts()[6] if kind != "hidden"]
    except RuntimeError:  # changed since, or freed
        return []
    return [(kind, value) for kind, value in found if value.dtype.is_floating_point]


name_constructor(set_detect_anomaly)
name_constructor(detect_anomaly)
