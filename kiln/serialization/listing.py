"""What a file names that `load` would refuse."""

from __future__ import annotations

from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from typing import IO, Any

from kiln.serialization.archive import Archive
from kiln.serialization.safe import asked_for
from kiln.serialization.source import Damaged, Path, opened
from kiln.serialization.words import Missing, meaning
from kiln.table.callables import name_helpers as _name_helpers


def get_unsafe_globals_in_checkpoint(f: Path | IO[bytes]) -> list[str]:
    """The names of classes and functions in a file of the newer format that `load` does not know as data, and
    that `add_safe_globals` has not allowed. ValueError for another file.

    >>> import argparse, io, kiln
    >>> file = io.BytesIO()
    >>> kiln.save(argparse.Namespace(lr=0.1), file)
    >>> _ = file.seek(0)
    >>> kiln.serialization.get_unsafe_globals_in_checkpoint(file)
    ['argparse.Namespace']
    """
    source = opened(f)
    try:
        try:
            found = _names(Archive(source).read("data.pkl"))
        except Damaged as damage:
            expected = "Expected input to be a checkpoint returned by torch.save"
            raise ValueError(f"{expected}: {source.where}: {damage}") from None
    finally:
        if source.file is not f:
            source.file.close()
    return [name for name in found if not _known(name)]


def _known(name: str) -> bool:
    module, _, last = name.rpartition(".")
    try:
        return asked_for(module, last) is not None or meaning(name) is not None
    except Missing:
        return True


def _names(content: bytes) -> list[str]:
    """The names in a pickle, each once."""
    import pickletools

    found: dict[str, None] = {}
    texts: list[str] = []  # what STACK_GLOBAL takes its two names from
    memo: dict[int, str] = {}
    old = True
    try:
        for code, given, _ in pickletools.genops(content):
            argument: Any = given
            if code.name == "PROTO":
                old = argument <= 2
            elif code.name in ("GLOBAL", "STACK_GLOBAL"):
                pair = tuple(argument.split(" ", 1)) if argument else tuple(texts[-2:])
                if len(pair) != 2:
                    raise Damaged("expected two names before STACK_GLOBAL")
                module, name = NAME_MAPPING.get(pair, pair) if old else pair
                found[f"{IMPORT_MAPPING.get(module, module) if old else module}.{name}"] = None
            elif isinstance(argument, str):
                texts.append(argument)
            elif code.name in ("BINGET", "LONG_BINGET") and argument in memo:
                texts.append(memo[argument])
            elif code.name == "MEMOIZE" and texts:
                memo[len(memo)] = texts[-1]
            elif code.name in ("BINPUT", "LONG_BINPUT") and texts:
                memo[argument] = texts[-1]
    except ValueError as error:
        raise Damaged(str(error)) from None
    return list(found)


_name_helpers(globals(), __name__)
