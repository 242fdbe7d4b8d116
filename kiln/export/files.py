"""The file of a program: safetensors, with these texts in its metadata.

    kiln.program     the format's version
    kiln.version     of what wrote it
    kiln.graph       the graph's text (kiln/graph/text.py): inputs, state, numbers, results, written state
    kiln.signature   JSON: names and containers of inputs and results, names of the state's tensors, sizes
                     that vary with their ranges and the answers that were assumed of them
    kiln.expanded    a digest of the graph without composites: another one says that a composite of this
                     version is made of other ops than it was

Parameters, buffers and constants are the file's tensors. Nothing in it is executed; the graph is read by a
grammar and inferred anew, and what ops refuse of values (positions out of range) is found from the graph: an
edited file can be wrong, not unsafe.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any

from kiln import _core
from kiln.errors import describe, message, warn
from kiln.export.known import program
from kiln.export.program import ExportedProgram
from kiln.export.signature import asked_last, read_name, signature
from kiln.graph.graph import Graph
from kiln.graph.text import TextError, text
from kiln.late import later
from kiln.serialization.source import Damaged, opened
from kiln.serialization.tensor_file import named_chunks, read_entry, read_header
from kiln.tracing.captured import Kept
from kiln.version import __version__

_clone, _expand = later("kiln.passes.rewrite", "clone"), later("kiln.tracing.expand", "expand")
_digest = later("kiln.codegen.store.identity", "digest")
_write_atomically, _write_to = later("kiln.files", "write_atomically"), later("kiln.files", "write_to")

FORMAT = "2"
_KEYS = ("kiln.program", "kiln.version", "kiln.graph", "kiln.signature", "kiln.expanded")

FileLike = str | os.PathLike[str] | IO[bytes]


@_core.Function
def save(
    ep: ExportedProgram,
    f: FileLike,
    *,
    extra_files: Mapping[str, Any] | None = None,
    opset_version: dict[str, int] | None = None,
    pickle_protocol: int = 2,
) -> None:
    """Writes a program into one file, which any reader of safetensors opens as its tensors.

    `extra_files`: texts that are kept with it. A path is replaced in one move once all is on disk.
    """
    if not isinstance(ep, ExportedProgram):
        raise TypeError(message("export.save", "an ExportedProgram", describe(ep), "export.export makes one"))
    chunks = _chunks(ep, dict(extra_files or {}))
    if isinstance(f, (str, os.PathLike)):
        _write_atomically(os.fspath(f), chunks)
    else:
        _write_to(f, chunks)


def _chunks(ep: ExportedProgram, extra: dict[str, Any]) -> Iterator[Any]:
    ep._program.state()  # refused where its tensors are of no program
    captured = ep._captured
    kept, checks = asked_last(captured)  # what checks of ops look at is found again
    graph, values = _clone(captured.graph)
    graph.finish([values[id(captured.graph.outputs[k])] for k in kept])
    tensors = {s.name: held[key].detach() for s, (held, key) in zip(captured.state, ep._homes)}
    tensors.update((read_name(k), c.example) for k, c in enumerate(checks) if isinstance(c, Kept))
    trains = [bool(held[key].requires_grad) for held, key in ep._homes]
    texts = {
        "kiln.program": FORMAT,
        "kiln.version": __version__,
        "kiln.graph": text(graph),
        "kiln.signature": json.dumps(signature(captured, trains), ensure_ascii=False, separators=(",", ":")),
        "kiln.expanded": _expanded(graph),
    }
    for name, content in extra.items():
        if not isinstance(content, (str, bytes)):
            raise TypeError(message("export.save", "texts in extra_files", f"{describe(content)} at {name}"))
        texts[f"extra.{name}"] = content if isinstance(content, str) else content.decode()
    return named_chunks(tensors, texts)


def _expanded(graph: Graph) -> str:
    found: bytes = _digest(b"expanded", text(_expand(graph)).encode())
    return found.hex()


@_core.Function
def load(
    f: FileLike,
    *,
    extra_files: dict[str, Any] | None = None,
    expected_opset_version: dict[str, int] | None = None,
) -> ExportedProgram:
    """The program that a file holds, verified. ValueError for what is none, with the line at fault.

    `extra_files`: names of texts that were kept with it, which are put in as values.
    """
    with opened(f) as source:
        where = source.where
        try:
            entries, texts, start = read_header(source)
            tensors = {e.name: read_entry(source, start, e) for e in entries}
        except Damaged as damage:
            raise ValueError(f"export.load: {where} is not a whole safetensors file: {damage}") from None
    version = texts.get("kiln.program")
    if version is None:
        raise ValueError(f"export.load: {where} holds tensors but no program: kiln.load reads it")
    if version != FORMAT:
        raise ValueError(
            f"export.load: {where} is a program of format {version:.20}; this kiln ({__version__}) reads "
            f"format {FORMAT}"
        )
    missing = [key for key in _KEYS if key not in texts]
    if missing:
        raise ValueError(f"export.load: {where} has no {missing[0]}")
    try:
        captured, trains = program(texts["kiln.graph"], texts["kiln.signature"], tensors)
    except TextError as error:
        raise ValueError(f"export.load: {where}: {error}") from None
    for state, wanted in zip(captured.state, trains):
        if wanted:
            state.tensor.requires_grad_()
    if texts["kiln.version"] != __version__ and _expanded(captured.graph) != texts["kiln.expanded"]:
        warn(
            f"export.load: {where} was written by kiln {texts['kiln.version']:.20}, which computes some of "
            "its ops otherwise: results may differ in their last digits",
            UserWarning,
        )
    for name in extra_files or {}:
        if f"extra.{name}" not in texts:
            raise ValueError(f"export.load: {where} keeps no text called {name!r}")
        assert extra_files is not None
        extra_files[name] = texts[f"extra.{name}"]
    try:
        made = ExportedProgram(captured)
    except ValueError as error:
        raise ValueError(f"export.load: {where}: {error}") from None
    made.train(False)
    return made
