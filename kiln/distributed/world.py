"""The groups of this process: the default one, which `init_process_group` makes, and those made of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from kiln.distributed.process_group import ProcessGroup
from kiln.distributed.rendezvous import rendezvous
from kiln.distributed.store import HashStore, PrefixStore
from kiln.errors import warn
from kiln.late import later

_mpi_is_there = later("kiln.distributed.mpi", "is_there")
_everybody_of_mpi = later("kiln.distributed.mpi", "everybody")
default_pg_timeout = timedelta(minutes=30)


class Backend(str):
    """The name of a way to communicate: "gloo" is kiln's own, under the name of PyTorch's for CPUs; "mpi"
    goes by an MPI library.

    >>> kiln.distributed.Backend("GLOO")
    'gloo'
    """

    UNDEFINED, GLOO, NCCL, UCC, MPI, XCCL = "undefined", "gloo", "nccl", "ucc", "mpi", "xccl"

    def __new__(cls, name: str) -> Backend:
        if not isinstance(name, str):
            raise ValueError(f"Backend constructor parameter must be string-ish, got {name!r}")
        return super().__new__(cls, name.lower())


class group:
    """`group.WORLD`: the group of all ranks, None where none was made."""

    WORLD: ProcessGroup | None = None


class GroupMember(group):
    """`group` under its old name."""

    NON_GROUP_MEMBER = -100


_groups: list[ProcessGroup] = []  # the default one first
# Names of groups do not come again while the program runs: the store may still know the earlier ones. Every
# rank counts the same: default groups, those of new_group, those that their members alone make.
_counts: Counter[str] = Counter()
_stores: dict[
    tuple[Any, ...], Any
] = {}  # where a rendezvous led: a later default group uses that store again


def is_available() -> bool:
    """True: a program can be several processes."""
    return True


def is_initialized() -> bool:
    """Whether this process belongs to a group.

    >>> kiln.distributed.is_initialized()
    False
    """
    return group.WORLD is not None


def is_torchelastic_launched() -> bool:
    """Whether `python -m kiln.distributed.run` started this process."""
    return os.environ.get("TORCHELASTIC_RUN_ID") is not None


def is_backend_available(backend: str) -> bool:
    """Whether groups can be made of a backend.

    >>> kiln.distributed.is_backend_available("gloo"), kiln.distributed.is_nccl_available()
    (True, False)
    """
    return backend.lower() == "gloo" or (backend.lower() == "mpi" and is_mpi_available())


def is_gloo_available() -> bool:
    """True."""
    return True


def is_nccl_available() -> bool:
    """False: kiln runs on the CPU."""
    return False


def is_mpi_available() -> bool:
    """Whether mpi4py and an MPI library can be loaded."""
    there: bool = _mpi_is_there()
    return there


is_ucc_available = is_xccl_available = is_nccl_available


def _backend_of(backend: Any) -> str:
    """The backend that a program asks for, as it is for CPUs: "cpu:gloo,cuda:nccl" asks for gloo."""
    if backend is None:
        return Backend.GLOO
    asked = Backend(backend)
    by_device = dict(part.split(":", 1) for part in asked.split(",") if ":" in part)
    name = by_device.get("cpu", "" if by_device else asked)
    if name != "mpi" and not is_backend_available(name):
        raise RuntimeError(
            f"Distributed package doesn't have {(name or asked).upper()} built in: kiln runs on CPUs, whose "
            'backend is "gloo"'
        )
    return name


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
) -> None:
    """Makes this process a rank of a program of several. Every one of them calls it, and waits for all.

    They find each other by `store`, or as `init_method` says: "env://" (unless given) by the variables RANK,
    WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which `python -m kiln.distributed.run` sets;
    "tcp://host:port" at that address; "file:///path" by a file. With the backend "mpi" they are those that
    mpiexec started. `timeout` holds for this and for every call.

    RuntimeError for a backend that is not there, DistBackendError that names the ranks that did not come,
    ValueError where the group is there already or `world_size` and `rank` are not told.
    """
    if group.WORLD is not None:
        raise ValueError("trying to initialize the default process group twice!")
    if timeout is not None and not isinstance(timeout, timedelta):
        raise TypeError(f"Expected timeout argument to be of type datetime.timedelta, got {timeout}")
    if store is not None and init_method is not None:
        raise ValueError("Cannot specify both init_method and store.")
    name = _backend_of(backend)
    timeout = timeout or default_pg_timeout
    if name == "mpi":
        store, (rank, world_size) = HashStore(), _everybody_of_mpi()
    elif store is None:
        url = init_method or "env://"
        where = (
            url,
            rank,
            world_size,
            *map(os.environ.get, ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")),
        )
        if where not in _stores:
            _stores[where] = next(iter(rendezvous(url, rank, world_size, timeout=timeout)))
        store, rank, world_size = _stores[where]
        store.set_timeout(timeout)
    elif world_size <= 0 or rank < 0:
        raise ValueError("world_size must be positive and rank not negative if using store")
    title = f"{group_name or 'default'} {_counts['default']}"
    _set_world(_make(store, list(range(world_size)), rank, title, name, timeout))
    _counts["default"] += 1


def _set_world(made: ProcessGroup | None) -> None:
    group.WORLD = made


def _make(
    store: Any, ranks: list[int], rank: int, name: str, backend: str, timeout: timedelta
) -> ProcessGroup:
    own = PrefixStore(name, store)
    made = ProcessGroup(own, ranks, ranks.index(rank), name, backend, timeout, _counts["group"])
    _groups.append(made)
    return made


def world(what: str = "init_process_group") -> ProcessGroup:
    """The default group. ValueError where there is none."""
    if group.WORLD is None:
        raise ValueError(
            "Default process group has not been initialized, please make sure to call init_process_group."
            + (f" ({what})" if what else "")
        )
    return group.WORLD


def group_of(given: Any, what: str) -> ProcessGroup | None:
    """The group a call is for; None, with a warning, where this process is not in it."""
    if given is None or given is group.WORLD:
        return world(what)
    if given == GroupMember.NON_GROUP_MEMBER:
        number = world(what).rank()
        warn(f"Running {what} on global rank {number} which does not belong to the given group.", UserWarning)
        return None
    if not isinstance(given, ProcessGroup):
        raise TypeError(f"{what}: expected a group of new_group, got {type(given).__name__}")
    return given


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: Any = None,
) -> Any:
    """A group of some of the ranks, all unless given. Every rank of the program calls it, those that are not
    in it too (who get GroupMember.NON_GROUP_MEMBER), and in the same order; with
    `use_local_synchronization` only those that are in it.
    """
    all_ranks = world("new_group")
    chosen = sorted(ranks) if ranks is not None else list(all_ranks.ranks)
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"new_group: a rank is in it once, got {chosen}")
    for rank in chosen:
        if not 0 <= rank < all_ranks.size():
            raise ValueError(
                "The new group's rank should be within the world_size set by init_process_group, got "
                f"{rank} of {all_ranks.size()}"
            )
    name = _backend_of(backend or all_ranks.name())
    if use_local_synchronization:
        kind = f"of ranks {','.join(map(str, chosen))},"
    else:
        kind = "group"
    _counts[kind] += 1
    title = f"{kind} {_counts[kind]}"
    if all_ranks.rank() not in chosen:
        return GroupMember.NON_GROUP_MEMBER
    whole = all_ranks.store.underlying_store
    return _make(whole, chosen, all_ranks.rank(), title, name, timeout or all_ranks.timeout)


def new_subgroups(
    group_size: int | None = None,
    group: Any = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Groups of so many neighbouring ranks: the one this rank is in, and all."""
    size = world("new_subgroups").size()
    if group_size is None or group_size <= 0:
        raise ValueError(f"The arg 'group_size' ({group_size}) must be positive")
    if size < group_size or size % group_size:
        raise ValueError(f"The world size ({size}) must be divisible by 'group_size={group_size}'")
    rows = [list(range(at, at + group_size)) for at in range(0, size, group_size)]
    return new_subgroups_by_enumeration(rows, timeout, backend, pg_options, group_desc)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Groups of these ranks, none in two of them: the one this rank is in, or None, and all."""
    every = [rank for ranks in ranks_per_subgroup_list for rank in ranks]
    if not ranks_per_subgroup_list:
        raise ValueError("The arg 'ranks_per_subgroup_list' cannot be empty")
    if len(set(every)) != len(every):
        raise ValueError("Rank is assigned to several subgroups: each may be in one")
    made = [new_group(ranks, timeout, backend, pg_options) for ranks in ranks_per_subgroup_list]
    own = next((g for g in made if isinstance(g, ProcessGroup)), None)
    return own, made


def destroy_process_group(group: Any = None) -> None:
    """Leaves a group, or with the default one all of them, when the calls that were made are done."""
    if group == GroupMember.NON_GROUP_MEMBER:
        return
    found = world("destroy_process_group") if group is None else group
    if found not in _groups:
        raise ValueError("Invalid process group specified or has been destroyed.")
    leaving = list(reversed(_groups)) if found is _groups[0] else [found]
    for each in leaving:
        each.close()
        _groups.remove(each)
    if not _groups:
        _set_world(None)


# ---- who is who ----


def get_rank(group: Any = None) -> int:
    """The number of this process in the group, -1 outside it; the default group unless given."""
    found = _member(group, "get_rank")
    return -1 if found is None else found.rank()


def get_world_size(group: Any = None) -> int:
    """How many ranks the group has, -1 outside it; the default group unless given."""
    found = _member(group, "get_world_size")
    return -1 if found is None else found.size()


def get_backend(group: Any = None) -> str:
    """The name of the group's backend."""
    found = _member(group, "get_backend")
    if found is None:
        raise ValueError("Invalid process group specified")
    return found.name()


