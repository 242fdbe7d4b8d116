"""A captured program as an ONNX model.

graph, composites as nodes -> those without a form as what they are made of -> a rule per node -> bytes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kiln.graph.graph import Value
from kiln.graph.size import Size
from kiln.graph.slots import first_slots
from kiln.onnx import protobuf as pb
from kiln.onnx.builder import CURRENT, FORMAT, WITH_DRAWS, Builder
from kiln.onnx.forms import FORMS
from kiln.onnx.rules import needed, write_nodes
from kiln.serialization.source import pieces
from kiln.tracing.captured import Captured
from kiln.tracing.expand import expand
from kiln.version import __version__

LARGEST = (2 << 30) - (1 << 20)  # bytes of a message


def model_of(
    found: Captured,
    opset: int | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> bytes:
    """The file of a program. Its inputs are those of the program, then those of its tensors that it writes;
    its outputs the results, then what the written ones are afterwards. `inputs`, `outputs`: names of the
    first ones.

    ValueError for an op without a form, with the op and its line.
    """
    found.expect_plan("to_onnx")
    if opset is None:
        opset = WITH_DRAWS if found.random else CURRENT
    writer = _Writer(found, opset)
    writer.rename(inputs or (), outputs or ())
    return writer.model()


class _Writer:
    """The model under construction."""

    def __init__(self, found: Captured, opset: int) -> None:
        if not found.outputs and not found.mutated:
            raise ValueError(f"to_onnx: {found.name} gives no tensor, and a model has an output at least")
        self.found, self.builder = found, Builder(opset)
        self.graph = expand(found.graph, keep=FORMS)
        self.inputs: list[bytes] = []
        self.input_names = [x.name for x in found.inputs]
        self.output_names = list(found.outputs)

    def rename(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Other names of the first inputs and outputs."""
        for what, given, own in (("input", inputs, self.input_names), ("output", outputs, self.output_names)):
            if isinstance(given, str) or not all(isinstance(name, str) and name for name in given):
                raise TypeError(f"to_onnx: expected a list of {what} names, got {given!r}")
            if len(given) > len(own):
                raise ValueError(f"to_onnx: {len(given)} {what} names for {len(own)} {what}s")
            own[: len(given)] = given
        names = [*self.input_names, *self.output_names]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"to_onnx: two inputs or outputs are called '{twice[0]}'")

    def model(self) -> bytes:
        """The file."""
        b, found = self.builder, self.found
        results = self._results()
        b.taken.update(results, self.input_names, (s.name for s in found.state))
        self._inputs()
        write_nodes(b, needed(b, self.graph, self.graph.outputs[: len(results)]))
        outputs = [self._output(name, v) for name, v in zip(results, self.graph.outputs)]
        tensors = [data for name, data in b.tensors.items() if name in b.read]
        whole = pb.graph(found.name, b.nodes, tensors, self.inputs, outputs)
        if len(whole) > LARGEST:
            raise ValueError(
                f"to_onnx: {found.name} has {len(whole) >> 20} MiB, and a file holds 2 GiB at most"
            )
        return pb.model(whole, b.opset, "kiln", __version__)

    def _inputs(self) -> None:
        """Inputs and tensors of the program by their names."""
        b, found, firsts = self.builder, self.found, first_slots(self.graph)
        written = {k for kind, k in found.mutated if kind == "state"}
        count = len(found.inputs)
        for k, value in enumerate(self.graph.inputs):
            if value.weak:  # of random numbers
                b.names[id(value)] = name = b.fresh("stream")
                b.streams.add(name)
                continue
            name = self.input_names[k] if k < count else found.state[k - count].name
            b.names[id(value)] = name
            if k < count or k - count in written:
                self.inputs.append(pb.value_info(name, value.dtype, self._lengths(value)))
                for d, n in enumerate(value.shape):
                    if isinstance(n, Size):
                        b.scope.slots[firsts[k] + d] = name, d
            else:
                array = found.state[k - count].tensor.detach()
                raw = b"".join(map(bytes, pieces(array)))
                b.tensors[name] = pb.tensor(name, value.dtype, array.shape, raw)
                if found.state[k - count].kind == "constant" and not value.ndim and value.dtype in FORMAT:
                    b.numbers[name] = array.item()

    def _lengths(self, value: Value) -> Iterator[Any]:
        """Lengths of dims as a file has them: numbers and names."""
        for n in value.shape:
            yield self.found.size_text(n) if isinstance(n, Size) else n

    def _results(self) -> list[str]:
        """Names of the graph's outputs."""
        found = self.found
        after = [
            (self.input_names[k] if kind == "input" else found.state[k].name) + ".after"
            for kind, k in found.mutated
        ]
        return [*self.output_names, *after]

    def _output(self, name: str, value: Value) -> bytes:
        """An output under its own name."""
        b = self.builder
        b.add("Identity", b.fresh("Identity"), [b.of(value)], [name], {})
        return pb.value_info(name, value.dtype, self._lengths(value))
