"""State dicts and what programs hang into them: hooks before and after, versions, extra state; against
PyTorch.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import pytest

import kiln
from kiln import nn
from kiln.nn.modules import module as everywhere


def small(lib: Any) -> Any:
    return lib.nn.Sequential(OrderedDict(a=lib.nn.Linear(2, 3), b=lib.nn.BatchNorm1d(3)))


def saving(lib: Any) -> list[Any]:
    """What hooks see when a state is made, in order."""
    log: list[Any] = []
    model = small(lib)

    def before(m: Any, prefix: str, keep: bool) -> None:
        log.append(("before", type(m).__name__, prefix, keep))

    def after(m: Any, state: Any, prefix: str, meta: Any) -> None:
        log.append(("after", type(m).__name__, prefix, sorted(state), dict(meta)))

    for m in (model, model.b):
        m.register_state_dict_pre_hook(before)
        m.register_state_dict_post_hook(after)
    handle = model.a._register_state_dict_hook(lambda m, s, p, meta: [s.pop(p + "bias"), None][1])
    log.append(sorted(model.state_dict(keep_vars=True)))
    handle.remove()
    log.append(list(model.state_dict()))
    log.append([(k, dict(v)) for k, v in model.state_dict()._metadata.items()])
    model._register_state_dict_hook(lambda m, s, p, meta: {p + k: 1 for k in s})
    log.append(model.state_dict(prefix="x."))
    return log


def loading(lib: Any) -> list[Any]:
    """What hooks see when a state is loaded, and what they change of it."""
    log: list[Any] = []
    model, state = small(lib), small(lib).state_dict()

    def old_name(m: Any, state: Any, prefix: str, meta: Any, strict: bool, *lists: Any) -> None:
        log.append((type(m).__name__, prefix, dict(meta), strict, sorted(state), [list(x) for x in lists]))
        if prefix + "w" in state:
            state[prefix + "weight"] = state.pop(prefix + "w")

    def forgive(m: Any, keys: Any) -> None:
        log.append((type(m).__name__, list(keys.missing_keys), list(keys.unexpected_keys)))
        keys.missing_keys.clear()

    model.a.register_load_state_dict_pre_hook(old_name)
    model.b._register_load_state_dict_pre_hook(lambda *args: old_name(None, *args))
    state["a.w"] = state.pop("a.weight")
    log.append(str(model.load_state_dict(state)))
    del state["b.bias"]
    handle = model.register_load_state_dict_post_hook(forgive)
    log.append([list(x) for x in model.load_state_dict(state)])
    handle.remove()
    log.append(
        [list(x) for x in model.load_state_dict({"a.w": state["a.w"], "c.d": 1, "e": 2}, strict=False)]
    )
    model.register_load_state_dict_post_hook(lambda m, keys: keys)
    with pytest.raises(AssertionError, match="not expected to return new values"):
        model.load_state_dict(state)
    return log


def extra(lib: Any) -> list[Any]:
    class Counted(lib.nn.Module):  # type: ignore[misc]
        _version = 3

        def __init__(self) -> None:
            super().__init__()
            self.count, self.seen = 0, None
            self.inner = lib.nn.Linear(1, 1)

        def get_extra_state(self) -> int:
            return self.count + 1

        def set_extra_state(self, state: int) -> None:
            self.count = state

        def _load_from_state_dict(self, state: Any, prefix: str, meta: Any, *rest: Any) -> None:
            self.seen = meta.get("version")
            super()._load_from_state_dict(state, prefix, meta, *rest)

    model = lib.nn.Sequential(Counted())
    state = model.state_dict()
    model.load_state_dict(state)
    found = [list(state), state["0._extra_state"], model[0].count, model[0].seen]
    del state["0._extra_state"]
    found.append(model.load_state_dict(state, strict=False).missing_keys)
    found.append(lib.nn.Linear(1, 1).load_state_dict({"_extra_state": 1}, strict=False).unexpected_keys)
    plain = lib.nn.BatchNorm1d(2)
    old = {k: v for k, v in plain.state_dict().items() if k != "num_batches_tracked"}
    found.append(str(plain.load_state_dict(old)))  # of a version that is not told
    frozen = lib.nn.Linear(1, 1).requires_grad_(False)
    frozen.load_state_dict({k: v + 1 for k, v in frozen.state_dict().items()}, assign=True)
    return [*found, type(frozen.weight).__name__, frozen.weight.requires_grad]


def of_every_module(lib: Any) -> list[Any]:
    """Hooks of every module, those of registrations too, and in which order they are called."""
    log: list[Any] = []
    every = lib.nn.modules.module

    def note(name: str) -> Any:
        return lambda m, *rest: log.append((name, type(m).__name__, len(rest)))

    def named(name: str) -> Any:
        return lambda m, own, value: log.append((name, type(m).__name__, own))

    handles = [
        every.register_module_parameter_registration_hook(named("parameter")),
        every.register_module_buffer_registration_hook(named("buffer")),
        every.register_module_module_registration_hook(named("module")),
    ]
    model = small(lib)
    log.sort()  # which of a layer's comes first is its own affair
    for handle in handles:
        handle.remove()
    with every.register_module_forward_pre_hook(note("pre")):
        with every.register_module_forward_hook(note("kwargs"), with_kwargs=True):
            with every.register_module_full_backward_pre_hook(note("up")):
                model.a.register_forward_hook(note("own"))
                model.a.register_full_backward_hook(note("down"))
                model(lib.ones(2, 2)).sum().backward()
    with every.register_module_forward_hook(note("always"), always_call=True), pytest.raises(RuntimeError):
        model(lib.ones(2, 5))
    return [
        *log,
        len(every._global_forward_hooks),
        [len(model.a._forward_hooks), len(model.b._forward_hooks)],
    ]


@pytest.mark.parametrize("run", [saving, loading, extra, of_every_module])
def test_states_and_their_hooks(run: Any, answers: Any) -> None:
    ours, theirs = answers.both(run)
    assert ours == theirs


def test_hooks_are_what_libraries_read() -> None:
    """Functions by number, and apart from them which take keywords; a copy calls its own."""
    layer = nn.Linear(1, 1)

    def hook(m: nn.Module, args: Any, kwargs: Any, y: Any) -> Any:
        return y + 1

    handle = layer.register_forward_hook(hook, with_kwargs=True)
    assert list(layer._forward_hooks.values()) == [hook]
    assert list(layer._forward_hooks_with_kwargs) == [handle.id] and not layer._forward_hooks_always_called
    twin = copy.deepcopy(layer)
    handle.remove()
    assert not layer._forward_hooks and not layer._forward_hooks_with_kwargs
    x = kiln.ones(1)
    assert (twin(x) - layer(x)).item() == pytest.approx(1)
    own = nn.Linear(1, 1)
    own.register_load_state_dict_pre_hook(lambda m, *rest: seen.append(m))
    seen: list[Any] = []
    second = copy.deepcopy(own)
    second.load_state_dict(own.state_dict())
    assert seen == [second]


def test_nothing_is_loaded_until_everything_fits() -> None:
    model = small(kiln)
    before = model.a.weight.tolist()
    with pytest.raises(RuntimeError, match="size mismatch for b.bias: copying a param with shape"):
        model.load_state_dict({**model.state_dict(), "a.weight": kiln.ones(3, 2), "b.bias": kiln.ones(1)})
    assert model.a.weight.tolist() == before
    with pytest.raises(RuntimeError) as error:  # what is missing is told first, as in PyTorch
        nn.Linear(1, 1).load_state_dict({"other": kiln.ones(1), "bias": kiln.ones(2)})
    told = [line.strip().split(" ")[0] for line in str(error.value).split("\n")]
    assert told == ["Error(s)", "Missing", "Unexpected", "size"]
    with pytest.raises(TypeError, match="Expected state_dict to be dict-like"):
        model.load_state_dict([])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="must return None"):
        model.register_state_dict_post_hook(lambda m, state, *rest: state)
        model.state_dict()
    with pytest.warns(FutureWarning, match="Positional args are being deprecated"):
        assert list(nn.Linear(1, 1).state_dict({}, "x.")) == ["x.weight", "x.bias"]


def test_old_backward_hooks_of_every_module() -> None:
    log: list[int] = []
    everywhere.Everywhere.is_full_backward_hook = None  # as a program finds it
    try:
        with everywhere.register_module_backward_hook(lambda m, inside, outside: log.append(len(outside))):
            nn.Identity()(kiln.ones(1, requires_grad=True) * 2).sum().backward()
            with pytest.raises(RuntimeError, match="as a global Module hook"):
                everywhere.register_module_full_backward_hook(lambda *a: None)
    finally:
        everywhere.Everywhere.is_full_backward_hook = None
    assert log == [1]


def test_modules_are_moved_and_replaced() -> None:
    """`_apply` of a module below is called; submodules are set by their paths; memory may be empty."""

    class Own(nn.Module):
        def _apply(self, fn: Any, recurse: bool = True) -> Any:
            self.table = fn(self.table)
            return super()._apply(fn, recurse)

    model = nn.Sequential(Own(), nn.BatchNorm1d(2))
    model[0].table = kiln.ones(2)
    model.double()
    assert model[0].table.dtype == model[1].weight.dtype == kiln.float64
    weight = model[1].weight
    assert model.to_empty(device="cpu")[1].weight is weight and weight.shape == (2,)
    assert nn.BatchNorm1d(2).type(kiln.float64).running_mean.dtype == kiln.float64
    model.set_submodule("1", nn.Tanh(), strict=True)
    assert isinstance(model[1], nn.Tanh)
    for path, error in (("", ValueError), ("2.a", AttributeError)):
        with pytest.raises(error):
            model.set_submodule(path, nn.Tanh())
    with pytest.raises(TypeError, match="unexpected keyword argument 'a'"):
        nn.Module(a=1)
