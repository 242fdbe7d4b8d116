"""Models of other people's: from a folder with a `hubconf.py`, weights from an address.

    load("folder", "resnet18", source="local")       calls the function resnet18 of folder/hubconf.py
    load_state_dict_from_url("https://...")          downloads once, reads with kiln.load

Nothing is fetched from GitHub: running code that was just downloaded is a program's own word (`git clone`).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from typing import Any
from urllib.parse import urlparse
from urllib.request import Request, urlopen

from kiln.absent import hint_missing as _hint_missing
from kiln.bars import progress as _bar
from kiln.errors import message
from kiln.files import write_atomically
from kiln.serialization import load as _load

__all__ = [
    "download_url_to_file", "get_dir", "help", "list", "load", "load_state_dict_from_url", "set_dir",
]  # fmt: skip

HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")  # in the name of a file: the first digits of its SHA-256

_folder: str | None = None


def _get_torch_home() -> str:  # torchvision asks
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    return os.path.expanduser(os.environ.get("TORCH_HOME", os.path.join(cache, "torch")))


def get_dir() -> str:
    """Where downloads are kept: what `set_dir` said, `$TORCH_HOME/hub`, or `~/.cache/torch/hub`."""
    return os.path.join(_get_torch_home(), "hub") if _folder is None else _folder


def set_dir(d: str | os.PathLike[str]) -> None:
    """Says where downloads are kept."""
    global _folder
    _folder = os.path.expanduser(os.fspath(d))


def load(repo_or_dir: str, model: str, *args: Any, source: str = "github", **kwargs: Any) -> Any:
    """What the function `model` of a folder's `hubconf.py` gives for the further arguments.

    NotImplementedError but for `source="local"`: clone the repository first. RuntimeError if there is no such
    function.
    """
    options = {"trust_repo", "force_reload", "verbose", "skip_validation"}
    given = {name: value for name, value in kwargs.items() if name not in options}
    return _entry(repo_or_dir, model, source)(*args, **given)


def list(github: str, source: str = "github", **options: Any) -> Any:
    """The names of the functions of a folder's `hubconf.py`, with `source="local"`."""
    conf = _conf(github, source)
    return [name for name, value in vars(conf).items() if callable(value) and not name.startswith("_")]


def help(github: str, model: str, source: str = "github", **options: Any) -> str | None:
    """The docstring of a function of a folder's `hubconf.py`, with `source="local"`."""
    return _entry(github, model, source).__doc__


def _entry(folder: str, model: str, source: str) -> Callable[..., Any]:
    found: Any = getattr(_conf(folder, source), model, None)
    if not callable(found):
        raise RuntimeError(f"Cannot find callable {model} in hubconf")
    return found  # type: ignore[no-any-return]


def _conf(folder: str, source: str) -> Any:
    """The module `hubconf` of a folder, on whose path it may import what is beside it."""
    if source not in ("github", "local"):
        raise ValueError(f'Unknown source: "{source}". Allowed values: "github" | "local".')
    if source == "github":
        todo = "clone the repository and give its folder with source='local'"
        raise NotImplementedError(message("hub", "source='local'", "source='github'", todo))
    path = os.path.join(folder, "hubconf.py")
    spec = spec_from_file_location("hubconf", path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise FileNotFoundError(f"hub: {path}: no such file")
    module = module_from_spec(spec)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    missing = [need for need in getattr(module, "dependencies", []) if not _is_there(need)]
    if missing:
        raise RuntimeError(f"Missing dependencies: {', '.join(missing)}")
    return module


def _is_there(package: str) -> bool:
    return package == "torch" or find_spec(package) is not None


def download_url_to_file(url: str, dst: str, hash_prefix: str | None = None, progress: bool = True) -> None:
    """Reads an address into a file, whole or not at all, with a bar of `kiln.progress` where it shows one.

    RuntimeError if the content's SHA-256 does not begin with `hash_prefix`.
    """
    import hashlib

    with urlopen(Request(url, headers={"User-Agent": "kiln.hub"})) as answer:
        length = answer.headers.get("Content-Length") if answer.headers else None
        total = int(length) if length else None
        bar = _bar(total=total, unit="B", unit_scale=True, disable=None if progress else True)
        pieces = []
        with bar:
            while piece := answer.read(1 << 20):
                pieces.append(piece)
                bar.update(len(piece))
        content = b"".join(pieces)
    found = hashlib.sha256(content).hexdigest()
    if hash_prefix and not found.startswith(hash_prefix):
        raise RuntimeError(
            f'invalid hash value (expected "{hash_prefix}", got "{found[: len(hash_prefix)]}")'
        )
    write_atomically(dst, [content])


def load_state_dict_from_url(
    url: str,
    model_dir: str | None = None,
    map_location: Any = None,
    progress: bool = True,
    check_hash: bool = False,
    file_name: str | None = None,
    weights_only: bool = True,
) -> Any:
    """What `kiln.load` reads in the file at an address, which is downloaded the first time.

    It is kept under `model_dir`, or `get_dir()/checkpoints`, by `file_name` or the last part of the address.
    """
    folder = model_dir if model_dir is not None else os.path.join(get_dir(), "checkpoints")
    os.makedirs(folder, exist_ok=True)
    name = file_name or os.path.basename(urlparse(url).path)
    place = os.path.join(folder, name)
    if not os.path.exists(place):
        found = HASH_REGEX.search(name) if check_hash else None
        download_url_to_file(url, place, found[1] if found else None, progress)
    return _load(place, map_location=map_location, weights_only=weights_only)


_hint_missing(__name__)