def _member(given: Any, what: str) -> ProcessGroup | None:
    if given == GroupMember.NON_GROUP_MEMBER:
        return None
    return group_of(given, what)


def get_process_group_ranks(group: Any) -> list[int]:
    """The ranks of the program that are in a group, in its order."""
    found = group_of(group, "get_process_group_ranks")
    return list(found.ranks) if found else []


def get_global_rank(group: Any, group_rank: int) -> int:
    """The rank in the program of a rank of a group. ValueError if it has none of that number."""
    ranks = get_process_group_ranks(group)
    if not 0 <= group_rank < len(ranks):
        raise ValueError(f"Group rank {group_rank} is not part of group {group}")
    return ranks[group_rank]


def get_group_rank(group: Any, global_rank: int) -> int:
    """The rank in a group of a rank of the program. ValueError if it is not in it."""
    found = group_of(group, "get_group_rank")
    if found is None:
        raise ValueError(f"Group {group} is not registered, please create group with new_group API")
    return found.number(global_rank, "get_group_rank")


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """The number of this process on its machine, as the launcher told it in LOCAL_RANK."""
    told = os.environ.get("LOCAL_RANK")
    if told is not None:
        return int(told)
    if fallback_rank is not None:
        return int(fallback_rank)
    raise RuntimeError(
        "LOCAL_RANK is not in the environment. Consider passing fallback_rank to allow "
        "`get_node_local_rank` to work, assuming you are not running in a multi-device context and want the "
        "code to run locally instead."
    )
