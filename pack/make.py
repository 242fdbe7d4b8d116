"""Makes the pack: runs programs, and keeps every answer they asked for, and their kernels for each level.

    python pack/make.py FOLDER       writes the files of kiln/codegen/pack.py

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


def answers() -> Entries:
    """What the programs asked for, beside kernels."""
    entries = noted()
    with tempfile.TemporaryDirectory() as elsewhere:
        os.chdir(elsewhere)  # programs save files
        for program in PROGRAMS:
            program()
        os.chdir("/")
    service.wait()
    code = (b"\x7fELF", b"KilnObjs")
    return {key: entry for key, entry in entries.items() if not entry.startswith(code)}


def code_of(task: tuple[bytes, str]) -> bytes:
    """The code of a kernel that was planned, for a level."""
    key, level = task
    return planning._planned[key].object(LEVELS[level])


def main(folder: Path) -> None:
    """Writes a file of answers, and one of kernels for each level."""
    os.environ |= {"KILN_PACK": "0", "KILN_CACHE_DIR": os.devnull}  # nothing is found, nothing kept
    packs = {pack.ANSWERS: answers()}
    tasks = [(key, level) for level in levels() for key in planning._planned]
    with multiprocessing.get_context("fork").Pool(
        min(os.cpu_count() or 1, 4)
    ) as pool:  # which inherit the plans
        for (key, level), code in zip(tasks, pool.imap(code_of, tasks, chunksize=8)):
            packs.setdefault(level, {})[key] = code
    folder.mkdir(exist_ok=True)
    for name, entries in packs.items():
        pack.write(str(folder / name), host_source(), entries)
        print(f"{name}: {len(entries)} entries, {(folder / name).stat().st_size >> 10} KiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
