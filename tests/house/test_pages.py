"""What pages say of the house: every room has one, it fits a page, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_PAGE = 1050  # words
# rooms that no program imports from: who looks for something there has the page alone
ENGINE = (
    "batching capture codegen export func graph passes scalars scripting serialization standalone symbolic "
    "table testing tracing"
).split()
ROOMS = [*(ROOT / "kiln" / name for name in ENGINE), ROOT / "native"]
PAGES = sorted(
    page
    for part in ("kiln", "native", "tests")
    for page in (ROOT / part).rglob("README.md")
    if page.is_file()
)
FILES = [
    p
    for part in ("kiln", "native", "tests", "docs", "bench", "pack", "examples")
    for p in (ROOT / part).rglob("*")
]
WRITTEN = {"docs/ops.md", "ops.md", "kiln/table/index.txt"}  # by the build


def sources(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.iterdir()) if p.suffix in (".py", ".cpp", ".h") and p.stem != "__init__"]


def page_of(folder: Path) -> Path:
    """The page of a folder, or of the nearest folder above that has one."""
    while not (folder / "README.md").exists():
        folder = folder.parent
    return folder / "README.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.parent.relative_to(ROOT)))
def test_a_page_is_no_longer_than_one(page: Path) -> None:
    words = len(page.read_text().split())
    assert words <= LONGEST_PAGE, (
        f"{words} words: a room within has a page of its own, figures docs/measurements.md"
    )


def test_every_file_of_the_engine_is_named_on_its_page() -> None:
    for room in ROOMS:
        for folder in [room, *(p for p in room.rglob("*") if p.is_dir() and p.name != "__pycache__")]:
            named = set(re.findall(r"\w+", page_of(folder).read_text()))
            missing = [p.name for p in sources(folder) if p.stem not in named]
            assert not missing, f"{page_of(folder).relative_to(ROOT)} says nothing of {', '.join(missing)}"


def test_every_part_stands_in_the_house() -> None:
    """Each package of kiln in the list of docs/architecture.md, each folder of tests in that of its page."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    house = text[text.index("## 2. The house") : text.index("The table is read as far as")]
    for package in sorted((ROOT / "kiln").iterdir()):
        if (package / "__init__.py").exists():
            assert re.search(rf"\b{package.name}/", house), f"docs/architecture.md, 2: kiln/{package.name}?"
    page = (ROOT / "tests" / "README.md").read_text()
    for folder in sorted((ROOT / "tests").iterdir()):
        if folder.is_dir() and folder.name[0] not in "._":
            assert f"`{folder.name}/`" in page, f"tests/README.md says nothing of {folder.name}/"


def test_files_that_pages_name_are_there() -> None:
    ends = _ends() | WRITTEN
    for page in [*PAGES, *(ROOT / "docs").glob("*.md"), ROOT / "CONTRIBUTING.md"]:
        for name in re.findall(r"`([\w./]+\.(?:py|cpp|h|md|txt|sh))`", page.read_text()):
            assert name.removeprefix("../") in ends, f"{page.relative_to(ROOT)}: `{name}` is not there"


# files of programs, of which sources speak as examples
EXAMPLES = {"train.py", "hubconf.py", "folder/hubconf.py"}


def test_files_that_sources_name_are_there() -> None:
    """In comments and docstrings: `plan.py`, `native/call/look.h`."""
    ends = _ends() | WRITTEN | EXAMPLES
    for path in sorted((ROOT / "kiln").rglob("*.py")):
        for name in re.findall(r"(?<![\w\"'./{}-])([\w/]+\.(?:py|md))\b(?![\"'(])", path.read_text()):
            assert name in ends, f"{path.relative_to(ROOT)}: {name} is not there"


def _ends() -> set[str]:
    """Every file's path below the root, and whatever of it follows a slash."""
    paths = [str(p.relative_to(ROOT)) for p in FILES]
    return {path[k:] for path in paths for k in [0, *(m.end() for m in re.finditer("/", path))]}
