"""Builds the site into a folder: python docs/site/build.py [folder]

Pages keep their places in the repository, so that a link means the same there and here; what a page links to,
page or file, comes along.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
from pathlib import Path

import api
from mkdocs.commands.build import build
from mkdocs.config import load_config

from kiln.testing import op_page

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def gather(pages: Path) -> None:
    """Copies the pages of docs/ and of the top folder, and what they lead to."""
    waiting = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    done = set()
    while waiting:
        path = waiting.pop().resolve()
        if path in done or not path.is_file():
            continue
        done.add(path)
        copy = pages / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        if path.suffix == ".md":
            waiting += [path.parent / target for target in LINK.findall(path.read_text())]


def main(folder: Path, pages: Path) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    shutil.rmtree(pages, ignore_errors=True)
    gather(pages)
    if not (pages / "docs/ops.md").exists():  # the slow part, which `make docs` does before this
        (pages / "docs/ops.md").write_text(op_page.page())
    (pages / "api").mkdir()
    (pages / "api/index.md").write_text(api.index())
    for place, text in api.pages():
        (pages / f"api/{place}.md").write_text(text)
    for name in ("site.css", "iframe-worker.js"):
        shutil.copyfile(HERE / name, pages / name)
    config = load_config(str(HERE / "mkdocs.yml"), docs_dir=str(pages), site_dir=str(folder))
    modules = [{place: f"api/{place}.md"} for place in api.MODULES]
    config.nav.insert(3, {"API": ["api/index.md", *modules]})
    build(config)


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/site").resolve()
    main(target, target.with_name(target.name + "-pages"))
