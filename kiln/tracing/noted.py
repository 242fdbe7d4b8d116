"""Notes calls of a model's modules while a program is made of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from kiln.nn import Module
from kiln.tracing.hierarchy import UNKNOWN, Hierarchy, ModuleCall
from kiln.tracing.symbolic import plain
from kiln.tracing.trees import constants, flatten

_KEYS = ("_compiled_call_impl", "_hooked")  # by which a module's call is another one


class Notes:
    """Notes calls of the modules below `root` while a recorder follows it."""

    def __init__(self, root: Module, recorder: Any, preserved: Sequence[str]) -> None:
        self._root, self._recorder, self._preserved = root, recorder, frozenset(preserved)
        self._calls: list[Any] = []
        self._modules = list(root.named_modules(remove_duplicate=False))[1:]
        self._first: dict[int, str] = {}
        for name, module in self._modules:
            self._first.setdefault(id(module), name)
        names = {name for name, _ in self._modules} | {""}
        for name in preserved:
            if name not in names:
                raise AttributeError(
                    f"export: preserve_module_call_signature names {name!r}, which the model has no module of"
                )
        own = {name: self._first.get(id(module), "") for name, module in self._modules}
        self._preserved = frozenset(own.get(name, name) for name in preserved)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Calls are noted meanwhile."""
        before = []
        for module in {id(m): m for _, m in self._modules if m is not self._root}.values():
            held = vars(module)
            before.append((held, {key: held[key] for key in _KEYS if key in held}))
            held["_compiled_call_impl"] = partial(
                self._call, self._first[id(module)], module._compiled_call_impl
            )
            held["_hooked"] = True
        try:
            yield
        finally:
            for held, own in before:
                for key in _KEYS:
                    held.pop(key, None)
                held.update(own)

    def _call(self, name: str, compiled: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        recorder, at = self._recorder, len(self._calls)
        kept = name in self._preserved
        self._calls.append(None)
        given: list[Any] = []
        in_tree = flatten((args, kwargs), given)
        values = [self._value(x, kept) for x in given]
        first, before = len(recorder.steps), self._buffers(module)
        result = module._call_impl(*args, **kwargs) if compiled is None else compiled(module, *args, **kwargs)
        returned: list[Any] = []
        out_tree = flatten(result, returned)
        made = [self._value(y, kept) for y in returned]
        after = self._buffers(module)
        changed = [(f"{name}.{key}", k) for key, k in after.items() if k != before.get(key)]
        last = len(recorder.steps)
        ends = _ends(recorder, first, last)
        trees = (constants(in_tree, plain), constants(out_tree, plain)) if kept else (None, None)
        self._calls[at] = ends, changed, ModuleCall(name, first, last, tuple(values), tuple(made), (), *trees)
        return result

    def kept(self) -> list[int]:
        """The values of calls whose signature is kept."""
        calls = [note[-1] for note in self._calls if note is not None and note[-1].in_tree is not None]
        return list(dict.fromkeys(k for call in calls for k in (*call.given, *call.returned)))

    def _value(self, tensor: Any, kept: bool) -> int:
        """What a tensor holds, without a step more where nothing asks for it."""
        whole, recorder = getattr(tensor, "whole", tensor), self._recorder
        if kept:
            found: int = recorder.value(whole)
            return found
        return UNKNOWN if id(whole) in recorder._stale else recorder._value.get(id(whole), UNKNOWN)

    def _buffers(self, module: Any) -> dict[str, int]:
        return {key: self._value(x, False) for key, x in module._buffers.items() if x is not None}

    def settled(self, found: Any, names: dict[int, str]) -> Hierarchy:
        """What was noted, by the steps of a program; `names`: of parameters and buffers, by id."""
        recorder, again = self._recorder, len(found.steps.again)
        kept = {step.outs[0] for step in found.steps.steps}

        def number(k: int) -> int:
            return k if k == UNKNOWN else recorder._number(k, again)

        where = [k for k, step in enumerate(recorder.steps) if number(step.outs[0]) in kept]
        which = {s.name: k for k, s in enumerate(found.state)}
        calls = []
        for note in self._calls:
            if note is None:  # which an exception ended
                continue
            ends, changed, call = note
            # (what ran inside a branch is no step of the program: the branch's graph has its steps)
            if ends and (call.last > len(recorder.steps) or ends != _ends(recorder, call.first, call.last)):
                continue
            states = [(which[name], number(k)) for name, k in changed if name in which and k != UNKNOWN]
            calls.append(
                call._replace(
                    first=bisect_left(where, call.first),
                    last=bisect_left(where, call.last),
                    given=tuple(map(number, call.given)),
                    returned=tuple(map(number, call.returned)),
                    states=tuple(states),
                )
            )
        modules = [(name, self._first[id(m)]) for name, m in self._modules if m is not self._root]
        return Hierarchy(tuple(modules), tuple(self._tied(which, names)), tuple(calls))

    def _tied(self, which: dict[str, int], names: dict[int, str]) -> Iterator[tuple[str, int]]:
        for prefix, module in [("", self._root), *self._modules]:
            for held in (module._parameters, module._buffers):
                for key, tensor in held.items():
                    name = f"{prefix}.{key}" if prefix else key
                    if tensor is not None and name not in which and names.get(id(tensor)) in which:
                        yield name, which[names[id(tensor)]]


def _ends(recorder: Any, first: int, last: int) -> list[tuple[int, ...]]:
    """What the first and the last of some steps make."""
    return [recorder.steps[k].outs for k in (first, last - 1)] if last > first else []
