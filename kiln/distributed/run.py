"""`python -m kiln.distributed.run [option ...] program.py [argument ...]`: a program in several processes.

Every process finds its place in the environment: RANK of WORLD_SIZE, LOCAL_RANK of LOCAL_WORLD_SIZE on this
machine, and the store at MASTER_ADDR and MASTER_PORT, whose server is this program. `--nnodes` machines run
one each, with `--node-rank` and the `--master-addr` and `--master-port` of the first.

Signals are passed on. When a process fails the others are ended, and its exit code is this program's. Options
are torchrun's, also as its PET_ variables.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import uuid
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kiln.distributed.store import TCPStore
from kiln.distributed.workers import Place, Workers

# what chooses nothing: processes are started in one way, and their number is fixed
_WITHOUT_EFFECT = (
    "start-method monitor-interval rdzv-conf event-log-handler local-addr logs-specs numa-binding "
    "signals-to-handle"
)
_PORT = 29500


class Failed(NamedTuple):
    """The process that ended the run."""

    rank: int
    pid: int
    code: int  # of Popen: below 0 for a signal

    def __str__(self) -> str:
        how = f"exited with code {self.code}"
        if self.code < 0:
            how = f"was ended by signal {-self.code} ({signal.Signals(-self.code).name})"
        return f"rank {self.rank} (pid {self.pid}) {how}"


def get_args_parser() -> ArgumentParser:
    """The options, with defaults of the environment: PET_NPROC_PER_NODE for --nproc-per-node."""
    parser = ArgumentParser("kiln.distributed.run", description="Runs a program in several processes.")

    def option(name: str, help: str, default: Any = None, short: str | None = None, **kwargs: Any) -> None:
        names = [*([short] if short else []), f"--{name}", *({f"--{name.replace('-', '_')}"} - {f"--{name}"})]
        variable = "PET_" + name.replace("-", "_").upper()
        if kwargs.get("action") == "store_true":
            default = os.environ.get(variable, "0") == "1"
        parser.add_argument(*names, help=help, default=os.environ.get(variable, default), **kwargs)

    option("nnodes", "how many machines", "1")
    option("nproc-per-node", 'processes on this machine: a number, "cpu" or "auto" (one for each CPU)', "1")
    option("node-rank", "which of the machines this is", None, type=int)
    option("master-addr", "the address of the first machine", "127.0.0.1")
    option("master-port", f"a port of the first machine (of several: {_PORT})", None, type=int)
    option("standalone", "this machine alone, at a port that is free", action="store_true")
    option("rdzv-backend", "static or c10d", "static")
    option("rdzv-endpoint", "host:port of the first machine", "")
    option("rdzv-id", "the name of the run, TORCHELASTIC_RUN_ID", "none")
    option("max-restarts", "how often all processes are started again after one failed", 0, type=int)
    option("role", "ROLE_NAME of the processes", "default")
    option("module", "the program is a module, as of python -m", short="-m", action="store_true")
    option("no-python", "the program is run as it is, not by Python", action="store_true")
    option("log-dir", "the folder of what --redirects and --tee write")
    option("redirects", "what is written to files: 1 stdout, 2 stderr, 3 both, or 0:3,1:1", "0", short="-r")
    option("tee", "what is written to files and shown, as --redirects", "0", short="-t")
    option("shutdown-timeout", "seconds that processes have to end by themselves", 5.0, type=float)
    for name in _WITHOUT_EFFECT.split():
        option(name, "of torchrun; chooses nothing")
    parser.add_argument("training_script", metavar="program")
    parser.add_argument("training_script_args", metavar="argument", nargs=REMAINDER)
    return parser


def parse_args(args: Sequence[str] | None) -> Namespace:
    """What a command line says."""
    return get_args_parser().parse_args(args)


def main(args: Sequence[str] | None = None) -> None:
    """Runs a command line; SystemExit with the code of the process that failed."""
    raise SystemExit(run(parse_args(args)))


def run(args: Namespace) -> int:
    """Runs the processes to their end: 0, the code of the one that failed, or 128 with a signal's number."""
    place = _place(args)
    command = _command(args)
    if "OMP_NUM_THREADS" not in os.environ and place.local_size > 1:
        stars = "*" * 41
        _say(
            f"\n{stars}\nSetting OMP_NUM_THREADS environment variable for each process to be 1 in default, "
            "to avoid your system being overloaded, please further tune the variable for optimal "
            f"performance in your application as needed. \n{stars}"
        )
        os.environ["OMP_NUM_THREADS"] = "1"
    if "OMP_NUM_THREADS" in os.environ:
        os.environ.setdefault("KILN_NUM_THREADS", os.environ["OMP_NUM_THREADS"])
    restarts = args.max_restarts if place.nodes == 1 else 0
    logs = _logs(args)
    for attempt in range(restarts + 1):
        # a server for each attempt: keys of an earlier one would be taken for those of this one
        store = _server(place)
        given = {
            "MASTER_ADDR": place.host,
            "MASTER_PORT": str(store.port if store else place.port),
            "TORCHELASTIC_RUN_ID": place.run_id,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "TORCHELASTIC_MAX_RESTARTS": str(restarts),
        }
        workers = Workers(command, place, given, logs / f"attempt_{attempt}" if logs else None)
        failed = workers.run(
            args.redirects, args.tee, args.shutdown_timeout, not getattr(args, "use_env", True)
        )
        del store
        if failed is None:
            return 0
        if isinstance(failed, signal.Signals):
            return 128 + failed
        failure = Failed(*failed)
        again = attempt < restarts
        others = "" if place.local_size == 1 else "; the other processes were ended"
        _say(f"{failure}{others}{'; all are started again' if again else ''}")
        if not again:
            return failure.code if failure.code > 0 else 128 - failure.code
    raise AssertionError("the last attempt returns")


