"""Makes the pack: runs programs, and keeps every answer they asked for, and their kernels for each level.

    python pack/make.py FOLDER       writes the files of kiln/codegen/pack.py

Run by the build of a wheel, with the very kiln that is installed in reach. Each program has its own process.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"KILN_PACK": "0", "KILN_CACHE_DIR": os.devnull}  # nothing is found, nothing kept

from kiln.capture import programs as planning
from kiln.capture import service
from kiln.codegen import kept, pack
from kiln.codegen.identity import host_source
from kiln.codegen.target import LEVELS, Target, host_target

Entries = dict[bytes, bytes]


def noted() -> Entries:
    """What is stored from now on; nothing else is found, and nothing goes to the disk."""
    entries: Entries = {}
    host = host_target()

    def load(key: bytes, target: Target | None = None) -> bytes | None:
        return entries.get(key) if target in (None, host) else None

    def store(key: bytes, entry: bytes, target: Target | None = None) -> bool:
        if target in (None, host):
            entries[key] = entry
        return True

    kept.load, kept.store = load, store
    return entries


def levels() -> list[str]:
    """The levels of this machine's kind, whichever of them it has itself."""
    return [name for name, target in LEVELS.items() if target.triple == host_target().triple]


def run(name: str) -> dict[str, Entries]:
    """The entries of a program: answers, and kernels by level."""
    import programs

    entries = noted()
    getattr(programs, name)()
    service.wait()
    kernels = planning._planned
    code = set(kernels) | {
        key for key, entry in entries.items() if entry.startswith((b"\x7fELF", b"KilnObjs"))
    }
    found = {pack.ANSWERS: {key: entry for key, entry in entries.items() if key not in code}}
    for level in levels():
        found[level] = {key: kernel.object(LEVELS[level]) for key, kernel in kernels.items()}
    return found


def main(folder: Path) -> None:
    """Writes a file of answers, and one of kernels for each level."""
    import programs

    packs: dict[str, Entries] = {name: {} for name in (pack.ANSWERS, *levels())}
    with tempfile.TemporaryDirectory() as elsewhere:
        os.chdir(elsewhere)  # programs save files
        with multiprocessing.get_context("spawn").Pool(
            min(os.cpu_count() or 1, 4), maxtasksperchild=1
        ) as pool:
            for found in pool.imap_unordered(run, [f.__name__ for f in programs.PROGRAMS], chunksize=1):
                for name, entries in found.items():
                    packs[name].update(entries)
        os.chdir(folder.parent)
    folder.mkdir(exist_ok=True)
    for name, entries in packs.items():
        pack.write(str(folder / name), host_source(), entries)
        print(f"{name}: {len(entries)} entries, {(folder / name).stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
