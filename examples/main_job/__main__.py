"""From a data set to programs that run without Python, in under three minutes.

    python examples/main_job [--folder main_job] [--epochs 12]

A convolution net learns to read digits, eagerly; a wrong line is found with print; the step is compiled, with
the same bits; the program is exported and run from C and from JavaScript, each compared with the model; a
recursive model reads small trees, one at a time and batched. All of it is shown on a page, FOLDER/index.html.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from page import page
from steps import Notes, digits, export, trees

import kiln


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("main_job"))
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    notes = Notes(options.folder)
    model, test = digits(notes, options.epochs)
    export(notes, model, test)
    trees(notes)
    notes.seconds = time.perf_counter() - begin
    (options.folder / "index.html").write_text(page(notes), encoding="utf-8")
    print(f"\n{notes.seconds:.0f} s; the page: {options.folder / 'index.html'}")
    if notes.wrong:
        sys.exit("\n".join(notes.wrong))


if __name__ == "__main__":
    kiln.manual_seed(0)
    main()
