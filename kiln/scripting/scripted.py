"""What `kiln.jit.script` gives: a function or a module whose calls are programs, one for each look of its
arguments.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import warnings
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import kiln.scripting.runtime  # noqa: F401  (what rewritten code calls)
from kiln import _core
from kiln.capture.pure.guards import Read, names_in, ways_to
from kiln.errors import describe, message
from kiln.nn import Module
from kiln.nn.calls import HOOKS
from kiln.scripting.annotations import check_arguments
from kiln.scripting.any_sizes import Sizes, declared, without_sizes
from kiln.scripting.calls import call
from kiln.scripting.context import Context, entered, reachable
from kiln.scripting.given import (
    PLAIN,
    Given,
    all_contiguous,
    arrays,
    as_given,
    containers,
    count,
    look_at,
    objects_in,
    overlap,
)
from kiln.scripting.items import contents
from kiln.scripting.within import defined, definition_of, inside, numbers_as_tensors
from kiln.table.arguments import recorder_here
from kiln.table.callables import hide_frames, name_constructor
from kiln.tracing.batches import looks_as_sample
from kiln.tracing.captured import Captured
from kiln.tracing.modules import TracerWarning
from kiln.tracing.program import Program, held_in
from kiln.tracing.recorder import WAYS, TracingError
from kiln.tracing.scripts import ScriptFunction, ScriptModule
from kiln.tracing.trees import build, constants, flatten
from kiln.tracing.twice import captured_twice

KEPT = 64  # looks of one function
WAYS_KEPT = 16  # programs of one look that each hold one way


class Way(Program):
    """The program of a variant, which the core runs by itself where nothing of Python's is to be done."""

    def __init__(self, variant: Variant, fast: Any) -> None:
        super().__init__(variant.captured, held_in(variant.captured))
        self.variant, self.fast = variant, fast
        self._told = tuple([id(s.tensor) for s in self.captured.state])
        tree, plain = variant.tree.items[0], not (variant.numbers or variant.prints or variant.places)
        self._is_one = plain and tree.kind == "leaf"
        leaves = tree.kind == "tuple" and tree.type is None and all(x.kind == "leaf" for x in tree.items)
        self._is_tuple = plain and leaves
        self._is_plain = self._is_plain and variant.is_seen and not (variant.prints or variant.places)

    def _guards(self) -> tuple[Any, Any]:
        return self.variant.guards

    def _returned(self, given: Any) -> Any:
        return given if self._is_one or self._is_tuple else self.variant.result(given)

    def run(self, due: bool | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the function returns."""
        made = self._slow(due, args, kwargs)
        return made if self._is_one or self._is_tuple else self.variant.result(made, args, kwargs)


class Variant:
    """A program for arguments that look alike, as long as what it was made of is as it was."""

    def __init__(
        self,
        function: Any,
        root: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        refused: TracingError | None,
        fast: Any,
        dims: Any = None,
    ) -> None:
        self.refused = refused  # why it is for one way that the function goes alone
        self.tree: Any = None
        self.numbers: list[Any] = []  # which of the results' leaves are numbers
        self.prints: list[Any] = []
        self.places: list[Any] = []  # what a call changes besides tensors: containers of arguments, others
        self._twins = len(containers((args, kwargs), (), {})) < count((args, kwargs))
        ran: dict[Any, dict[str, Any]] = {}
        run = self._runner(function, root, ran)
        on_data = "refuse" if refused is None else "check"
        self.captured: Captured = captured_twice(run, args, kwargs, dims, on_data, True, root, types=False)
        self._state = [s.tensor for s in self.captured.state]
        read = Read(ran, self._state)
        for places in ways_to([function, root, args, kwargs], self._state).values():
            for place in places:  # so that a parameter which is exchanged is seen
                read.place(place)
        read.follow(function)
        if root is not None:
            read.follow(root)
        self._objects = objects_in((args, kwargs))
        for thing in self._objects:
            read.follow(thing)
        self.guards = read.guards()
        self._arrays = arrays(reachable([function, root, *self._objects]))
        self.is_seen = not self._arrays  # whether the guards are all that it depends on
        lies = {"stride", "is_contiguous", "storage_offset"}
        if any(lies & names_in(code) for code in ran) and not all_contiguous((args, kwargs)):
            raise TracingError(
                f"{self.captured.name}: asks how a tensor lies in memory, of an argument that is not "
                "contiguous: give x.contiguous()"
            )
        asks = {"environ", "getenv"}
        self._environ = dict(os.environ) if any(asks & names_in(code) for code in ran) else None
        self.is_seen = self.is_seen and self._environ is None
        self.writes_inputs = any(kind == "input" for kind, _ in self.captured.mutated)
        self.way = Way(self, fast)
        self.run = self.way.run

    def _runner(self, function: Any, root: Any, ran: dict[Any, dict[str, Any]]) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            context = Context(recorder_here(), prints=True, pinned=self.refused is not None)
            context.roots = [function, root, args, kwargs]
            given = containers((args, kwargs), (), {})
            try:
                with entered(context):
                    made = call(function, *args, **kwargs)
                    context.finish()
                effects = context.take_effects()
                if effects and self._twins:
                    context.refuse("changes a list or dict in the place of another argument too")
                self.places = [given.get(key[0], slot) for key, slot, _ in effects]
                self.prints = context.prints or []
                parts = (as_given(made, given), self.prints, [after for _, _, after in effects])
                whole = numbers_as_tensors(parts, self.numbers)
            finally:
                context.undo()
            ran.update(context.ran)
            leaves: list[Any] = []
            tree = flatten(whole, leaves)
            self.numbers = [k for k, x in enumerate(leaves) if any(x is n for n in self.numbers)]
            self.tree = constants(tree, functools.partial(_given, context))
            return tuple(leaves)

        plain = getattr(function, "__func__", function)
        functools.update_wrapper(run, plain)
        run.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return run

    def holds(self) -> bool:
        """Whether what the program was made of is as it was."""
        return (
            bool(self.guards[0].hold())
            and bool(self.guards[1].hold())
            and (self._environ is None or self._environ == dict(os.environ))
            and all(x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in self._arrays)
        )

    def fits(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether it is a program for the sizes of these arguments, if they look the same besides."""
        try:
            self.way.leaves(args, kwargs)
        except (RuntimeError, TypeError):
            return False
        return True

    def result(self, leaves: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """What the function returns, of the program's results; prints, and changes what the function does."""
        if self.numbers:
            leaves = list(leaves)
            for k in self.numbers:
                if issubclass(type(leaves[k]), _core.Tensor):  # (one of a batch stays a tensor)
                    leaves[k] = leaves[k].item()
        found, prints, effects = build(self.tree, iter(leaves))
        for texts, named in prints:
            print(*texts, **named)
        for place, after in zip(self.places, effects):
            if isinstance(place, Given):
                contents(place.of((args, kwargs))).write(after)
            else:
                place.write(after)
        if type(found) is Given:
            return found.of((args, kwargs))
        if type(found) is tuple and any(type(x) is Given for x in found):
            return tuple([x.of((args, kwargs)) if type(x) is Given else x for x in found])
        return found

    def program(self) -> Captured:
        """The program as it is kept in a file; a number is a tensor of no dims there."""
        if self.refused is not None:
            raise self.refused
        if self.prints:
            raise RuntimeError("jit.save: a program in a file does not print")
        if self.places:
            raise RuntimeError(
                f"jit.save: {self.captured.name} changes what is there before its calls, which a program in "
                "a file cannot"
            )
        made = copy.copy(self.captured)
        made.out_tree = self.tree.items[0]
        return made


def _given(context: Context, x: Any) -> Any:
    if not isinstance(x, (*PLAIN, Given)):
        context.refuse(f"returns a {type(x).__name__}, which holds neither tensors nor numbers")
    return x


class Calls:
    """The programs of a function, by how its arguments look."""

    def __init__(self, function: Any, root: Any) -> None:
        self.function, self.root = function, root
        self.variants: dict[Any, list[Variant]] = {}
        self.sizes: dict[Any, Sizes] = {}  # by how arguments look but for their sizes
        self.last: Variant | None = None
        self.told = False  # that a program holds one way alone
        self.fast = _core.Cell(self._slow)  # the call; those like an earlier one the core runs by itself

    def _slow(self, due: bool | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder = recorder_here()
        if recorder is not None:
            return inside(recorder, self.function, args, kwargs)
        look: list[Any] = [_core.modes(), _core.default_dtype_name()]
        seen: dict[int, int] = {}
        if not (look_at(args, look, seen) and look_at(kwargs, look, seen)):
            definition = definition_of(args, kwargs)
            if definition is not None:
                return definition.during(lambda: defined(definition, self.function, args, kwargs))
            return self._of_batch(args, kwargs)
        kept = self.variants.get(tuple(look), [])
        if not kept:
            check_arguments(self.function, args, kwargs)
        state = _core.random_state()
        for made in kept or self._for_sizes(look, args, kwargs):
            if not made.holds() or (made.writes_inputs and overlap(args, kwargs)):
                continue
            try:
                return self._ran(kept, made, due, args, kwargs)
            except Exception as error:
                if made.refused is None and not hasattr(error, "_kiln_program"):
                    raise
                _core.set_random_state(*state)
                if made.refused is None:
                    self.function(*args, **kwargs)  # raises it, with its text and its lines
                    raise
        try:
            kept = self.variants.setdefault(tuple(look), [])
            made = self._made(kept, args, kwargs)
            if made.writes_inputs and overlap(args, kwargs):
                raise TracingError(
                    f"{made.captured.name}: writes into an argument in place that shares memory with another"
                )
            return self._ran(kept, made, due, args, kwargs)
        except TracingError:
            raise
        except Exception:
            _core.set_random_state(*state)
            self.function(*args, **kwargs)
            raise

    def _of_batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Of samples of a batch: the program of how one looks, if there is one of all ways; else, and of
        values of a graph, what the function gives.
        """
        leaves: list[Any] = []
        tree = flatten((args, kwargs), leaves)
        given, named = build(tree, iter(map(looks_as_sample, leaves)))
        look: list[Any] = [_core.modes(), _core.default_dtype_name()]
        seen: dict[int, int] = {}
        if not (look_at(given, look, seen) and look_at(named, look, seen)):
            return self.function(*args, **kwargs)
        kept = self.variants.setdefault(tuple(look), [])
        made = next((v for v in kept if v.refused is None and v.holds()), None)
        try:
            if made is None:
                made = Variant(self.function, self.root, given, named, None, self.fast)
                kept.insert(0, made)
            if made.prints or made.places:
                raise TracingError(f"{made.captured.name}: prints, or changes what is there before the call")
        except TracingError as refused:
            try:
                return self.function(*args, **kwargs)
            except RuntimeError as error:
                if not str(error).startswith("vmap: "):
                    raise
                raise TracingError(f"{error} The script is no program for all samples: {refused}") from None
        return made.run(None, args, kwargs)

    def _for_sizes(self, look: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Variant]:
        """The program of a look for all sizes, if there is one; it is made at the second set of sizes."""
        found = without_sizes(look)
        if found is None:
            return []
        key, shapes = found
        if key not in self.sizes:
            while len(self.sizes) > KEPT:
                del self.sizes[next(iter(self.sizes))]
            self.sizes[key] = Sizes(shapes)
            return []
        known = self.sizes[key]
        for made in known.kept:
            if made.fits(args, kwargs):
                return [made]
        dims = None if self.told else known.dims(shapes)
        if dims is not None:
            try:
                given = declared(self.function, args, kwargs, dims)
                known.kept = [Variant(self.function, self.root, args, kwargs, None, self.fast, given)]
            except Exception:  # what it is shows in the program for these sizes alone
                known.give_up()
        return [made for made in known.kept if made.fits(args, kwargs)]

    def _ran(
        self,
        kept: list[Variant],
        made: Variant,
        due: bool | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The result of a program, which becomes the first that is asked."""
        self.last = made
        result = made.run(due, args, kwargs)
        if not kept or kept[0] is not made:
            if made in kept:
                kept.remove(made)
            kept.insert(0, made)
            del kept[WAYS_KEPT if made.refused else 4 :]
        return result

    def variant(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Variant:
        """A program for these arguments, which is not kept."""
        return Variant(self.function, self.root, args, kwargs, None, self.fast)

    def _made(self, kept: list[Variant], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Variant:
        """A program for these arguments: of all ways that the function may go, or, where one program cannot
        hold them, of the way that it goes with these values.
        """
        while len(self.variants) > KEPT:
            del self.variants[next(iter(self.variants))]
        refused = next((v.refused for v in kept if v.refused is not None), None)
        if refused is None:
            try:
                return Variant(self.function, self.root, args, kwargs, None, self.fast)
            except TracingError as error:
                refused = error
            except Exception as error:  # the function's own, or of a number that is none of Python's
                name = getattr(self.function, "__qualname__", "script")
                refused = TracingError(f"{name}: {type(error).__name__}: {error}")
        try:
            made = Variant(self.function, self.root, args, kwargs, refused, self.fast)
        except TracingError:
            raise refused from None
        if not self.told:
            self.told = True
            why = str(refused).removesuffix(f"; {WAYS}")
            warnings.warn(f"{why}; each way it goes is a program of its own", TracerWarning, stacklevel=4)
        return made

    def program(self) -> Variant:
        """The program that ran last; RuntimeError before the first call."""
        if self.last is None:
            raise RuntimeError("a script is made for the arguments of a call: call it once before")
        return self.last


class Scripted(ScriptFunction):
    """A function as programs, one for each look of its arguments; see `kiln.jit.script`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.scripted_function = function
        held = getattr(function, "__self__", None)
        self._calls = Calls(function, held if isinstance(held, Module) else None)
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._calls.fast(*args, **kwargs)

    def __get__(self, held: Any, owner: Any = None) -> Any:
        return self if held is None else MethodType(self, held)

    @property
    def captured(self) -> Captured:  # type: ignore[override]
        """The program that ran last."""
        return self._calls.program().program()

    @property
    def name(self) -> str:
        """The function's name."""
        return self.__name__

    @property
    def qualified_name(self) -> str:
        """The function's name, as PyTorch qualifies it."""
        return f"__torch__.{self.__qualname__}"

    @property
    def code(self) -> str:
        """The function's source."""
        return source_of(self.scripted_function)

    def __deepcopy__(self, memo: Any) -> Scripted:
        return Scripted(self.scripted_function)

    def __reduce__(self) -> Any:
        return script, (self.scripted_function,)


def source_of(function: Any) -> str:
    """A function's source, with the margin taken off."""
    return inspect.cleandoc("\n" + inspect.getsource(function))


class RecursiveScriptModule(ScriptModule):
    """A module whose forward is programs, one for each look of its arguments; it shares the parameters,
    buffers, modules and attributes of the module it was made of.
    """

    def __init__(self, module: Module) -> None:
        super().__init__()
        state = self.__dict__
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            state[name] = module.__dict__[name]
        state.update({name: module.__dict__[name] for name in HOOKS})
        state["training"] = module.training
        state["_original"] = module
        state["_programs"] = {}
        for name, member in inspect.getmembers(type(module), inspect.isfunction):
            if getattr(member, "_kiln_exported", False):
                state["_programs"][name] = Calls(getattr(module, name), module)
                if hasattr(ScriptModule, name):  # (one called `double` comes before modules' own)
                    state[name] = state["_programs"][name].fast
        state["_programs"]["forward"] = Calls(module.forward, module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        state, original = self.__dict__, self._original
        if not original._hooked:
            return state["_programs"]["forward"].fast(*args, **kwargs)
        held = original.__dict__
        for name in ("_hooked", "_is_full_backward_hook"):  # hooks are called around the program
            if name in held:
                state[name] = held[name]
        return super().__call__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._programs["forward"].fast(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        state = self.__dict__
        calls = state.get("_programs", {}).get(name)
        if calls is not None:
            return calls.fast
        original = state.get("_original")
        if original is None:
            return super().__getattr__(name)
        try:
            return getattr(original, name)
        except AttributeError as error:
            raise AttributeError(
                str(error).replace(type(original).__name__, "RecursiveScriptModule")
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._original, name, value)
        if name == "training":
            self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        delattr(self._original, name)

    def train(self, mode: bool = True) -> Any:
        self._original.train(mode)
        self.__dict__["training"] = self._original.training
        return self

    @property
    def original_name(self) -> str:
        """The name of the class that was scripted."""
        return type(self._original).__name__

    @property
    def captured(self) -> Captured:
        """The program that ran last."""
        found: Captured = self._programs["forward"].program().program()
        return found

    @property
    def graph(self) -> Any:
        """The graph of the program that ran last."""
        return self.captured.graph

    inlined_graph = graph

    @property
    def code(self) -> str:
        """The source of forward."""
        return source_of(type(self._original).forward)

    def __deepcopy__(self, memo: Any) -> Any:
        return RecursiveScriptModule(copy.deepcopy(self._original, memo))

    def __reduce__(self) -> Any:
        return RecursiveScriptModule, (self._original,)

    def _get_name(self) -> str:
        return "RecursiveScriptModule"

    def extra_repr(self) -> str:
        return f"original_name={self.original_name}"

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._original)

    def __iter__(self) -> Any:
        return iter(self._original)

    def __getitem__(self, key: Any) -> Any:
        return self._original[key]


def prepared(module: Any, seen: dict[int, Any]) -> Any:
    """A module in which each that has `__prepare_scriptable__` is what that gives."""
    if id(module) in seen:
        return seen[id(module)]
    own = getattr(module, "__prepare_scriptable__", None)
    made = seen[id(module)] = module if own is None else own()
    if isinstance(made, Module) and not isinstance(made, ScriptModule):
        for name, child in list(made._modules.items()):
            new = child if child is None else prepared(child, seen)
            if new is not child:
                made._modules[name] = new
    return made


def script(obj: Any, optimize: Any = None, example_inputs: Any = None, **kwargs: Any) -> Any:
    """A function or module with all its branches and loops as a program, also those that depend on the values
    of tensors: it is called as before, gives the same bits, and its gradients flow.

    The source of the function, and of functions and methods of the program that it calls, is read again so
    that `if`, `while`, `for`, `and`, `or`, `not`, `a if c else b`, `return`, `break`, `continue`, `assert`,
    `raise`, and numbers such as `int(x)` and `x.item()` may depend on values. All else is Python's and runs
    once, when a program is made: for each look of the arguments (dtypes, sizes, the values of what is no
    tensor) and when attributes, globals or closures that it reads have changed.

    What one program cannot hold (a size or slice that depends on values, a name that has another type or
    shape after one branch than after the other, a list that grows in a loop of unknown length) makes a
    program for each way that calls go, which checks the values it was made for: a `TracerWarning` says the
    line and the reason. Such scripts cannot be saved. RuntimeError, with the line and the reason, for what no
    program can do again, and for arguments that are not what their annotations say. `example_inputs`: a list
    of calls, each a tuple, that are made at once. `optimize` is PyTorch's, and changes nothing.

    >>> @kiln.jit.script
    ... def collatz(n):
    ...     steps = 0
    ...     while n != 1:
    ...         n = n // 2 if n % 2 == 0 else 3 * n + 1
    ...         steps += 1
    ...     return steps
    >>> collatz(kiln.tensor(27))
    111
    """
    if isinstance(obj, (ScriptFunction, ScriptModule)):
        return obj
    made: Any
    if isinstance(obj, Module):
        made = prepared(obj, {})
        made = RecursiveScriptModule(made) if isinstance(made, Module) else script(made)
    elif isinstance(obj, (FunctionType, MethodType)):
        made = Scripted(obj)
    elif callable(obj):
        return obj
    else:
        raise TypeError(message("jit.script", "a function, a class or a module", describe(obj)))
    for given in example_inputs or ():
        made(*given)
    return made


hide_frames(globals(), ("script",))
name_constructor(RecursiveScriptModule)
