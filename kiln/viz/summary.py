"""`kiln.summary`: the layers of a model, with shapes, parameters, multiply-adds and memory."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from kiln import _core
from kiln.autograd import watch
from kiln.autograd.grad_mode import no_grad
from kiln.capture.flops import multiply_adds
from kiln.errors import describe, message
from kiln.ops.creation.constants import zeros
from kiln.ops.random.sampling import rand
from kiln.table.callables import hide_frames
from kiln.viz import words

_NONE = "--"


class Layer:
    """A row: a module by its name in the one around it. `parameters` and `multiply_adds` are those of no row
    below it, so that each column adds up.
    """

    def __init__(self, name: str, module: Any, depth: int, shared: bool) -> None:
        self.name, self.kind, self.depth = name, type(module).__name__, depth
        self.shared = shared  # stands above under another name, where it is counted
        self.calls = 0
        self.inputs = self.outputs = ""  # shapes, of the first call
        self.parameters = self.trainable = 0
        self.multiply_adds = 0
        self.output_bytes = 0  # of all calls

    def __repr__(self) -> str:
        return f"<Layer {self.name}: {self.kind}, {self.inputs} -> {self.outputs}>"


class Summary:
    """What `kiln.summary` found; printed, a table. A notebook shows it as one.

    `layers` are its rows; `total_params`, `trainable_params`, `total_mult_adds` count; `total_input`,
    `total_output_bytes` (of layers that call no others) and `total_param_bytes` are bytes.
    """

    def __init__(self, layers: list[Layer], ran: bool, totals: dict[str, int]) -> None:
        self.layers, self.ran = layers, ran
        self.total_params = totals["parameters"]
        self.trainable_params = totals["trainable"]
        self.total_param_bytes = totals["parameter bytes"]
        self.total_buffer_bytes = totals["buffer bytes"]
        self.total_mult_adds = totals["multiply-adds"]
        self.total_input = totals["input bytes"]
        self.total_output_bytes = totals["output bytes"]

    def _titles(self) -> list[str]:
        shapes = ["Input", "Output"] if self.ran else []
        return ["Layer", *shapes, "Parameters", *(["Multiply-adds"] if self.ran else [])]

    def _cells(self, layer: Layer) -> list[str]:
        often = f" {layer.calls}x" if layer.calls > 1 else ""
        cells = [f"{layer.name} ({layer.kind}){often}"]
        if self.ran:
            cells += [layer.inputs or _NONE, layer.outputs or _NONE]
        cells.append("shared" if layer.shared else f"{layer.parameters:,}" if layer.parameters else _NONE)
        if self.ran:
            cells.append(f"{layer.multiply_adds:,}" if layer.multiply_adds else _NONE)
        return cells

    def _totals(self) -> list[str]:
        frozen = self.total_params - self.trainable_params
        lines = [
            f"Parameters: {self.total_params:,}, of them trainable {self.trainable_params:,}, "
            f"not trainable {frozen:,}",
        ]
        if self.ran:
            lines.append(f"Multiply-adds: {self.total_mult_adds:,}")
        size = words.amount(self.total_param_bytes)
        if self.total_buffer_bytes:
            size += f", of buffers {words.amount(self.total_buffer_bytes)}"
        if self.ran:
            size += f", of the input {words.amount(self.total_input)}"
            size += f", of layers' outputs {words.amount(self.total_output_bytes)}"
        return [*lines, f"Memory: of parameters {size}"]

    def __str__(self) -> str:
        rows = []
        for layer, lead in zip(self.layers, _branches([layer.depth for layer in self.layers])):
            first, *rest = self._cells(layer)
            rows.append([lead + first, *rest])
        titles = self._titles()
        widths = [max(len(row[k]) for row in [titles, *rows]) for k in range(len(titles))]
        right = range(len(titles) - 1 - self.ran, len(titles))

        def line(row: list[str]) -> str:
            padded = [c.rjust(w) if k in right else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths))]
            return "  ".join(padded).rstrip()

        bar = "=" * (sum(widths) + 2 * (len(widths) - 1))
        return "\n".join([bar, line(titles), bar, *map(line, rows), bar, *self._totals(), bar])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        right = range(len(self._titles()) - 1 - self.ran, len(self._titles()))

        def row(cells: list[str], tag: str, depth: int = 0) -> str:
            made = []
            for k, cell in enumerate(cells):
                style = "padding:2px 10px;text-align:" + ("right" if k in right else "left")
                if not k:
                    style += f";padding-left:{10 + 18 * depth}px"
                made.append(f'<{tag} style="{style}">{escape(cell)}</{tag}>')
            return "<tr>" + "".join(made) + "</tr>"

        rows = [row(self._cells(layer), "td", layer.depth) for layer in self.layers]
        totals = "".join(f"<div>{escape(line)}</div>" for line in self._totals())
        # no colours of its own: it stands on a page that is light or dark
        return (
            '<div><table style="border-collapse:collapse;color:inherit">'
            '<thead style="border-bottom:1px solid #8888">' + row(self._titles(), "th") + "</thead>"
            f"<tbody>{''.join(rows)}</tbody></table>"
            f'<div style="padding:6px 10px;border-top:1px solid #8888">{totals}</div></div>'
        )


def _branches(depths: list[int]) -> Iterator[str]:
    """The lines that join rows into a tree, in front of each."""
    for k, depth in enumerate(depths):
        lead = ""
        for level in range(1, depth + 1):
            later = next((d for d in depths[k + 1 :] if d <= level), 0)
            lead += ("├─" if later == level else "└─") if level == depth else "│ " if later == level else "  "
        yield lead


def summary(
    model: Any,
    *inputs: Any,
    input_size: Any = None,
    input_data: Any = None,
    dtypes: Any = None,
    depth: int = 3,
    mode: str = "eval",
    device: Any = None,
    **kwargs: Any,
) -> Summary:
    """The layers of a model, and what a call of it does: shapes, parameters, multiply-adds, memory.

    Inputs are what the model takes: tensors, or of one by one a size (a tuple of ints) in `inputs` or
    `input_size` (several: a list of them), drawn by `rand` in `dtypes` (of integers zeros; if not said,
    that of the parameters); a dict whose keys are arguments of forward is taken as these, and so are
    `kwargs`. Without inputs nothing runs and only parameters are told. Rows go `depth` modules deep.

    The model runs once, in `mode` ("eval", "train" or "same"), without gradients. Training flags, buffers,
    random numbers and hooks are afterwards what they were. Multiply-adds are counted in what ran (products,
    convolutions, attention, recurrent layers), functional code too; parameters that are shared once.
    ValueError for another mode or no depth.

    >>> model = kiln.nn.Sequential(kiln.nn.Linear(4, 5), kiln.nn.ReLU())
    >>> found = kiln.summary(model, (2, 4))
    >>> found.total_params, found.total_mult_adds
    (25, 40)
    >>> print(str(found).splitlines()[4])
    ├─0 (Linear)      [2, 4]  [2, 5]          25             40
    """
    if not callable(getattr(model, "named_modules", None)):
        raise TypeError(message("summary", "a Module", describe(model)))
    if mode not in ("eval", "train", "same"):
        raise ValueError(message("summary", 'mode "eval", "train" or "same"', repr(mode)))
    if depth < 0:
        raise ValueError(message("summary", "depth of 0 or more", str(depth)))
    random = _core.random_state()
    try:
        args, given = _arguments(model, inputs, input_size, input_data, dtypes)
        args_and_more = {**given, **kwargs}
        ran = bool(args or args_and_more)
        table = _Table(model, depth)
        if ran:
            with _as_it_was(model), no_grad():
                if mode != "same":
                    model.train(mode == "train")
                table.run(model, args, args_and_more)
    finally:
        _core.set_random_state(*random)
    return table.summary(ran, sum(map(_bytes, _tensors([args, args_and_more]))))


class _Table:
    """Rows of modules, filled while the model runs."""

    def __init__(self, model: Any, depth: int) -> None:
        self.model = model
        self.rows: list[Layer] = []
        self.modules: list[Any] = []
        self.row_of: dict[int, Layer] = {}  # a module's, or that of the one around it that is shown
        self.multiply_adds = self.output_bytes = 0
        self._add("", model, 0, depth)
        self.rows[0].name = "model"

    def _add(self, name: str, module: Any, level: int, depth: int) -> None:
        shared = id(module) in self.row_of
        layer = Layer(name, module, level, shared)
        self.rows.append(layer)
        self.modules.append(module)
        if shared:
            return
        self.row_of[id(module)] = layer
        for key, child in module._modules.items():
            if child is None:
                continue
            if level < depth:
                self._add(key, child, level + 1, depth)
            else:
                for inner in child.modules():
                    self.row_of.setdefault(id(inner), layer)

    def run(self, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Calls the model, with a hook on each module and an eye on each call of an op."""
        shown = {id(m): row for m, row in zip(self.modules, self.rows) if not row.shared}
        inside: list[bool] = []  # of each module that runs: whether it called another one

        def enter(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if inside:
                inside[-1] = True
            inside.append(False)
            row = shown.get(id(module))
            if row is not None:
                row.calls += 1
                if row.calls == 1:
                    row.inputs = _shapes([*args, *kwargs.values()])

        def leave(module: Any, args: tuple[Any, ...], result: Any) -> None:
            row, called_others = shown.get(id(module)), inside.pop()
            nbytes = 0 if called_others else sum(map(_bytes, _tensors(result)))
            self.output_bytes += nbytes
            if row is not None:
                row.output_bytes += nbytes
                if not row.outputs:
                    row.outputs = _shapes([result])

        def count(number: int, name: str, handle: Any, operands: Any, forward: int, recorded: bool) -> None:
            found = multiply_adds(handle, operands)
            if found:
                self.multiply_adds += found
                running = [m for m in watch.running()[1] if id(m) in self.row_of]
                row = self.row_of[id(running[-1] if running else self.model)]
                row.multiply_adds += found

        handles = []
        for module in dict.fromkeys(model.modules()):
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(module.register_forward_hook(leave))
        watch.begin(count)
        try:
            result = model(*args, **kwargs)
        finally:
            watch.end(count)
            for handle in handles:
                handle.remove()
        whole = self.rows[0]
        if not whole.calls:  # a compiled model calls no hooks of its own
            whole.inputs, whole.outputs = _shapes([*args, *kwargs.values()]), _shapes([result])

    def summary(self, ran: bool, input_bytes: int) -> Summary:
        """The rows with their parameters, each counted once, and the totals."""
        totals = dict.fromkeys(("parameters", "trainable", "parameter bytes", "buffer bytes"), 0)
        seen: set[int] = set()
        for module in self.model.modules():
            row = self.row_of.get(id(module), self.rows[0])  # the model's, for one that forward made
            for parameter in module._parameters.values():
                if parameter is None or id(parameter) in seen:
                    continue
                seen.add(id(parameter))
                elements = _elements(parameter)
                row.parameters += elements
                row.trainable += elements * parameter.requires_grad
                totals["parameter bytes"] += _bytes(parameter)
            for buffer in module._buffers.values():
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    totals["buffer bytes"] += _bytes(buffer)
        totals["parameters"] = sum(row.parameters for row in self.rows)
        totals["trainable"] = sum(row.trainable for row in self.rows)
        more = {"multiply-adds": self.multiply_adds, "output bytes": self.output_bytes}
        return Summary(self.rows, ran, {**totals, **more, "input bytes": input_bytes})


@contextmanager
def _as_it_was(model: Any) -> Iterator[None]:
    """Puts training flags, buffers and whether calls look for hooks back to what they are."""
    modules = list(model.modules())
    flags = [(module.training, "_hooked" in module.__dict__) for module in modules]
    buffers = [
        (module._buffers, name, buffer, buffer.detach().clone())
        for module in modules
        for name, buffer in module._buffers.items()
        if buffer is not None and not _is_lazy(buffer)
    ]
    try:
        yield
    finally:
        for module, (training, hooked) in zip(modules, flags):
            module.training = training
            if not hooked:
                module.__dict__.pop("_hooked", None)
        with no_grad():
            for owner, name, buffer, value in buffers:
                owner[name] = buffer
                if not _same(buffer, value):
                    buffer.copy_(value)


def _same(a: Any, b: Any) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _is_lazy(x: Any) -> bool:
    """Whether a parameter or buffer has no shape yet."""
    return type(x).__name__.startswith("Uninitialized")


def _elements(x: Any) -> int:
    return 0 if _is_lazy(x) else int(x.numel())


def _bytes(x: Any) -> int:
    elements = _elements(x)
    return elements and elements * int(x.element_size())


def _arguments(
    model: Any, inputs: tuple[Any, ...], sizes: Any, data: Any, dtypes: Any
) -> tuple[list[Any], dict[str, Any]]:
    """Positional arguments and those by name."""
    given: list[Any] = list(inputs)
    if data is not None:
        given += list(data) if isinstance(data, (list, tuple)) else [data]
    if sizes is not None:
        given.append(sizes)
    own = next(
        (p.dtype for p in model.parameters() if p.is_floating_point()), None
    )  # a half model's inputs are
    kinds = list(dtypes) if isinstance(dtypes, (list, tuple)) else [dtypes or own]
    if len(given) == 1 and isinstance(given[0], Mapping) and _takes(model, given[0]):
        return [], {key: _made(value, kinds) for key, value in given[0].items()}
    args: list[Any] = []
    for item in given:
        if isinstance(item, list) and item and all(map(_is_size, item)):
            args += [_made(size, kinds) for size in item]
        else:
            args.append(_made(item, kinds))
    return args, {}


def _takes(model: Any, names: Mapping[Any, Any]) -> bool:
    """Whether the model's forward has arguments of these names."""
    parameters = inspect.signature(model.forward).parameters
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return all(isinstance(name, str) and (anything or name in parameters) for name in names)


def _is_size(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) > 0 and all(type(n) is int for n in x)


def _made(item: Any, kinds: list[Any]) -> Any:
    """A tensor of a size, in the next dtype of `kinds`; anything else as it is."""
    if not _is_size(item):
        return item
    dtype = kinds.pop(0) if len(kinds) > 1 else kinds[0]
    if dtype is None or dtype.is_floating_point:
        return rand(*item, dtype=dtype)
    return zeros(*item, dtype=dtype)


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors in a value, and in what it holds."""
    waiting = [value]
    while waiting:
        item = waiting.pop(0)
        if isinstance(item, _core.Tensor):
            yield item
        elif isinstance(item, Mapping):
            waiting[:0] = item.values()
        elif isinstance(item, (list, tuple)):
            waiting[:0] = item


def _shapes(value: Any, most: int = 2) -> str:
    """The shapes of the tensors in a value, the first of them."""
    found = [str(list(x.shape)) for x in _tensors(value)]
    return ", ".join(found[:most]) + (", ..." if len(found) > most else "")


hide_frames(globals(), ("summary",))
