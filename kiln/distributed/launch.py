"""`python -m kiln.distributed.launch`: `kiln.distributed.run` under its old name.

The program gets `--local-rank=0` as its first argument, unless `--use-env` is given.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from kiln.distributed.run import get_args_parser, run


def parse_args(args: Sequence[str] | None) -> Namespace:
    """What a command line says."""
    parser = get_args_parser()
    parser.add_argument(
        "--use-env",
        "--use_env",
        action="store_true",
        help="the program reads LOCAL_RANK, and gets no argument",
    )
    return parser.parse_args(args)


def launch(args: Namespace) -> int:
    """Runs the processes to their end; the exit code."""
    if args.no_python and not args.use_env:
        raise ValueError("When using the '--no-python' flag, you must also set the '--use-env' flag.")
    return run(args)


def main(args: Sequence[str] | None = None) -> None:
    """Runs a command line; SystemExit with the code of the process that failed."""
    raise SystemExit(launch(parse_args(args)))


if __name__ == "__main__":
    main()
