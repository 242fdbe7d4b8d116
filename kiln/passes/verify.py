"""Every rule of groups and plans, checked after the passes that make them (of graphs: kiln/graph/verify.py).

groups      are numbered as they stand; what runs before what is closed, and nothing runs before itself
arrays      are written by the groups that say so; a group reads those whose writers all run before it
nodes       what outputs need is computed: in one group where it is an array, else wherever it is read
frames      what is read, and where roots go, is strided over the dims of the group's frame
parts       accumulators are left by one group, which runs before the one that combines them
updates     reads of an input's memory come before the writes to it, or are at their very point
outputs     are written, or in memory already

plan        kernels and buffers are those there are; a temporary is written before it is read, freed once, and
            not used again; every output is written
"""

from __future__ import annotations

from collections import Counter

from kiln.graph.graph import Node
from kiln.graph.verify import VerifyError
from kiln.passes.explore import ALONE
from kiln.passes.group import Fusion, Group
from kiln.passes.hazards import at_its_point
from kiln.passes.launch import Kernel, NestKernel
from kiln.passes.layout import Layout, resolve
from kiln.passes.plan import Call, Free, Launch, Plan
from kiln.passes.rewrite import reachable
from kiln.table.kinds import VIEWS

Written = dict[int, int]  # by the id of an array: the groups that write it, as bits


def _require(condition: object, message: str) -> None:
    if not condition:
        raise VerifyError(message)


def verify_fusion(fusion: Fusion) -> Fusion:
    """Raises VerifyError at the first rule the groups break; else returns them."""
    _verify_order(fusion)
    written = _written(fusion)
    for group in fusion.groups:
        _verify_reads(fusion, group, written)
        _verify_frame(fusion, group)
        _verify_parts(fusion, group)
    _verify_nodes(fusion)
    _verify_updates(fusion, written)
    for j, array in enumerate(fusion.outputs):
        there = array.update >= 0 and array.value is fusion.graph.inputs[array.update]
        _require(there or written.get(id(array), 0), f"output {j}: no group writes it")
    return fusion


def _verify_order(fusion: Fusion) -> None:
    for k, group in enumerate(fusion.groups):
        _require(group.number == k, f"group {k}: its number is {group.number}")
        _require(not group.before & group.bit, f"group {k}: runs before itself")
        direct = group.before
        while direct:  # what runs before another need not be looked at again
            other = fusion.groups[direct.bit_length() - 1]
            closed = not other.before & ~group.before
            _require(closed, f"group {k}: runs after {other.number}, not after all that {other.number} does")
            direct &= ~(other.before | other.bit)


def _written(fusion: Fusion) -> Written:
    """Who writes each array; raises where the array says otherwise."""
    found: Written = {}
    arrays = {id(a): a for a in (*fusion.explorer.arrays.values(), *fusion.outputs)}
    for group in fusion.groups:
        alone = [fusion.explorer.arrays[id(n.out)] for n in group.nodes if n.op.kind in ALONE]
        for array in (*(root.array for root in group.roots), *alone):
            _require(id(array) in arrays, f"group {group.number}: writes an array that no value has")
            found[id(array)] = found.get(id(array), 0) | group.bit
    for key, bits in found.items():
        stated = arrays[key].writers
        _require(bits == stated, f"the array of {arrays[key].value!r}: written by {bits:b}, says {stated:b}")
    return found


def _verify_reads(fusion: Fusion, group: Group, written: Written) -> None:
    for read in group.reads:
        if read.raw:
            _require(read.value.node is None, f"group {group.number}: reads {read.value!r} as an input")
            continue
        array = fusion.explorer.arrays.get(id(read.value))
        _require(array is not None, f"group {group.number}: reads {read.value!r}, which is no array")
        writers = written.get(id(array), 0)
        _require(writers, f"group {group.number}: reads {read.value!r}, which nobody writes")
        early = writers & ~group.before
        _require(not early, f"group {group.number}: reads {read.value!r} before it is written")


def _verify_frame(fusion: Fusion, group: Group) -> None:
    frame = group.frame
    for read in group.reads if group.kind == "nest" else ():
        inside = read.elsewhere or read.layout.sizes == frame.dims
        _require(
            inside, f"group {group.number}: {read.value!r} is read over {read.layout.sizes}, not its frame"
        )
    for root in group.roots if frame.mode != "blocks" and group.kind not in ALONE else ():
        chain = fusion.explorer.chain_to(root.value.shape, frame)
        placed = isinstance(resolve(root.target(), chain), Layout)
        _require(placed, f"group {group.number}: {root.value!r} has no place in its frame")


