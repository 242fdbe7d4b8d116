"""The site of `make docs`: it builds without a broken link, shows every public name, and fetches nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

import kiln

ROOT = Path(__file__).parents[2]
BUILD = """
import sys
sys.path.insert(0, sys.argv[1])
from kiln.testing import op_page
op_page.dtypes = lambda record: ""  # a minute of calls
import build
from pathlib import Path
build.main(Path(sys.argv[2]), Path(sys.argv[3]))
"""
INNER = ("kiln.errors", "kiln.late")  # what kiln's own modules import
LISTS = ["kiln", *(f"kiln.{name}" for name in """
    nn nn.functional optim autograd func export onnx fx jit graph batching distributions linalg special
    utils.data amp profiler random compiler""".split())]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(ROOT / "docs/site"), str(folder / "site"), str(folder / "pages")],
        capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(Path(kiln.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def names_in(page: Path) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', page.read_text()))


@pytest.mark.parametrize("place", LISTS)
def test_every_public_name_is_on_the_page_of_its_module(site: Path, place: str) -> None:
    module = import_module(place)
    # modules are those that something has imported: which of them are public has a list
    found = {n: getattr(module, n, None) for n in dir(module)}
    found = {n: x for n, x in found.items() if not isinstance(x, ModuleType)}
    listed = [n for n in getattr(module, "__all__", ()) if n in found]
    if not hasattr(module, "__all__"):  # what stands in no list is public if it is kiln's, without underscore
        own = {n: str(getattr(x, "__module__", "")) for n, x in found.items()}
        listed = [n for n, home in own.items() if home.startswith("kiln") and home not in INNER]
    shown = names_in(site / f"api/{place}.html")
    assert listed and not [n for n in listed if n[0] != "_" and f"{place}.{n}" not in shown]


def test_every_function_of_the_table_is_on_a_page(site: Path) -> None:
    shown = set().union(*(names_in(page) for page in (site / "api").glob("*.html")))
    public = [name for name in kiln.ops.functions() if not name.rpartition(".")[2].startswith("_")]
    assert public and not [name for name in public if f"kiln.{name}" not in shown]


def test_links_within_the_site_lead_somewhere(site: Path) -> None:
    """Those of the theme and of pages that are written in HTML too, with their places within pages."""
    pages = {page.resolve(): page.read_text() for page in site.rglob("*.html")}
    ids = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    for page, text in pages.items():
        if page.name == "404.html":
            continue
        for link in set(re.findall(r'\b(?:href|src)="([^"]+)"', text)):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, place = unquote(link).partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page}: {link}"
            assert not place or target not in ids or place in ids[target] or place == "__", f"{page}: {link}"


def test_the_site_needs_no_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        loads = re.findall(r'<(?:script|img|iframe)[^>]*\bsrc="(https?:[^"]*)"', page.read_text())
        loads += re.findall(
            r'<link[^>]*rel="(?:stylesheet|preconnect|icon)"[^>]*href="(https?:[^"]*)"', page.read_text()
        )
        assert not loads, page


def test_every_environment_variable_is_on_its_page() -> None:
    """What code of kiln, its tests and its tools asks the environment for, and what CMake is told."""
    asked = set()
    places = [
        p
        for part in ("kiln", "native", "tests", "bench", "pack", "examples")
        for p in (ROOT / part).rglob("*")
    ]
    for path in [*places, ROOT / "CMakeLists.txt", ROOT / "Makefile"]:
        if path.suffix in (".py", ".cpp", ".h", ".sh", ".txt") or path.name == "Makefile":
            asked |= set(re.findall(r"\bKILN_[A-Z_]*[A-Z]\b", path.read_text()))
    said = set(re.findall(r"\bKILN_[A-Z_]*[A-Z]\b", (ROOT / "docs/environment.md").read_text()))
    assert said == asked
