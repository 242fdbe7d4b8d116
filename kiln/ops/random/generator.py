"""Generators of random numbers: a seed, and how many numbers were drawn from it.

An op draws by reserving: it takes the seed and the generator's position, which moves on by the number of
elements. The numbers are functions of seed and position (see `random`), so a state is two integers.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kiln import _core
from kiln.device import CPU
from kiln.errors import describe, message
from kiln.table.arguments import numel, recorder_here
from kiln.table.callables import name_constructor
from kiln.table.public import public

STATE_BYTES = 16  # seed and position, each of 64 bits, low byte first


START = 67280421310721  # the seed of a generator that was given none, PyTorch's


def _signed(value: int) -> int:
    """A number modulo 2^64 as the core's signed one."""
    return value - 2**64 if value >= 2**63 else value


class Generator:
    """A source of random numbers of its own: give it to a function as `generator=`.

    RuntimeError for a device other than the CPU.

    >>> g = kiln.Generator().manual_seed(1)
    >>> a = kiln.rand(2, generator=g); g = g.manual_seed(1)
    >>> bool((a == kiln.rand(2, generator=g)).all())
    True
    """

    __slots__ = ("__weakref__", "_lock", "_state")

    def __init__(self, device: Any = "cpu") -> None:
        if str(device).partition(":")[0] != "cpu":
            raise RuntimeError(message("Generator", "device 'cpu'", repr(str(device)), "there is no other"))
        self._lock = allocate_lock()
        self._state = (START, 0)

    @property
    def device(self) -> Any:
        """Where its numbers are made: the CPU."""
        return CPU

    def next(self, count: Any) -> tuple[int, int]:
        """Reserves `count` numbers: (seed, position of the first)."""
        with self._lock:
            seed, position = self._state
            self._state = seed, position + count
        return seed, position

    def _get(self) -> tuple[int, int]:
        return self._state

    def _set(self, seed: int, position: int) -> None:
        with self._lock:
            self._state = seed, position

    def manual_seed(self, seed: int) -> Generator:
        """Starts again from `seed`, an int from -2^63 to 2^64 - 1 (ValueError otherwise); returns itself."""
        seed = int(seed)
        if not -(2**63) <= seed < 2**64:
            raise ValueError(message("manual_seed", "a seed from -2^63 to 2^64 - 1", str(seed)))
        self._set(_signed(seed % 2**64), 0)
        return self

    def seed(self) -> int:
        """Starts again from a seed the system makes up; returns it."""
        self.manual_seed(int.from_bytes(os.urandom(8), "little"))
        return self.initial_seed()

    def initial_seed(self) -> int:
        """The seed it started from, 0 <= seed < 2^64."""
        return self._get()[0] % 2**64

    def get_state(self) -> Any:
        """Its state for `set_state`: a uint8 tensor."""
        seed, position = self._get()
        numbers = (seed % 2**64) | position << 64
        return _core.from_nested(list(numbers.to_bytes(STATE_BYTES, "little")), "uint8")

    def set_state(self, new_state: Any) -> Generator:
        """Puts it back into a state `get_state` gave; returns itself.

        TypeError for anything but a uint8 tensor, RuntimeError for one of another size.
        """
        if not isinstance(new_state, _core.Tensor) or new_state.dtype is not _core.uint8:
            raise TypeError(
                f"set_state: RNG state must be a torch.ByteTensor of get_state, got {describe(new_state)}"
            )
        if tuple(new_state.shape) != (STATE_BYTES,):
            raise RuntimeError(
                message("set_state", f"RNG state size {STATE_BYTES}", f"size {tuple(new_state.shape)}")
            )
        numbers = int.from_bytes(bytes(new_state.tolist()), "little")
        if numbers >> 127:
            raise RuntimeError(message("set_state", "RNG state of get_state", "a position of 2^63 or more"))
        self._set(_signed(numbers % 2**64), numbers >> 64)
        return self

    def clone_state(self) -> Generator:
        """Another generator in the same state."""
        other = Generator()
        other._set(*self._get())
        return other

    def get_offset(self) -> int:
        """RuntimeError: an offset is of CUDA's generators."""
        raise RuntimeError("CPU Generator does not use offset: get_state has all of it")

    def set_offset(self, offset: int) -> Generator:
        """RuntimeError, as `get_offset`."""
        raise RuntimeError("CPU Generator does not use offset: set_state puts back what get_state gave")

    def graphsafe_get_state(self) -> Generator:
        """NotImplementedError: it is for CUDA's graphs."""
        raise NotImplementedError("graphsafe_get_state is not supported in this Generator: use get_state")

    def graphsafe_set_state(self, state: Generator) -> Generator:
        """NotImplementedError: it is for CUDA's graphs."""
        raise NotImplementedError("graphsafe_set_state is not supported in this Generator: use set_state")

    def __repr__(self) -> str:
        return f"<kiln.Generator seed={self.initial_seed()} position={self._get()[1]}>"

    def __reduce__(self) -> Any:
        return Generator, (), self._get()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if len(state) == 2:
            self._set(*state)
        else:  # PyTorch's, with the state of another way to draw: refused by its size
            self.set_state(state[-1])