def _verify_parts(fusion: Fusion, group: Group) -> None:
    for part in group.parts:
        left = [g for g in fusion.groups if any(p is part for p in g.folds)]
        _require(len(left) == 1, f"group {group.number}: {len(left)} groups leave its accumulators")
        _require(
            left[0].bit & group.before, f"group {group.number}: combines accumulators before they are left"
        )


def _verify_nodes(fusion: Fusion) -> None:
    """Every node is computed by a kernel, and an array's by one alone. Values written in parts, views and
    numbers are left out.
    """
    arrays, needed = fusion.explorer.arrays, reachable(fusion.graph.outputs)
    computed: Counter[int] = Counter()  # by the id of a value: how many groups compute it
    for group in fusion.groups:
        own = {id(v) for v in group.members} | {id(n.out) for n in group.nodes}
        computed.update(own)
        computed.update(key for key in group.inline if key not in own and key not in arrays)
    for k, node in enumerate(fusion.graph.nodes):
        groups = computed[id(node.out)]
        if id(node.out) not in needed or node.op.kind in VIEWS or node.out.weak:
            continue
        if id(node.out) not in arrays:
            _require(groups, f"node {k} ({node.op.name}): in no group")
        elif not _in_parts(node):
            _require(groups == 1, f"node {k} ({node.op.name}): an array, computed by {groups} groups")


def _in_parts(node: Node) -> bool:
    """Whether an op's result is stored part by part."""
    return node.op.kind in ("concat", "embed", "write")


def _verify_updates(fusion: Fusion, written: Written) -> None:
    readers: dict[int, list[Group]] = {}
    for group in fusion.groups if fusion.graph.updates else ():
        for key in {id(read.value) for read in group.reads if read.raw}:
            readers.setdefault(key, []).append(group)
    for j, i in fusion.graph.updates.items():
        array = fusion.outputs[j]
        for writer in fusion.members(written.get(id(array), 0)):
            for reader in readers.get(id(fusion.graph.inputs[i]), ()):
                before = reader.bit & writer.before
                fits = at_its_point(fusion, writer, array) if reader is writer else before
                where = f"group {reader.number}: reads input {i}"
                _require(fits, f"{where} after group {writer.number} has written output {j} there")


def verify_plan(plan: Plan) -> Plan:
    """Raises VerifyError at the first rule the plan breaks; else returns it."""
    written: set[int] = set()
    freed: set[int] = set()
    for k, step in enumerate(plan.steps):
        if isinstance(step, Free):
            temp = plan.buffers[step.buffer].kind == "temp" and step.buffer not in freed
            _require(
                temp and step.buffer in written, f"step {k}: frees buffer {step.buffer}, no temporary in use"
            )
            freed.add(step.buffer)
            continue
        if isinstance(step, Call):
            modes = ["in"] * len(step.inputs) + ["out"] * (len(step.pointers) - len(step.inputs))
        else:
            _require(0 <= step.kernel < len(plan.kernels), f"step {k}: there is no kernel {step.kernel}")
            modes = _modes(plan.kernels[step.kernel], len(step.pointers))
        _verify_launch(plan, step, modes, f"step {k}", written, freed)
    for b, buffer in enumerate(plan.buffers):
        _require(buffer.kind != "temp" or b in freed, f"buffer {b}: never freed")
        _require(buffer.kind != "output" or b in written, f"buffer {b}: an output that no launch writes")
    return plan


def _verify_launch(
    plan: Plan, step: Launch | Call, modes: list[str], where: str, written: set[int], freed: set[int]
) -> None:
    """Adds to `written` what the launch may write."""
    _require(
        len(modes) == len(step.pointers), f"{where}: {len(step.pointers)} pointers, {len(modes)} operands"
    )
    buffers = [b for b, _, _ in step.pointers]
    for b, mode in zip(buffers, modes):
        _require(0 <= b < len(plan.buffers), f"{where}: there is no buffer {b}")
        _require(b not in freed, f"{where}: buffer {b} is freed already")
        ready = mode != "in" or plan.buffers[b].kind == "input" or b in written
        _require(ready, f"{where}: reads buffer {b} before anything writes it")
    written.update(b for b, mode in zip(buffers, modes) if mode != "in")


def _modes(kernel: Kernel, count: int) -> list[str]:
    """How a kernel uses each pointer, as far as it tells."""
    if isinstance(kernel, NestKernel):
        return [operand.mode for operand in kernel.nest.operands]
    return ["?"] * count
