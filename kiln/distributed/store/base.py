"""`Store`: keys and values that several processes share; those of one process, and those below a prefix."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from kiln.distributed.errors import DistStoreError
from kiln.distributed.store.table import WRITES, NotYet, Op, Table

DEFAULT_TIMEOUT = timedelta(seconds=300)
_LONGEST = 2e6  # seconds, which every system call takes; three weeks


class QueueEmptyError(DistStoreError):
    """A queue of a store has no value, and none was waited for."""


class Late(Exception):
    """A request was not answered in time."""


class Store:
    """Keys (str) and values (bytes) that several processes share: how they find each other.

    A subclass may define the public methods itself. `get`, `multi_get`, `wait` and `queue_pop` block until
    what they ask for is there, DistStoreError when `timeout` is over.
    """

    _timeout = DEFAULT_TIMEOUT

    def _call(
        self, op: Op, keys: Sequence[bytes], values: Sequence[bytes] = (), timeout: timedelta | None = None
    ) -> list[bytes]:
        """The answer to a request. Late if there was none in time (None: in the store's own)."""
        raise NotImplementedError(f"{type(self).__name__} has no {op.name.lower()}")

    def _ask(
        self,
        op: Op,
        keys: Sequence[str],
        values: Sequence[str | bytes] = (),
        timeout: timedelta | None = None,
    ) -> list[bytes]:
        names = [_key(key) for key in keys]
        limit = self.timeout if timeout is None else _duration(timeout)
        try:
            return self._call(op, names, [_value(value) for value in values], limit)
        except Late:
            milliseconds = limit // timedelta(milliseconds=1)
            listed = ", ".join(f"/{key}" for key in keys)
            raise DistStoreError(f"wait timeout after {milliseconds}ms, keys: {listed}") from None

    def _seconds(self, timeout: timedelta | None) -> float:
        limit = self._timeout if timeout is None else timeout
        return min(max(limit.total_seconds(), 0.0), _LONGEST)

    @property
    def timeout(self) -> timedelta:
        """How long a call waits for keys."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Says how long calls wait for keys from now on."""
        self._timeout = _duration(timeout)

    def set(self, key: str, value: str | bytes) -> None:
        """Gives a key a value."""
        self._ask(Op.SET, [key], [value])

    def get(self, key: str) -> bytes:
        """The value of a key, once it has one."""
        return self._ask(Op.GET, [key])[0]

    def add(self, key: str, amount: int) -> int:
        """Adds to the number that a key has (0 without one), and gives the sum."""
        return int(self._ask(Op.ADD, [key], [b"%d" % amount])[0])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Returns when all keys have values."""
        self._ask(Op.WAIT, keys, timeout=timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have values."""
        return self._ask(Op.CHECK, keys) == [b"1"]

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Gives a key the desired value if it has the expected one (none, if that is empty); what it has.

        Of a key without a value the expected one.
        """
        return self._ask(Op.COMPARE_SET, [key], [expected, desired])[0]

    def delete_key(self, key: str) -> bool:
        """Takes a key's value; whether there was one."""
        return self._ask(Op.DELETE, [key]) == [b"1"]

    def num_keys(self) -> int:
        """How many keys there are, with those by which a store knows who uses it."""
        return len(self._call(Op.KEYS, [], [], self.timeout))

    def list_keys(self) -> list[str]:
        """All keys that were given values."""
        return [key[1:].decode() for key in self._call(Op.KEYS, [], [], self.timeout) if key.startswith(b"/")]

    def append(self, key: str, value: str | bytes) -> None:
        """Puts bytes at the end of a key's value."""
        self._ask(Op.APPEND, [key], [value])

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys, once all have one."""
        return self._ask(Op.GET, keys)

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Gives several keys values at once."""
        if len(keys) != len(values):
            raise DistStoreError("multiSet keys and values vectors must be of same size")
        self._ask(Op.SET, keys, values)

    def has_extended_api(self) -> bool:
        """Whether there are append, multi_get and multi_set."""
        return True

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Puts a value at the end of a queue."""
        self._ask(Op.PUSH, [key], [value])

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Takes the oldest value of a queue, once there is one; QueueEmptyError if it is not to block."""
        found = self._ask(Op.POP if block else Op.POP_NOW, [key])
        if not found:
            raise QueueEmptyError("queue is empty")
        return found[0]

    def queue_len(self, key: str) -> int:
        """How many values a queue has."""
        return int(self._ask(Op.LENGTH, [key])[0])


def _key(key: Any) -> bytes:
    if not isinstance(key, str):
        raise TypeError(f"a store's keys are str, but got {type(key).__name__}")
    return b"/" + key.encode()


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"a store's values are str or bytes, but got {type(value).__name__}")
    return bytes(value)


