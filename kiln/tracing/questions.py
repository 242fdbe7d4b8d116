"""What a function asks of tensors and modes that is no value: their layout, their history, what is switched
on. A program would keep the answers of its example.

    layout     is_contiguous, stride, storage_offset ...: a condition of the program, checked at each call
    history    requires_grad, is_leaf, grad ...: refused; with on_data="check" a condition
    modes      is_grad_enabled, is_autocast_enabled, get_default_dtype ...: a condition

A stand-in lies in order from the first element of its memory on, whatever its example does; results of ops do
so in kiln too. So only arguments, parameters and views of these have a layout that a call may change. What
kiln's own functions ask is no question of the program's: they make ops of it, which are right for any answer.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from kiln import _core
from kiln.capture.pure.trace import asks
from kiln.capture.pure.values import user_line
from kiln.tracing.answers import OF_TENSORS, Condition, attribute
from kiln.tracing.captured import RECORDED, Modes
from kiln.tracing.reads import Reads

_LAYOUT = {
    "is_contiguous": "whether its elements lie in order",
    "stride": "its strides",
    "storage_offset": "where in its storage it begins",
    "is_shared": "whether other processes know its memory",
    "_base": "what it is a view of",
    "_is_view": "whether it is a view",
    "is_inference": "whether it was made in inference mode",
}
_HISTORY = {"requires_grad", "is_leaf", "grad_fn", "output_nr", "grad", "retains_grad"}
_NEVER = {
    "untyped_storage": "which may hold more than the tensor",
    "data_ptr": "where its memory lies",
    "_version": "how often its memory was written",
}
_OF_MODES = ("is_inference_mode_enabled", "is_autocast_enabled", "get_autocast_dtype")
_AS = {"_is_view": "_base", "grad_fn": "is_leaf"}  # what says the same


class Unknown(BaseException):
    """Whether gradients, or inference mode, are on depends on what the program itself has switched, which
    does not show: the function is to be followed from the modes that it is called in.
    """


class Questions(Reads):
    """The part of a recorder that is asked what is no value."""

    def __init__(self, name: str, on_data: str, has_values: bool) -> None:
        super().__init__(name, on_data, has_values)
        self.conditions: dict[tuple[int, str], tuple[Any, str]] = {}  # (operand or -1, what) -> answer, line
        self.given_back: set[int] = set()  # operands that contiguous() gave as they are
        self.gives_others = False  # whether it gives other objects instead
        self.modes_around = _core.modes()  # where the function is followed
        self.grad_around = self.modes_around[0]
        self.begins: Modes = RECORDED  # what it is followed with, so that steps have histories
        # of grad mode and inference mode: what was asked, what was on then, the line
        self.modes_asked: list[tuple[str, bool, str]] = []
        self.modes_told: list[bool] = []
        self.modes_shown: list[bool] | None = None  # what it is told, of a run from the modes around
        self._inner_leaves: set[int] = set()  # ids of parameters that the function makes

    def _alias_of(self, tensor: Any, others: list[Any]) -> Any:
        """As of a cell; a parameter that is made inside has no history either: its gradients are lost."""
        if not (tensor.requires_grad and tensor.is_leaf):
            return super()._alias_of(tensor, others)
        where = _core.place(tensor)[1:]
        found = next((x for x in others if _core.place(x)[1:] == where and x.dtype == tensor.dtype), None)
        if found is not None:
            self._inner_leaves.add(id(tensor))
        return found

    def expect_no_leaf(self, outputs: list[Any]) -> None:
        """Refuses a function that gives a parameter that it has made, which gets gradients."""
        if any(id(y) in self._inner_leaves for y in outputs):
            self.refuse("returns a tensor that it has made to get gradients (a Parameter)", "it")

    def asked(self, tensor: Any, what: str, frame: FrameType | None = None) -> None:
        """A tensor is asked for what is no value; `frame`: who asks."""
        if what == "sizes" or self._quiet or not asks(what, frame or sys._getframe(1)):
            return
        storage = _core.place(tensor)[0]
        own = self._stand_ins.get(storage)
        if what in _HISTORY:
            if own is not None or storage in self._made:
                self._history_asked(tensor, what)
        elif what in _NEVER:
            if own is not None or (what == "data_ptr" and storage in self._made):
                self.refuse(
                    f"asks {_call(what)} of a tensor, {_NEVER[what]}, which changes from call to call"
                )
        elif what == "is_inference" and storage in self._made:
            self._state(-1, "is_inference_mode_enabled", _core.modes()[1])
        elif own is not None:
            self._layout_asked(own[0], what)
            if tensor is not own[0] and what in ("is_contiguous", "storage_offset"):
                self._layout_asked(own[0], "stride")

    def asked_mode(self, what: str, answer: Any) -> Any:
        """The answer to a question about a mode or a switch, as the program is to see it."""
        if self._quiet or not asks(what, sys._getframe(1).f_back, True):
            return answer
        if what == "is_grad_enabled":
            return self._switch_asked(what, answer, 0)
        own = what in _OF_MODES and _core.modes()[1:] != (self.begins[1], self.modes_around[2])
        if what == "is_inference_mode_enabled":
            answer = self._switch_asked(what, answer, 1)
        if not own:  # what the program itself has switched is so in each call
            self._state(-1, what, getattr(answer, "name", answer))
        return answer

    def _switch_asked(self, what: str, now: bool, which: int) -> bool:
        at = len(self.modes_asked)
        self.modes_asked.append((what, now, user_line()))
        told, begun, around = now, self.begins[which], self.modes_around[which]
        if self.modes_shown is not None and at < len(self.modes_shown):
            told = self.modes_shown[at]
        elif begun != around and now == begun:
            raise Unknown
        self.modes_told.append(told)
        return told

    def state_modes(self, otherwise: list[tuple[str, bool, str]]) -> None:
        """A condition, if what the function was told depends on the mode that it is called in: `otherwise` is
        what was on in a run that began without gradients.
        """
        for (what, now, line), (_, other, _) in zip(self.modes_asked, otherwise):
            if now != other and what == "is_grad_enabled":
                self.conditions.setdefault((-1, what), (self.grad_around, line))

    def itself(self, tensor: Any) -> Any:
        """What contiguous() gives of a tensor in order: itself, where a call may have it copy. To see whether
        that matters, another object that holds the same.
        """
        real = issubclass(type(tensor), _core.Tensor)  # and no stand-in of symbolic sizes
        own = self._stand_ins.get(_core.place(tensor)[0]) if real else None
        if own is None or own[0] is not tensor:
            return tensor
        value = self.value(tensor)
        self.given_back.add(self._operand(tensor))
        if not self.gives_others:
            return tensor
        made = _core.Tensor._make_subclass(_core.Tensor, tensor, tensor.requires_grad)
        self._hold(made, value)
        return made

    def attribute_asked(self, tensor: Any, name: str, frame: FrameType) -> Any:
        """An attribute that the program may have given an argument."""
        held = vars(self._examples[id(tensor)]) if id(tensor) in self._examples else {}
        if name[:2] != "__" and asks(name, frame, scripted=True):
            self._state(self._operand(tensor), attribute(name), [held[name]] if name in held else [])
        if name not in held:
            raise AttributeError(f"'Tensor' object has no attribute {name!r}")
        return held[name]

    def _layout_asked(self, whole: Any, what: str) -> None:
        what = _AS.get(what, what)
        example = self._examples.get(id(whole))
        if self._has_values and example is not None and not OF_TENSORS[what](example):
            self.refuse(
                f"asks {_call(what)} of a tensor, {_LAYOUT[what]}; a trace answers as for tensors whose "
                "elements lie in order in memory of their own, which those of its example do not: give "
                "x.clone() as the example"
            )
        self.value(whole)
        self._state(self._operand(whole), what, True)

    def _history_asked(self, tensor: Any, what: str) -> None:
        """Whether gradients come to a tensor is decided by the call."""
        value = self.value(tensor)  # of what it is an alias
        if not tensor.dtype.is_floating_point or self._is_detached(tensor):
            return
        given = value if value < len(self.operands) and self.operands[value] is tensor else None
        if self.on_data != "check" or (given is None and not self.grad_around):
            self.refuse(f"reads {what}: the trace would keep the answer of its example")
        for k in self._sources(value):
            self._as_example(k, "requires_grad")
        if given is not None:
            self._as_example(given, _AS.get(what, what))
        else:
            self._state(-1, "is_grad_enabled", True)

    def _as_example(self, k: int, what: str) -> None:
        """An operand must be as the example is, which its stand-in answers for."""
        made = self.operands[k]
        self._quiet = True
        try:
            answer = OF_TENSORS[what](self._examples.get(id(made), made))
            own = OF_TENSORS[what](made)
        finally:
            self._quiet = False
        if answer != own:
            self.refuse(f"reads {what} of a tensor, which a trace cannot answer as its example does")
        self._state(k, what, answer)

    def _is_detached(self, tensor: Any) -> bool:
        viewed = self._views.get(id(tensor))
        while viewed is not None:
            if viewed.op is None:
                return True
            viewed = self._views.get(id(viewed.source))
        return False

    def _sources(self, value: int) -> list[int]:
        """The operands that a value is made of and that may have gradients."""
        wanted = {value}
        for step in reversed(self.steps):
            if wanted.intersection(step.outs):
                wanted.update(k for kind, k in step.args if kind == "value")
        return sorted(
            k for k in wanted if k < len(self.operands) and self.operands[k].dtype.is_floating_point
        )

    def _operand(self, tensor: Any) -> int:
        """The number of the operand that a tensor is."""
        return next(k for k, x in enumerate(self.operands) if x is tensor)

    def _state(self, k: int, what: str, answer: Any) -> None:
        self.conditions.setdefault((k, what), (answer, user_line()))

    def state_again(self, condition: Condition, operands: list[Any]) -> None:
        """A condition of a program that is called inside, of these operands."""
        if condition.which < 0:
            self._state(-1, condition.what, condition.answer)
            return
        x = operands[condition.which]
        own = self._stand_ins.get(_core.place(x)[0])
        if own is not None and own[0] is x and condition.what != "other than":
            self._state(self._operand(x), condition.what, condition.answer)
        condition.before(operands)
        if own is not None and own[0] is not x and condition.what in _LAYOUT:
            self._layout_asked(own[0], "stride")
        elif condition.what in _HISTORY:
            self._history_asked(x, condition.what)

    def stated(self, names: list[str]) -> list[Condition]:
        """The conditions, with the names of operands."""
        return [
            Condition(k, what, answer, line, self.name if k < 0 else names[k])
            for (k, what), (answer, line) in self.conditions.items()
        ]


def _call(what: str) -> str:
    return what if what in ("_base", "_version") else f"{what}()"
