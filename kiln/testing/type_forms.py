"""What a public function takes and returns, as types: read off its entry in the table.

A form is one way of calling it: parameters with types and defaults, and what the call gives. Most have one,
which follows from the entry:

    which parameters, how, defaults     the signature
    a parameter's type                  its annotation, else the letter of an op's parameter, else its name
                                        (`kiln.table.meanings`): a `dim` is an int throughout the table
    the result                          its annotation, else a tensor

Where the result depends on the form, or a name means something else, the entry states its forms
(`registry.forms`), without types that follow as above:

    (input, dim: int, keepdim=False, *, out=None) -> values, indices
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from kiln import _core
from kiln.table import registry
from kiln.table.meanings import LETTERS, TYPE_OF

# parameters that take any number of ints, or one sequence of them
MANY_INTS = ("size", "sizes", "shape", "order", "counts", "along", "dims", "shapes")
# what the `**options` of a factory are, where its signature does not name them
FACTORY = (
    "out=None, layout: layout | None = None, memory_format: memory_format | None = None, "
    "pin_memory: bool = False, device: Device | None = None, requires_grad: bool = False"
)


class Parameter(NamedTuple):
    """One parameter: `kind` is one of inspect's; `default` the text of it, "" where there is none."""

    name: str
    kind: Any
    type: str
    default: str = ""

    @property
    def text(self) -> str:
        """As it stands in a signature."""
        star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(self.kind, "")
        return f"{star}{self.name}: {self.type}" + (f" = {self.default}" if self.default else "")


class Form(NamedTuple):
    """One way of calling a function. `fields` are the parts of a result that have names: `values: Tensor`."""

    parameters: tuple[Parameter, ...]
    result: str
    fields: tuple[str, ...] = ()

    def text(self, first: str = "") -> str:
        """The parameters in parentheses; `first` in place of the first of them."""
        shown, by_place = [first] if first else [], True
        for k, p in enumerate(self.parameters[bool(first) :], bool(first)):
            if p.kind is p.kind.VAR_POSITIONAL:
                by_place = False
            elif by_place and p.kind is p.kind.KEYWORD_ONLY:
                shown.append("*")
                by_place = False
            shown.append(p.text)
            following = self.parameters[k + 1].kind if k + 1 < len(self.parameters) else None
            if p.kind is p.kind.POSITIONAL_ONLY and following is not p.kind:
                shown.append("/")
        return f"({', '.join(shown)})"


def forms_of(name: str, function: Any) -> list[Form]:
    """The forms of a public function or method, by the name it is called by."""
    own = own_name(name, function)
    base = _written_by(name)
    if base is not None and own not in registry.FORMS:
        return [_in_place(form) for form in forms_of(*base) if form.result == "Tensor"]
    stated = registry.FORMS.get(own) or registry.FORMS.get(own.removesuffix("_copy"))
    known = {p.name: p for p in _parameters(function)}
    if stated:
        forms = [_stated(line, known) for line in stated]
    else:
        forms = _with_indices(Form(tuple(known.values()), _result(function)))
    forms = [other for form in forms for other in _many(form)]
    return _distinct([other for form in forms for other in (form, *_by_axis(form))])


def _with_indices(form: Form) -> list[Form]:
    """A form with a flag that asks for indices too as two, one for each result."""
    flag = next((p for p in form.parameters if p.name == "return_indices"), None)
    if flag is None:
        return [form]
    pair = "tuple[Tensor, Tensor]"
    if flag.default == "True":
        return [form._replace(result=pair)]
    one = _exchanged(form, flag, flag._replace(type="Literal[False]"))
    named = flag._replace(type="Literal[True]", default="", kind=flag.kind.KEYWORD_ONLY)
    return [one, _exchanged(form, flag, named)._replace(result=pair)]


def layer_forms(name: str) -> list[Form]:
    """The forms of a function of kiln.nn.functional: where it has an in-place form, with the flag for it."""
    known = registry.FUNCTIONS if name in registry.FUNCTIONS else registry.LAYERS
    forms = forms_of(name, known[name])
    if name not in registry.INPLACE:
        return forms
    flag = Parameter("inplace", inspect.Parameter.POSITIONAL_OR_KEYWORD, "bool", "False")
    return [form._replace(parameters=(*_in_place(form).parameters, flag)) for form in forms]


