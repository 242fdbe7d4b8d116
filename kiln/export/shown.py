"""A program in words: `print(program)` and `python -m kiln show`."""

from __future__ import annotations

from collections import Counter

from kiln.export.program import ExportedProgram
from kiln.tracing.answers import Condition
from kiln.viz.words import amount


def described(program: ExportedProgram) -> str:
    """Inputs, outputs, sizes that vary, state, what ops it has."""
    found = program._captured
    graph = found.graph
    lines = [f"program {found.name}", "", "inputs"]
    for own in found.inputs:
        lines.append(f"  {own.name}: {own.dtype}[{', '.join(found.size_text(n) for n in own.shape)}]")
    lines += ["", "outputs"]
    for name, value in zip(found.outputs, graph.outputs):
        lines.append(f"  {name}: {value.dtype}[{', '.join(found.size_text(n) for n in value.shape)}]")
    for kind, k in found.mutated:
        lines.append(
            f"  {found.inputs[k].name if kind == 'input' else found.state[k].name}: written in place"
        )
    if found.dims or found.reasons:
        lines += ["", "sizes", *(f"  {dim!r}" for dim in found.dims.values())]
    lines += [f"  {name} is no size of its own: {told}" for name, told in found.reasons.items()]
    for guard in found.guards:
        sign = guard.sign if guard.answer else f"not {guard.sign}"
        lines.append(
            f"  {found.size_text(guard.left)} {sign} {found.size_text(guard.right)}   ({guard.line})"
        )
    conditions = [check for check in found.checks if isinstance(check, Condition)]
    if conditions:
        lines += ["", "conditions", *(f"  {c.name}: {c.told()}   ({c.line})" for c in conditions)]
    if found.random:
        lines += ["", f"draws {found.drawn} random numbers a call"]
    total = sum(s.tensor.numel() * s.tensor.element_size() for s in found.state)
    kinds = Counter(s.kind for s in found.state)
    told = ", ".join(f"{n} {kind}{'s' if n > 1 else ''}" for kind, n in kinds.items()) or "none"
    lines += ["", f"state: {told}, {amount(total)}"]
    for s in found.state:
        shape = ", ".join(map(str, s.tensor.shape))
        lines.append(f"  {s.name}: {s.tensor.dtype.name}[{shape}]")
    ops = Counter(n.op.name for n in graph.nodes if n.op.kind != "constant")
    lines += ["", "ops", "  " + ", ".join(f"{n} {name}" if n > 1 else name for name, n in ops.most_common())]
    return "\n".join(lines)