def _say(text: str) -> None:
    print(f"kiln.distributed.run: {text}", file=sys.stderr, flush=True)


def _place(args: Namespace) -> Place:
    """Which machine this is of how many, and where the store is. ValueError for what cannot be."""
    least, _, most = args.nnodes.partition(":")
    if most not in ("", least):
        raise ValueError(f"nnodes={args.nnodes}: the number of machines does not vary while a program runs")
    if args.rdzv_backend not in ("static", "c10d"):
        raise ValueError(f"rdzv_backend={args.rdzv_backend}: expected static or c10d")
    nodes = 1 if args.standalone else int(least)
    if nodes > 1 and args.node_rank is None and args.rdzv_backend == "c10d":
        raise ValueError("rdzv_backend=c10d of several machines: say with --node-rank which one this is")
    node = 0 if args.standalone else args.node_rank or 0
    if not 0 <= node < nodes:
        raise ValueError(f"node_rank={node} of nnodes={nodes}")
    if args.max_restarts < 0:
        raise ValueError("max_restarts must be >= 0")
    host, port, run_id = args.master_addr, args.master_port, args.rdzv_id
    if args.standalone:
        host, port = "127.0.0.1", 0
    elif args.rdzv_endpoint:
        host, colon, text = args.rdzv_endpoint.rpartition(":")
        host, port = (host, int(text)) if colon else (text, _PORT)
    elif port is None:
        port = 0 if nodes == 1 else _PORT
    if run_id == "none" and nodes == 1:
        run_id = str(uuid.uuid4())
    return Place(host.strip("[]"), port, run_id, node, nodes, _count(args.nproc_per_node), args.role)


def _count(text: str) -> int:
    """How many processes are meant."""
    if text in ("cpu", "auto"):
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if text in ("gpu", "xpu"):
        raise ValueError(f"nproc_per_node={text}: kiln runs on the CPU")
    try:
        count = int(text)
    except ValueError:
        raise ValueError(f"Unsupported nproc_per_node value: {text}") from None
    if count < 1:
        raise ValueError(f"nproc_per_node={count}: expected at least 1")
    return count


def _server(place: Place) -> TCPStore | None:
    """The store's server, which the first machine has."""
    return TCPStore(place.host, place.port, is_master=True) if place.node == 0 else None


def _command(args: Namespace) -> list[str]:
    if args.no_python and args.module:
        raise ValueError("Don't use both the '--no-python' flag and the '--module' flag at the same time.")
    python = [] if args.no_python else [os.environ.get("PYTHON_EXEC", sys.executable), "-u"]
    return [*python, *(["-m"] if args.module else []), args.training_script, *args.training_script_args]


def _logs(args: Namespace) -> Path | None:
    """The folder of this run's output, if any is written."""
    if args.redirects == args.tee == "0" and not args.log_dir:
        return None
    if args.log_dir:
        Path(args.log_dir).mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{args.rdzv_id}_", dir=args.log_dir))


if __name__ == "__main__":
    main()
