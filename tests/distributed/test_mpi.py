"""Groups over MPI, where mpi4py and mpiexec are: the programs of the other tests, started by mpiexec."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from backend import kiln
from test_collectives import DTYPES, expected

MPIEXEC = shutil.which(
    "mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
)
pytestmark = pytest.mark.skipif(
    MPIEXEC is None or not kiln.distributed.is_mpi_available(), reason="needs mpi4py and mpiexec"
)

PROGRAM = """
import json, sys
sys.path[:0] = sys.argv[3:]
import kiln, kiln.distributed as dist
kiln.set_num_threads(1)
dist.init_process_group("mpi")
module, function = sys.argv[1].split(":")
rank, size = dist.get_rank(), dist.get_world_size()
assert dist.get_backend() == "mpi"
found = getattr(__import__(module), function)(rank, size)
if dist.is_initialized():
    dist.destroy_process_group()
with open(f"{sys.argv[2]}/{rank}.json", "w") as file:
    json.dump(found, file, default=str)
"""


def by_mpi(function: str, size: int, folder: Path) -> list[Any]:
    """What a function of a test module gives on each rank."""
    here = Path(__file__).parent
    program = folder / "program.py"
    program.write_text(PROGRAM)
    command = [str(MPIEXEC), "-n", str(size), sys.executable, str(program), function, str(folder)]
    done = subprocess.run(
        [*command, str(here), str(here.parent)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 3])
def test_every_collective_and_dtype(size: int, tmp_path: Path) -> None:
    for rank, found in enumerate(by_mpi("test_collectives:all_dtypes", size, tmp_path)):
        for dtype in DTYPES:
            assert found[dtype] == expected(rank, size, dtype, (3, 2)), dtype


@pytest.mark.parametrize(
    ("function", "size"),
    [
        ("test_messages:around", 3),
        ("test_messages:parts_of_tensors", 2),
        ("test_messages:followed", 2),
        ("test_messages:inference", 2),
        ("test_messages:in_a_batch", 2),
        ("test_messages:objects", 3),
        ("test_messages:groups", 4),
        ("test_messages:handles", 2),
        ("test_collectives:recorded", 2),
        ("test_failures:differing", 3),
    ],
)
def test_the_same_as_over_connections(function: str, size: int, tmp_path: Path) -> None:
    """Programs of the other tests give what they give there."""
    from ranks import run

    module, name = function.split(":")
    program = getattr(__import__(module), name)
    (tmp_path / "mpi").mkdir()
    (tmp_path / "own").mkdir()
    found = by_mpi(function, size, tmp_path / "mpi")
    plain = json.loads(json.dumps(run(program, size, tmp_path / "own"), default=str))
    assert found == json.loads(json.dumps(plain).replace('"gloo"', '"mpi"'))
