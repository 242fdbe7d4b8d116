"""`NamedTuple`, for classes that every program makes: as `typing`'s, but its annotations stay texts.

`typing` compiles the annotation of every field, 0.1 ms each, which nobody asks for; here that is left to
`typing.get_type_hints`. A leaf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from collections import namedtuple

    class _Made(type):
        def __new__(cls, name: str, bases: tuple[type, ...], own: dict[str, object]) -> type:
            fields = own.get("__annotations__", {})
            module = own["__module__"]
            made = namedtuple(name, fields, defaults=[own[f] for f in fields if f in own], module=module)
            for key, value in own.items():
                if key not in fields:
                    setattr(made, key, value)
            return made

    NamedTuple = type.__new__(_Made, "NamedTuple", (), {})