def own_name(name: str, function: Any) -> str:
    """The name that the entry of a function has, of which `name` may be another."""
    return str(getattr(function, "__kiln_name__", None) or getattr(function, "__name__", name))


def _written_by(name: str) -> tuple[str, Any] | None:
    """The function whose in-place form the name is."""
    base = name[:-1]
    if not name.endswith("_") or base not in registry.INPLACE and base not in _BECOMING:
        return None
    return base, registry.function(base)


# in-place forms of views: they change what the tensor shows
_BECOMING = ("t", "transpose", "swapdims", "swapaxes", "squeeze", "unsqueeze", "as_strided")


def _in_place(form: Form) -> Form:
    return form._replace(parameters=tuple(p for p in form.parameters if p.name != "out"))


def _distinct(forms: list[Form]) -> list[Form]:
    return [form for k, form in enumerate(forms) if form not in forms[:k]]


def _parameters(function: Any) -> list[Parameter]:
    """The parameters of a callable with their types."""
    letters = {p.name: p for p in getattr(getattr(function, "record", None), "params", ())}
    found: list[Parameter] = []
    signature = inspect.signature(function)
    arrays = [p for p in letters.values() if p.kind in "TLVO"]
    for p in signature.parameters.values():
        if p.name == "options":
            found += _options(found)
            continue
        letter = letters[p.name].kind if p.name in letters else ""
        default = "" if p.default is p.empty else _shown(p.default)
        annotation = p.annotation if p.annotation not in (p.empty, "Any") else ""
        type_ = annotation or _type(p.name, letter, p.default)
        if letter == "V" and (len(arrays) == 1 or p.name == "condition"):
            type_ = "Tensor"
        if type_ == "Dims" and (p.default is p.empty or isinstance(p.default, int)):
            type_ = "int"
        found.append(Parameter(p.name, p.kind, _with_none(type_, default), default))
    return [p for p in found if p.name != "out"] + [p for p in found if p.name == "out"]


def _type(name: str, letter: str, default: Any) -> str:
    """The type of a parameter without an annotation."""
    if name == "out":
        return "Tensor"
    if letter in ("T", "L", "O", "V", "Z"):
        return LETTERS[letter].type
    if isinstance(default, (bool, str)):
        return type(default).__name__
    if name in TYPE_OF:
        return TYPE_OF[name]
    if isinstance(default, (int, float)):
        return type(default).__name__
    return LETTERS[letter].type if letter else "Any"


def _with_none(type_: str, default: str) -> str:
    has_none = default != "None" or type_ in ("Any", "object", "Dims") or "None" in type_
    return type_ if has_none else f"{type_} | None"


def _shown(default: Any) -> str:
    """A default as text."""
    return repr(default) if default is None or isinstance(default, (bool, int, float, str, tuple)) else "..."


def _result(function: Any) -> str:
    """What a call gives, by the annotation."""
    try:
        said = inspect.signature(function).return_annotation
    except ValueError:
        return "Tensor"
    if not isinstance(said, str) or said == "Any":
        return "Tensor"
    return said.replace("tuple[Any, ...]", "tuple[Tensor, ...]")


def _stated(line: str, known: dict[str, Parameter]) -> Form:
    """A form from its text; types and defaults that it leaves out are those of `known`."""
    shown, _, result = line.partition("->")
    if not shown:
        fields = _fields(result.strip())
        return Form(tuple(_outs(list(known.values()), fields)), result.strip(), fields)
    arguments = ast.parse(f"def f{shown.strip()}: ...").body[0].args  # type: ignore[attr-defined]
    places = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(places) - len(arguments.defaults)) + arguments.defaults
    kind = inspect.Parameter
    found = [
        _read(a, kind.POSITIONAL_ONLY if a in arguments.posonlyargs else kind.POSITIONAL_OR_KEYWORD, d, known)
        for a, d in zip(places, defaults)
    ]
    if arguments.vararg:
        found.append(_read(arguments.vararg, kind.VAR_POSITIONAL, None, known))
    found += [
        _read(a, kind.KEYWORD_ONLY, d, known) for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults)
    ]
    if arguments.kwarg:
        found += (
            _options(found)
            if arguments.kwarg.arg == "options"
            else [_read(arguments.kwarg, kind.VAR_KEYWORD, None, known)]
        )
    fields = _fields(result.strip() or "Tensor")
    return Form(tuple(_outs(found, fields)), result.strip() or "Tensor", fields)


