"""What a program assumes of its operands and of modes, because its function asked: checked at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.late import later
from kiln.tuples import NamedTuple

_SWITCHES = (
    "are_deterministic_algorithms_enabled is_deterministic_algorithms_warn_only_enabled "
    "get_deterministic_debug_mode is_warn_always_enabled get_num_interop_threads get_float32_matmul_precision"
)
MODES: dict[str, Callable[[], Any]] = {
    "is_grad_enabled": _core.grad_enabled,
    "is_inference_mode_enabled": lambda: _core.modes()[1],
    "is_autocast_enabled": lambda: _core.modes()[2] is not None,
    "get_autocast_dtype": lambda: later("kiln.amp.autocast_mode", "get_autocast_dtype")("cpu").name,
    "is_autocast_cache_enabled": later("kiln.amp.autocast_mode", "is_autocast_cache_enabled"),
    "get_default_dtype": lambda: _core.get_default_dtype().name,
    "get_num_threads": _core.get_num_threads,
    **{name: later("kiln.switches", name) for name in _SWITCHES.split()},
    "is_anomaly_enabled": _core.anomaly_enabled,
}


def _in_order(x: Any) -> bool:
    """Whether strides are those of elements in order, also along dims of one element."""
    expected = 1
    for size, stride in zip(reversed(tuple(x.shape)), reversed(x.stride())):
        if stride != expected:
            return False
        expected *= max(size, 1)
    return True


OF_TENSORS: dict[str, Callable[[Any], Any]] = {
    "is_contiguous": lambda x: x.is_contiguous(),
    "stride": _in_order,
    "storage_offset": lambda x: x.storage_offset() == 0,
    "offset": lambda x: x.storage_offset(),
    "_base": lambda x: x._base is None,
    "is_shared": lambda x: not x.is_shared(),
    "is_inference": lambda x: not x.is_inference(),
    "requires_grad": lambda x: x.requires_grad,
    "is_leaf": lambda x: x.is_leaf,
    "grad": lambda x: not (x.is_leaf or x.retains_grad) or x.grad is None,
    "retains_grad": lambda x: x.retains_grad,
    "output_nr": lambda x: x.output_nr,
    "type": lambda x: type(x).__name__,
}


def of_tensors() -> dict[str, Callable[[Any], Any]]:
    """What tensors answer, by what they are asked."""
    return OF_TENSORS


_TOLD = {
    ("is_contiguous", True): "must be contiguous",
    ("stride", True): "must have its elements in order in memory, by its strides",
    ("storage_offset", True): "must be where its storage begins (storage_offset() 0)",
    ("_base", True): "must be no view of another tensor",
    ("is_shared", True): "must not be in shared memory",
    ("is_inference", True): "must not be made in inference mode",
    ("requires_grad", True): "must require a gradient",
    ("requires_grad", False): "must require no gradient",
    ("is_leaf", True): "must be a leaf",
    ("is_leaf", False): "must be no leaf",
    ("grad", True): "must have no .grad",
    ("retains_grad", True): "must retain its gradient",
    ("retains_grad", False): "must not retain a gradient",
}
_ATTRIBUTE, OTHER = "attribute ", "other than"


def attribute(name: str) -> str:
    """What an attribute of the user's is called among what is asked."""
    return _ATTRIBUTE + name


def answer_of(operands: list[Any], which: int, what: str, answer: Any) -> Any:
    """What an operand answers now, as it is compared with the program's `answer`."""
    x = operands[which]
    if what.startswith(_ATTRIBUTE):
        held = vars(x)
        name = what[len(_ATTRIBUTE) :]
        return [held[name]] if name in held else []
    if what == OTHER:
        return answer if x is not operands[answer] else which
    return OF_TENSORS[what](x)


def holds(x: Any, what: str, answer: Any) -> bool:
    """Whether a tensor, or a mode where that is None, answers so; attributes are the same objects."""
    if x is None:
        return bool(MODES[what]() == answer)
    if what == "__dict__":
        held = vars(x)
        return held.keys() == answer.keys() and all(_is_as(held[k], v) for k, v in answer.items())
    if what.startswith(_ATTRIBUTE):
        held, name = getattr(x, "__dict__", {}), what[len(_ATTRIBUTE) :]
        if not answer or name not in held:
            return not answer and name not in held
        return _is_as(held[name], answer[0])
    return bool(OF_TENSORS[what](x) == answer)


def _is_as(held: Any, before: Any) -> bool:
    """Whether an attribute holds what it did: the same object, or an equal number or text."""
    return held is before or (is_plain(before) and type(held) is type(before) and bool(held == before))


class Condition(NamedTuple):
    """What a program assumes of an operand by its number, or of a mode (-1): "is_contiguous" is True."""

    which: int
    what: str
    answer: Any
    line: str  # of the program that asks
    name: str  # of the operand, or of the program

    def before(self, operands: list[Any]) -> None:
        """Raises where the function would be answered otherwise."""
        if self.which < 0:
            if (now := MODES[self.what]()) != self.answer:
                raise RuntimeError(
                    f"{self.name}: was made where {self.what}() is {self.answer}, here it is {now} "
                    f"({self.line} asks for it)"
                )
        elif answer_of(operands, self.which, self.what, self.answer) != self.answer:
            raise RuntimeError(f"{self.name} {self.told()}, as in the example ({self.line} asks for it)")

    def after(self, operands: list[Any], results: tuple[Any, ...]) -> None:
        """Nothing is asked of results."""

    def told(self) -> str:
        """It in words: "must be contiguous"."""
        if self.which < 0:
            return f"{self.what}() must be {self.answer}"
        if self.what.startswith(_ATTRIBUTE):
            name = self.what[len(_ATTRIBUTE) :]
            return f"must have {f'{name} {self.answer[0]!r}' if self.answer else f'no attribute {name}'}"
        if self.what == OTHER:
            return "must be another tensor than each of the other inputs"
        return _TOLD.get((self.what, self.answer), f"must have the {self.what} {self.answer}")


def is_plain(answer: Any) -> bool:
    """Whether an answer can be kept and compared: numbers, texts."""
    if isinstance(answer, list):
        return all(map(is_plain, answer))
    return answer is None or isinstance(answer, (bool, int, float, str))


def is_known(which: int, what: str, answer: Any, operands: int) -> bool:
    """Whether a file's condition is one that can be asked."""
    if which < 0:
        return which == -1 and what in MODES
    if which >= operands:
        return False
    if what == OTHER:
        return type(answer) is int and 0 <= answer < operands and answer != which
    return what in OF_TENSORS or (what.startswith(_ATTRIBUTE) and isinstance(answer, list))
