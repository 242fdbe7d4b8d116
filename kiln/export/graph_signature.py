"""What the inputs and outputs of a program's graph are: `ExportedProgram.graph_signature`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.table.callables import name_helpers as _name_helpers
from kiln.tracing.captured import Captured

__all__ = [
    "ConstantArgument", "ExportGraphSignature", "InputKind", "InputSpec", "OutputKind", "OutputSpec",
    "TensorArgument",
]  # fmt: skip

_hint_missing(__name__)


@dataclass(frozen=True)
class TensorArgument:
    """A tensor, by the name of its node."""

    name: str


@dataclass(frozen=True)
class ConstantArgument:
    """A number, text or None."""

    name: str
    value: Any = None


def _check_argument(arg: Any) -> None:
    if not isinstance(arg, (TensorArgument, ConstantArgument)):
        raise AssertionError(f"expected valid arg type, got {type(arg)}")


class InputKind(Enum):
    """What an input of the graph is."""

    USER_INPUT = auto()
    PARAMETER = auto()
    BUFFER = auto()
    CONSTANT_TENSOR = auto()
    TOKEN = auto()  # a number that is drawn: a seed, or a position


class OutputKind(Enum):
    """What an output of the graph is."""

    USER_OUTPUT = auto()
    BUFFER_MUTATION = auto()
    PARAMETER_MUTATION = auto()
    USER_INPUT_MUTATION = auto()


@dataclass
class InputSpec:
    """An input: its node, and the qualified name of the parameter or buffer it is."""

    kind: InputKind
    arg: Any
    target: str | None
    persistent: bool | None = None

    def __post_init__(self) -> None:
        _check_argument(self.arg)

    def __str__(self) -> str:
        target = f" target={self.target!r}" if self.target is not None else ""
        kept = "" if self.persistent is None else f" persistent={self.persistent}"
        return f"{self.arg.name}: {self.kind.name}{target}{kept}"


@dataclass
class OutputSpec:
    """An output: its node, and what it is written into, by name."""

    kind: OutputKind
    arg: Any
    target: str | None

    def __post_init__(self) -> None:
        _check_argument(self.arg)

    def __str__(self) -> str:
        target = f" target={self.target!r}" if self.target is not None else ""
        return f"{self.arg.name}: {self.kind.name}{target}"


@dataclass
class ExportGraphSignature:
    """The inputs and outputs of a program's graph, in order."""

    input_specs: list[InputSpec] = field(default_factory=list)
    output_specs: list[OutputSpec] = field(default_factory=list)

    def _targets(self, kind: InputKind) -> tuple[str, ...]:
        return tuple([s.target for s in self.input_specs if s.kind is kind and s.target is not None])

    def _by_node(self, kind: InputKind) -> dict[str, str]:
        return {s.arg.name: s.target for s in self.input_specs if s.kind is kind and s.target is not None}

    def _written(self, kind: OutputKind) -> dict[str, str]:
        return {s.arg.name: s.target for s in self.output_specs if s.kind is kind and s.target is not None}

    @property
    def parameters(self) -> tuple[str, ...]:
        """The qualified names of the parameters."""
        return self._targets(InputKind.PARAMETER)

    @property
    def buffers(self) -> tuple[str, ...]:
        """The qualified names of the buffers."""
        return self._targets(InputKind.BUFFER)

    @property
    def non_persistent_buffers(self) -> tuple[str, ...]:
        """Those of them that `state_dict` leaves out."""
        return tuple([s.target for s in self.input_specs if s.persistent is False and s.target is not None])

    @property
    def lifted_tensor_constants(self) -> tuple[str, ...]:
        """The names of tensors that the model met."""
        return self._targets(InputKind.CONSTANT_TENSOR)

    @property
    def user_inputs(self) -> tuple[str, ...]:
        """The nodes of the arguments."""
        return tuple([s.arg.name for s in self.input_specs if s.kind is InputKind.USER_INPUT])

    @property
    def user_outputs(self) -> tuple[str, ...]:
        """The nodes of the results."""
        return tuple([s.arg.name for s in self.output_specs if s.kind is OutputKind.USER_OUTPUT])

    @property
    def inputs_to_parameters(self) -> dict[str, str]:
        """Node -> the parameter it is."""
        return self._by_node(InputKind.PARAMETER)

    @property
    def inputs_to_buffers(self) -> dict[str, str]:
        """Node -> the buffer it is."""
        return self._by_node(InputKind.BUFFER)

    @property
    def inputs_to_lifted_tensor_constants(self) -> dict[str, str]:
        """Node -> the constant it is."""
        return self._by_node(InputKind.CONSTANT_TENSOR)

    @property
    def buffers_to_mutate(self) -> dict[str, str]:
        """Node of what a buffer becomes -> the buffer."""
        return self._written(OutputKind.BUFFER_MUTATION)

    @property
    def parameters_to_mutate(self) -> dict[str, str]:
        """Node of what a parameter becomes -> the parameter."""
        return self._written(OutputKind.PARAMETER_MUTATION)

    @property
    def user_inputs_to_mutate(self) -> dict[str, str]:
        """Node of what an argument becomes -> the argument."""
        return self._written(OutputKind.USER_INPUT_MUTATION)

    def __str__(self) -> str:
        return "\n".join(
            ["", "# inputs", *map(str, self.input_specs), "", "# outputs", *map(str, self.output_specs), ""]
        )


_LETTER = {"parameter": "p", "buffer": "b", "constant": "c"}
_KINDS = {
    "parameter": InputKind.PARAMETER,
    "buffer": InputKind.BUFFER,
    "constant": InputKind.CONSTANT_TENSOR,
}


def input_specs(found: Captured) -> list[InputSpec]:
    """The inputs of a program's graph: parameters, buffers, constants, arguments, numbers that are drawn."""
    taken: set[str] = set()

    def name(text: str) -> TensorArgument:
        plain = re.sub(r"\W+", "_", text).strip("_") or "x"
        own, k = plain, 0
        while own in taken:
            k += 1
            own = f"{plain}_{k}"
        taken.add(own)
        return TensorArgument(own)

    specs = []
    for kind in _KINDS:
        for s in found.state:
            if s.kind == kind:
                kept = s.name not in found.unsaved if kind == "buffer" else None
                specs.append(InputSpec(_KINDS[kind], name(f"{_LETTER[kind]}_{s.name}"), s.name, kept))
    specs += [InputSpec(InputKind.USER_INPUT, name(x.name), None) for x in found.inputs]
    return specs + [InputSpec(InputKind.TOKEN, name(kind), None) for kind, _ in found.random]


def output_kind(found: Captured, kind: str, which: int) -> tuple[OutputKind, str]:
    """What a value that is written is written into."""
    if kind == "input":
        return OutputKind.USER_INPUT_MUTATION, found.inputs[which].name
    state = found.state[which]
    is_parameter = state.kind == "parameter"
    return OutputKind.PARAMETER_MUTATION if is_parameter else OutputKind.BUFFER_MUTATION, state.name


_name_helpers(globals(), __name__)
