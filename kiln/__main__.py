"""`python -m kiln program.py args...`: runs a program of PyTorch's with kiln under the name `torch`."""

from __future__ import annotations

import atexit
import os
import sys

import kiln
from kiln.as_torch import __version__, missing, run
from kiln.late import later

USAGE = """usage: python -m kiln [--missing] (program.py | -m module | -c text | -) [argument ...]
       python -m kiln (show | run) program.kiln [option ...]

Runs a program that says `import torch`, unchanged, on kiln. At its end, names of PyTorch that
it asked for and kiln has not are listed on stderr.

  program.py    a file, a folder or an archive with __main__.py
  -m module     a module or package, as python -m
  -c text       the program itself
  -             the program from standard input
  --missing     reads the program and those of its own modules that it imports, without running
                anything, and lists the names of PyTorch that kiln has not; 1 if there are any
  show, run     what an exported program holds; runs it on NumPy's files (--help says more)
  --version     kiln's version, and that of PyTorch which programs see
"""


def main() -> None:
    """Does what the command line says."""
    args = sys.argv[1:]
    if args[:1] == ["--missing"]:
        _list_missing(args[1:])
    if not args or args[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if args else sys.stderr)
        raise SystemExit(0 if args else 2)
    if args[0] in ("--version", "-V"):
        print(f"kiln {kiln.__version__}, as torch {__version__}")
        return
    if args[0] in ("show", "run") and not os.path.exists(args[0]):
        from kiln.export import command

        if args[0] == "run":
            command.run(args[1:])
        else:
            command.show(args[1:], later("kiln.symbolic.pictures", "drawn"))
        return
    if args[0] in ("-m", "-c") and len(args) < 2:
        print(f"Argument expected for the {args[0]} option\n{USAGE}", end="", file=sys.stderr)
        raise SystemExit(2)
    if args[0].startswith("-") and args[0] not in ("-m", "-c", "-"):
        print(f"unknown option {args[0]}\n{USAGE}", end="", file=sys.stderr)
        raise SystemExit(2)
    atexit.register(missing.Listener().report)
    try:
        if args[0] == "-m":
            program = run.module(args[1], args[2:])
        elif args[0] == "-c":
            program = run.text(args[1], args[2:])
        elif args[0] == "-":
            program = run.text(sys.stdin.read(), args[1:], "-")
        else:
            program = run.script(args[0], args[1:])
    except SyntaxError as error:  # of the program, as Python says it
        run.show_own(error)
        raise
    run.run(program)


def _list_missing(args: list[str]) -> None:
    """Prints what a program would miss; SystemExit with 1 if there is anything."""
    folder = None
    if args[:1] == ["-m"] and len(args) > 1:
        names = run.module(args[1], []).names
        args, folder = [names["__file__"]], os.path.dirname(names["__file__"])
        for _ in filter(None, (names["__package__"] or "").split(".")):  # modules are found from above it
            folder = os.path.dirname(folder)
    elif args and os.path.isdir(args[0]):
        args = [os.path.join(args[0], "__main__.py")]
    if not args:
        print(USAGE, end="", file=sys.stderr)
        raise SystemExit(2)
    from kiln.as_torch import reading

    try:
        found = reading.read(args[0], folder)
    except (OSError, SyntaxError) as error:
        print(f"{sys.executable} -m kiln: can't read {args[0]!r}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    for name in found:
        print(name)
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
