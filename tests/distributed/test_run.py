"""`python -m kiln.distributed.run`: who the processes are, and how they end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kiln.distributed.run import _place, parse_args
from kiln.distributed.workers import _streams

NAMES = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR OMP_NUM_THREADS KILN_NUM_THREADS"
SAY = """
import json, os, sys
def say(*words):  # a line at once: lines of two processes are not mixed
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""
SAYS = f"""{SAY}
names = {NAMES!r}.split()
say(json.dumps([[os.environ.get(n) for n in names], sys.argv[1:], os.environ["TORCHELASTIC_RUN_ID"]]))
"""
MEET = f"""{SAY}
import signal, subprocess
from kiln.distributed.rendezvous import rendezvous
store, rank, size = next(rendezvous("env://"))
"""


def start(folder: Path, text: str, *options: str, module: str = "run", **changes: str) -> Any:
    """The launcher with a program of this text; arguments after "--" are the program's."""
    at = options.index("--") if "--" in options else len(options)
    path = folder / "program.py"
    path.write_text(text)
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")} | changes
    command = [
        sys.executable,
        "-m",
        f"kiln.distributed.{module}",
        *options[:at],
        str(path),
        *options[at + 1 :],
    ]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )


def ran(folder: Path, text: str, *options: str, **kwargs: Any) -> tuple[int, str, str]:
    process = start(folder, text, *options, **kwargs)
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, out, err


def test_each_process_knows_its_place(tmp_path: Path) -> None:
    code, out, err = ran(tmp_path, SAYS, "--nproc-per-node=2", "--rdzv-id=name", "--", "--flag", "1")
    assert code == 0, err
    found = sorted(json.loads(line) for line in out.splitlines())
    for rank, (variables, arguments, name) in enumerate(found):
        assert variables == [str(rank), "2", str(rank), "2", "0", "127.0.0.1", "1", "1"]
        assert (arguments, name) == (["--flag", "1"], "name")
    assert len(found) == 2 and "Setting OMP_NUM_THREADS environment variable" in err


def test_threads_that_were_chosen_stay(tmp_path: Path) -> None:
    code, out, err = ran(tmp_path, SAYS, "--nproc_per_node", "1", OMP_NUM_THREADS="3")
    assert code == 0 and json.loads(out)[0][-2:] == ["3", "3"] and err == ""


def test_processes_meet_at_the_launchers_store(tmp_path: Path) -> None:
    text = MEET + "store.add('n', rank + 1)\nsay(size, store.queue_push('came', 'x'))"
    code, out, err = ran(tmp_path, text, "--standalone", "--nproc-per-node=3")
    assert (code, out.split()) == (0, ["3", "None"] * 3), err


def test_the_code_of_the_process_that_failed(tmp_path: Path) -> None:
    text = MEET + "sys.exit(7) if rank == 1 else store.get('never')"
    code, _, err = ran(tmp_path, text, "--nproc-per-node=2")
    assert code == 7
    assert "rank 1 (pid " in err and ") exited with code 7; the other processes were ended\n" in err


def test_the_signal_of_the_process_that_failed(tmp_path: Path) -> None:
    text = MEET + "os.kill(os.getpid(), signal.SIGKILL) if rank == 0 else store.get('never')"
    code, _, err = ran(tmp_path, text, "--nproc-per-node=2")
    assert code == 128 + signal.SIGKILL and "was ended by signal 9 (SIGKILL)" in err


def test_who_does_not_end_by_itself_is_killed(tmp_path: Path) -> None:
    text = (
        MEET
        + """
if rank == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    say(os.getpid(), child.pid)
    store.set("deaf", "x")
    signal.pause()
store.get("deaf")
sys.exit(3)
"""
    )
    code, out, err = ran(tmp_path, text, "--nproc-per-node=2", "--shutdown-timeout=0.2")
    assert code == 3, err
    for pid in out.split():  # and the process that it started
        assert not alive(int(pid))


def alive(pid: int) -> bool:
    """Whether a process runs: one that ended may wait for its new parent to take note of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on(number: signal.Signals, tmp_path: Path) -> None:
    text = (
        MEET
        + """
def ends(number, frame):
    say("got", number)
    sys.exit(0)