class _Default(Generator):
    """The generator of whoever names none; its state is the core's."""

    __slots__ = ()

    def next(self, count: Any) -> tuple[int, int]:
        drawn: tuple[int, int] = _core.next_random(count)
        return drawn

    def _get(self) -> tuple[int, int]:
        state: tuple[int, int] = _core.random_state()
        return state

    def _set(self, seed: int, position: int) -> None:
        _core.set_random_state(seed, position)


default_generator = _Default()


# While functions are mapped (kiln.func): what is asked for an array of some sizes instead, given the function
# that takes so many numbers and gives (seed, position).
SHARED: list[Any] = []


def reserve(sizes: Any, generator: Any) -> tuple[Any, Any]:
    """(position, seed) for an array of some sizes; the generator moves on by its number of elements."""
    if generator is None:
        take = _core.next_random
    elif isinstance(generator, Generator):
        take = generator.next
    else:
        raise TypeError(message("generator", "a kiln.Generator", describe(generator)))
    count = numel(sizes)
    recorder = recorder_here(count)
    if recorder is not None and generator is None:
        seed, position = recorder.draws(count, take)
        return position, seed
    seed, position = SHARED[0](count, take) if SHARED else take(count)
    return position, seed


@public("manual_seed", method=False, dtypes="", differentiable=False)
def manual_seed(seed: int) -> Generator:
    """Starts the default generator again from `seed`, an int from -2^63 to 2^64 - 1; returns the generator.

    ValueError for another seed.

    >>> _ = kiln.manual_seed(0); a = kiln.rand(2)
    >>> _ = kiln.manual_seed(0); bool((a == kiln.rand(2)).all())
    True
    """
    return default_generator.manual_seed(seed)


@public("seed", method=False, dtypes="", differentiable=False)
def seed() -> int:
    """Starts the default generator again from a seed the system makes up; returns it.

    >>> kiln.seed() == kiln.initial_seed()
    True
    """
    return default_generator.seed()


@public("initial_seed", method=False, dtypes="", differentiable=False)
def initial_seed() -> int:
    """The seed the default generator started from.

    >>> _ = kiln.manual_seed(3); kiln.initial_seed()
    3
    """
    return default_generator.initial_seed()


@public("get_rng_state", method=False, dtypes="", differentiable=False)
def get_rng_state() -> Any:
    """The default generator's state for `set_rng_state`: a uint8 tensor.

    >>> state = kiln.get_rng_state(); a = kiln.rand(2); kiln.set_rng_state(state)
    >>> bool((a == kiln.rand(2)).all())
    True
    """
    return default_generator.get_state()


@public("set_rng_state", method=False, dtypes="", differentiable=False)
def set_rng_state(new_state: Any) -> None:
    """Puts the default generator back into a state `get_rng_state` gave.

    TypeError for anything but a uint8 tensor, RuntimeError for one of another size.

    >>> kiln.set_rng_state(kiln.get_rng_state())
    """
    default_generator.set_state(new_state)


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, device_type: str = "cuda") -> Iterator[None]:
    """What is drawn from the default generator inside leaves it as it was; devices have no meaning here.

    >>> with kiln.random.fork_rng():
    ...     a = kiln.rand(2)
    >>> bool((a == kiln.rand(2)).all())
    True
    """
    before = default_generator._get()
    try:
        yield
    finally:
        if enabled:
            default_generator._set(*before)


name_constructor(Generator)
