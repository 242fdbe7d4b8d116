"""Makes the pack: runs programs, and keeps every answer they asked for, and their kernels for each level.

    python pack/make.py FOLDER       writes the files of kiln/codegen/store/pack.py

Run by the build of a wheel, with the very kiln that is installed in reach.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

from programs import PROGRAMS

from kiln.capture import programs as planning
from kiln.capture import service
from kiln.codegen.store import kept, pack
from kiln.codegen.store.identity import host_source
from kiln.codegen.target import LEVELS, Target, host_target

Entries = dict[bytes, bytes]
CODE = (b"\x7fELF", b"KilnObjs")  # what a kernel's entry starts with


def noted() -> dict[str, Entries]:
    """The answers made from now on; no other is found. Kernels and their parts go to the disk too, for every
    process.
    """
    found: dict[str, Entries] = {name: {} for name in (pack.ANSWERS, *levels())}
    answers = found[pack.ANSWERS]
    disk_load, disk_store = kept.load, kept.store

    def load(key: bytes, target: Target | None = None) -> bytes | None:
        return answers.get(key) or disk_load(key, target)

    def store(key: bytes, entry: bytes, target: Target | None = None) -> bool:
        if not entry.startswith(CODE):
            answers[key] = entry
            return True
        found[(target or host_target()).name][key] = entry
        return disk_store(key, entry, target)

    kept.load, kept.store = load, store
    return found


def levels() -> list[str]:
    """The levels of this machine's kind, whichever of them it has itself."""
    return [name for name, target in LEVELS.items() if target.triple == host_target().triple]


def run(number: int) -> dict[str, Entries]:
    """What a program asks for in a process of its own: it depends on what came before."""
    found = noted()
    PROGRAMS[number]()
    service.wait()
    for level in levels():
        found[level] |= {key: kernel.object(LEVELS[level]) for key, kernel in planning.by_key.items()}
    return found


def main(folder: Path) -> None:
    """Writes a file of answers, and one of kernels for each level."""
    packs: dict[str, Entries] = {name: {} for name in (pack.ANSWERS, *levels())}
    workers = min(os.cpu_count() or 1, 4)
    with tempfile.TemporaryDirectory() as elsewhere:
        os.environ |= {"KILN_PACK": "0", "KILN_CACHE_DIR": elsewhere}
        os.chdir(elsewhere)  # programs save files
        with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=1) as pool:
            for found in pool.imap_unordered(run, range(len(PROGRAMS)), chunksize=1):
                for name, entries in found.items():
                    packs[name].update(entries)
        os.chdir("/")
    folder.mkdir(exist_ok=True)
    for name, entries in packs.items():
        pack.write(str(folder / name), host_source(), entries)
        print(f"{name}: {len(entries)} entries, {(folder / name).stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