def _options(named: list[Parameter]) -> list[Parameter]:
    """What `**options` stands for beside the parameters that are named."""
    names = {p.name for p in named}
    return [p for p in _stated(f"(*, {FACTORY})", {}).parameters if p.name not in names]


def _outs(parameters: list[Parameter], fields: tuple[str, ...]) -> list[Parameter]:
    """The parameters with `out` as a tensor for each field."""
    outs = f"tuple[{', '.join(['Tensor'] * len(fields))}] | None"
    return [p._replace(type=outs) if fields and p.name == "out" else p for p in parameters]


def _fields(result: str) -> tuple[str, ...]:
    """The parts of a result that have names, with their types: `values, indices`."""
    parts = re.split(r",\s*(?![^\[]*\])", result)
    return tuple(part if ":" in part else f"{part}: Tensor" for part in parts) if len(parts) > 1 else ()


def _read(argument: ast.arg, kind: Any, default: ast.expr | None, known: dict[str, Parameter]) -> Parameter:
    name = argument.arg
    text = "" if default is None else ast.unparse(default)
    if argument.annotation is not None:
        type_ = ast.unparse(argument.annotation)
    elif name in known and known[name].type != "Any":
        type_ = known[name].type
        if not text:
            type_ = type_.removesuffix(" | None")
    else:
        type_ = _with_none(
            _type(name, "", ast.literal_eval(default) if default else inspect.Parameter.empty), text
        )
    return Parameter(name, kind, type_, text)


def _many(form: Form) -> list[Form]:
    """A form that takes any number of ints as two: with ints, and with a sequence of them."""
    kind = inspect.Parameter
    star = next((p for p in form.parameters if p.kind is kind.VAR_POSITIONAL), None)
    if star is None:
        return [form]
    if star.name == "tensors" or star.name in ("matrices",):
        each = star._replace(type="Tensor")
        listed = Parameter(star.name, kind.POSITIONAL_ONLY, "Sequence[Tensor]")
        return [_exchanged(form, star, each), _exchanged(form, star, listed)]
    if star.name not in MANY_INTS:
        return [form]
    keyword = next((p for p in form.parameters if p.name in ("size", "shape", "dims", "repeats")
                    and p.kind is kind.KEYWORD_ONLY), None)  # fmt: skip
    rest = form._replace(parameters=tuple(p for p in form.parameters if p is not keyword))
    name = keyword.name if keyword else star.name
    listed = Parameter(name, kind.POSITIONAL_OR_KEYWORD, "Sequence[int]")
    return [_exchanged(rest, star, star._replace(type="int")), _exchanged(rest, star, listed)]


def _exchanged(form: Form, old: Parameter, new: Parameter) -> Form:
    return form._replace(parameters=tuple(new if p is old else p for p in form.parameters))


def _by_axis(form: Form) -> list[Form]:
    """The form with NumPy's names of `dim` and `keepdim`, which functions of the table take too."""
    places = [p.name for p in form.parameters]
    if "dim" not in places:
        return []
    at = places.index("dim")
    found = []
    for k, p in enumerate(form.parameters):
        later = k >= at and p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        name = {"dim": "axis", "keepdim": "keepdims"}.get(p.name, p.name)
        default = "" if p.name == "dim" else p.default
        found.append(
            p._replace(name=name, default=default, kind=inspect.Parameter.KEYWORD_ONLY if later else p.kind)
        )
    # `axis` and all after it by name; what stood before them by place stays so
    kinds = [p for p in found if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    return [
        form._replace(parameters=(*kinds, *(p for p in found if p.kind is inspect.Parameter.KEYWORD_ONLY)))
    ]


def is_public(name: str) -> bool:
    """Whether a name of the table is for users: not an optimizer's step, say."""
    return not name.startswith("_") and not re.search("_step_$", name) and name != "pointwise"


def table_functions(space: str = "") -> dict[str, Callable[..., Any]]:
    """The public functions of a namespace below kiln, or of kiln's own."""
    start = f"{space}." if space else ""
    return {n: registry.function(start + n) for n in registry.function_names(space) if is_public(n)}


def table_methods() -> dict[str, Callable[..., Any]]:
    """The methods of tensors that are the table's."""
    registry.everything()
    return {n: f for n, f in sorted(registry.METHODS.items()) if hasattr(_core.Tensor, n)}