def _duration(timeout: Any) -> timedelta:
    if not isinstance(timeout, timedelta):
        raise TypeError(f"timeout is a datetime.timedelta, but got {type(timeout).__name__}")
    return timeout


class HashStore(Store):
    """A store for the threads of one process.

    >>> store = kiln.distributed.HashStore()
    >>> store.add("ready", 2), store.get("ready")
    (2, b'2')
    """

    def __init__(self) -> None:
        self._table = Table()
        self._changed = threading.Condition()
        renewed_in_children(self, HashStore._renew)

    def _renew(self) -> None:
        self._changed = threading.Condition()

    def _call(
        self, op: Op, keys: Sequence[bytes], values: Sequence[bytes] = (), timeout: timedelta | None = None
    ) -> list[bytes]:
        answer: list[bytes] = []

        def done() -> bool:
            try:
                answer[:] = self._table.perform(op, keys, values)
            except NotYet:
                return False
            return True

        with self._changed:
            if not self._changed.wait_for(done, self._seconds(timeout)):
                raise Late
            if op in WRITES:
                self._changed.notify_all()
        return answer


class PrefixStore(Store):
    """The keys of another store that begin with a prefix and "/", called without it.

    >>> store = kiln.distributed.HashStore()
    >>> kiln.distributed.PrefixStore("first", store).set("key", "value")
    >>> store.get("first/key")
    b'value'
    """

    def __init__(self, prefix: str, store: Store) -> None:
        if not isinstance(store, Store):
            raise TypeError(f"PrefixStore: store is a Store, but got {type(store).__name__}")
        _key(prefix)
        self.prefix, self._store = prefix, store

    @property
    def underlying_store(self) -> Store:
        """The store whose keys these are."""
        return self._store

    @property
    def _underlying_non_prefix_store(self) -> Store:
        store: Store = self
        while isinstance(store, PrefixStore):
            store = store._store
        return store

    @property
    def timeout(self) -> timedelta:
        """How long a call waits for keys: of the other store."""
        return self._store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Says it to the other store."""
        self._store.set_timeout(timeout)

    def _named(self, key: str) -> str:
        _key(key)
        return f"{self.prefix}/{key}"

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(self._named(key), value)

    def get(self, key: str) -> bytes:
        return self._store.get(self._named(key))

    def add(self, key: str, amount: int) -> int:
        return self._store.add(self._named(key), amount)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        names = [self._named(key) for key in keys]
        if timeout is None:
            self._store.wait(names)
        else:
            self._store.wait(names, timeout)

    def check(self, keys: Sequence[str]) -> bool:
        return self._store.check([self._named(key) for key in keys])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        return self._store.compare_set(self._named(key), expected, desired)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(self._named(key))

    def num_keys(self) -> int:
        """How many keys the other store has, all of them."""
        return self._store.num_keys()

    def list_keys(self) -> list[str]:
        start = f"{self.prefix}/"
        return [key[len(start) :] for key in self._store.list_keys() if key.startswith(start)]

    def append(self, key: str, value: str | bytes) -> None:
        self._store.append(self._named(key), value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._store.multi_get([self._named(key) for key in keys])

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        self._store.multi_set([self._named(key) for key in keys], values)

    def has_extended_api(self) -> bool:
        return self._store.has_extended_api()

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._store.queue_push(self._named(key), value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._store.queue_pop(self._named(key), block)

    def queue_len(self, key: str) -> int:
        return self._store.queue_len(self._named(key))


class Turns:
    """A lock whose holder also does what finalizers, which may run in the middle of anything, leave to do."""

    def __init__(self) -> None:
        self._renew()
        renewed_in_children(self, Turns._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._left: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._do()

    def leave(self, job: Callable[[], None]) -> None:
        """Does something while the lock is held: now, or before long by who holds it."""
        self._left.append(job)
        self._do()

    def _do(self) -> None:
        while self._left and self._lock.acquire(blocking=False):
            try:
                while self._left:
                    self._left.popleft()()
            finally:
                self._lock.release()


# what has locks, threads or connections, with the function that makes new ones in a process that was forked
_renewals: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def renewed_in_children(what: Any, renew: Any) -> None:
    """Calls `renew(what)` in every process that is forked from this one, while `what` is alive."""
    _renewals[what] = renew


def _renew_all() -> None:
    for what, renew in list(_renewals.items()):
        renew(what)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