signal.signal(signal.SIGTERM, ends), signal.signal(signal.SIGINT, ends)
say("ready", os.getpid())
signal.pause()
"""
    )
    process = start(tmp_path, text, "--nproc-per-node=2")
    ready = [process.stdout.readline().split() for _ in range(2)]
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert out.splitlines() == [f"got {int(number)}"] * 2
    assert not any(alive(int(pid)) for _, pid in ready)


def test_processes_end_when_the_launcher_was_killed(tmp_path: Path) -> None:
    process = start(tmp_path, MEET + "say(os.getpid())\nsignal.pause()", "--nproc-per-node=2")
    pids = [int(process.stdout.readline()) for _ in range(2)]
    process.kill()
    assert process.stdout.read() == ""  # it is at its end when nobody has it any more
    process.communicate(timeout=60)
    end = time.monotonic() + 60
    while any(alive(pid) for pid in pids):  # files of a process that ends are closed before it has ended
        assert time.monotonic() < end


def test_all_start_again_after_one_failed(tmp_path: Path) -> None:
    text = (
        MEET
        + """
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
assert store.add("fresh", 1) <= size  # a store without the keys of the last attempt
say(rank, attempt)
sys.exit(5 if rank == 1 and attempt == 0 else 0)
"""
    )
    code, out, err = ran(tmp_path, text, "--nproc-per-node=2", "--max-restarts=2")
    assert code == 0 and "exited with code 5; the other processes were ended; all are started again" in err
    assert {"1 0", "0 1", "1 1"} <= set(out.splitlines())


def test_two_machines_of_one_run(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nodes = []
    for node in range(2):
        (tmp_path / str(node)).mkdir()
        options = ["--nnodes=2", f"--node-rank={node}", f"--master-port={port}", "--nproc-per-node=2"]
        text = MEET + "say(rank, size, os.environ['GROUP_RANK'])\nstore.queue_push('done', 'x')\n"
        # the server is the first machine's, which is to be the last to end
        text += "if rank == 0: [store.queue_pop('done') for _ in range(size)]\n"
        nodes.append(start(tmp_path / str(node), text, *options))
    ends = [(process.communicate(timeout=120), process.returncode) for process in nodes]
    assert [code for _, code in ends] == [0, 0], ends
    assert sorted(line for (out, _), _ in ends for line in out.splitlines()) == [
        "0 4 0", "1 4 0", "2 4 1", "3 4 1",
    ]  # fmt: skip


def test_output_in_files(tmp_path: Path) -> None:
    text = SAY + "\nsay('out', os.environ['RANK'])\nprint('err', file=sys.stderr)"
    options = ["--nproc-per-node=2", "--log-dir=logs", "--redirects=0:1", "--tee=1:3", "--rdzv-id=name"]
    code, out, err = ran(tmp_path, text, *options, OMP_NUM_THREADS="1")
    assert (code, out) == (0, "[default1]:out 1\n") and sorted(err.split()) == ["[default1]:err", "err"]
    files = {str(p.relative_to(tmp_path / "logs")): p.read_text() for p in tmp_path.rglob("*.log")}
    named = {"/".join(name.split("/")[1:]): text for name, text in files.items()}
    assert named == {
        "attempt_0/0/stdout.log": "out 0\n",
        "attempt_0/1/stdout.log": "out 1\n",
        "attempt_0/1/stderr.log": "err\n",
    }


def test_modules_and_programs_of_other_languages(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("import sys; print(__name__, sys.argv[1:])")
    command = [sys.executable, "-m", "kiln.distributed.run"]
    for options, expected in (
        (["-m", "part", "x"], "__main__ ['x']\n"),
        (["--no-python", "echo", "hello"], "hello\n"),
    ):
        found = subprocess.run(
            [*command, *options], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (found.returncode, found.stdout) == (0, expected), found.stderr


def test_the_old_name_gives_the_rank_as_an_argument(tmp_path: Path) -> None:
    code, out, err = ran(tmp_path, SAYS, "--nproc-per-node=1", "--", "x", module="launch")
    assert code == 0 and json.loads(out)[1] == ["--local-rank=0", "x"], err
    code, out, err = ran(tmp_path, SAYS, "--use-env", "--", "x", module="launch")
    assert code == 0 and json.loads(out)[1] == ["x"], err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--nnodes=1:2", "does not vary"),
        ("--nproc-per-node=gpu", "kiln runs on the CPU"),
        ("--nproc-per-node=many", "Unsupported nproc_per_node value: many"),
        ("--nproc-per-node=0", "expected at least 1"),
        ("--rdzv-backend=etcd", "expected static or c10d"),
        ("--nnodes=2 --node-rank=2", "node_rank=2 of nnodes=2"),
        ("--nnodes=2 --rdzv-backend=c10d", "say with --node-rank"),
        ("--max-restarts=-1", "max_restarts must be >= 0"),
    ],
)
def test_options_that_cannot_be(options: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        _place(parse_args([*options.split(), "program.py"]))


def test_options_of_the_environment_and_of_both_spellings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    monkeypatch.setenv("PET_MAX_RESTARTS", "2")
    args = parse_args(["--rdzv_endpoint", "[::1]:400", "--start-method=fork", "program.py", "--nnodes=5"])
    place = _place(args)
    assert (place.local_size, args.max_restarts, place.host, place.port) == (3, 2, "::1", 400)
    assert args.training_script_args == ["--nnodes=5"]
    assert _place(parse_args(["--nproc-per-node=cpu", "x"])).local_size >= 1


def test_which_streams_are_meant() -> None:
    assert (_streams("3", 5), _streams("0:1,2:3", 2), _streams("0:1,2:3", 1)) == (3, 3, 0)
    with pytest.raises(ValueError, match="does not say which streams"):
        _streams("out", 0)


TRAINS = f"""{SAY}
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
found = [torch.zeros(1, 4) for _ in range(2)]
dist.all_gather(found, model.module.weight.detach())
assert torch.equal(*found) and found[0].any()
say("rank", rank, "of", dist.get_world_size())
dist.destroy_process_group()
"""


def test_a_program_of_pytorchs_trains_in_two_processes(tmp_path: Path) -> None:
    (tmp_path / "trains.py").write_text(TRAINS)
    command = [sys.executable, "-m", "kiln.distributed.run", "--nproc-per-node=2", "-m", "kiln", "trains.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert sorted(found.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]
