"""Where the time goes, as `torch.profiler` tells it.

    with kiln.profiler.profile() as p:
        with kiln.profiler.record_function("forward"):
            model(x)
    print(p.key_averages().table(sort_by="cpu_time_total", row_limit=10))

`kiln.profile` is the short form: launches and seconds of each function, and flame graphs.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from enum import Enum
from types import TracebackType
from typing import Any

from kiln.absent import hint_missing as _hint_missing
from kiln.absent import leave_out as _leave_out
from kiln.autograd import profiler as _ranges
from kiln.autograd.profiler import EventList, FunctionEvent, FunctionEventAvg, record_function
from kiln.late import later

_multiply_adds = later("kiln.capture.flops", "multiply_adds")

__all__ = [
    "EventList", "FunctionEvent", "FunctionEventAvg", "ProfilerAction", "ProfilerActivity",
    "kineto_available", "profile", "record_function", "schedule", "supported_activities",
    "tensorboard_trace_handler",
]  # fmt: skip


class ProfilerActivity(Enum):
    """What can be looked at; here it is the CPU, and there is nothing to see of the others."""

    CPU = 0
    XPU = 1
    MTIA = 2
    CUDA = 3
    HPU = 4
    PrivateUse1 = 5


class ProfilerAction(Enum):
    """What the profiler does in a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


def supported_activities() -> set[ProfilerActivity]:
    """What can be looked at: the CPU."""
    return {ProfilerActivity.CPU}


def kineto_available() -> bool:
    """False: the library is not used."""
    return False


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Callable[[int], ProfilerAction]:
    """What to do in each step: skip the first, then wait, warm up and record in turn, `repeat` times (0: for
    ever).

    With `skip_first_wait` the first turn does not wait. ValueError for numbers that make no turn.

    >>> plan = kiln.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    >>> [plan(step).name for step in range(5)]
    ['NONE', 'WARMUP', 'RECORD', 'RECORD_AND_SAVE', 'NONE']
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active < 1:
        raise ValueError(
            f"schedule: expected active of 1 or more and no number below 0, got wait={wait}, "
            f"warmup={warmup}, active={active}, repeat={repeat}, skip_first={skip_first}"
        )

    def action(step: int) -> ProfilerAction:
        if step < skip_first:
            return ProfilerAction.NONE
        step -= skip_first
        if skip_first_wait:
            step += wait
        turn, at = divmod(step, wait + warmup + active)
        if repeat and turn >= repeat:
            return ProfilerAction.NONE
        if at < wait:
            return ProfilerAction.NONE
        if at < wait + warmup:
            return ProfilerAction.WARMUP
        last = at == wait + warmup + active - 1
        return ProfilerAction.RECORD_AND_SAVE if last else ProfilerAction.RECORD

    return action


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[Any], None]:
    """An `on_trace_ready` that writes each trace to a file of its own in a folder."""

    def handler(prof: Any) -> None:
        os.makedirs(dir_name, exist_ok=True)
        worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"{worker}.{time.time_ns()}.pt.trace.json{'.gz' if use_gzip else ''}"
        prof.export_chrome_trace(os.path.join(dir_name, name))

    return handler


class profile:
    """Kernels and ranges between entry and exit, or in the steps that a `schedule` records.

    `on_trace_ready(profile)` is called at the end of each recording. `activities` other than the CPU see
    nothing. `profile_memory` notes how many bytes came, or went where the number is below 0, in each kernel,
    in each range, and in between ("[memory]"). `record_shapes`, `with_stack`, `with_modules` and `with_flops`
    note of each kernel the shapes of its operands, the lines of the program and the modules that asked for
    it, and the operations of its products; each call then takes some microseconds more, which is no kernel's
    time. Of a program of `kiln.compile` they are those of all its operations. In backward lines and modules
    are those of the forward call.

    >>> with kiln.profiler.profile(schedule=kiln.profiler.schedule(wait=1, warmup=0, active=1)) as p:
    ...     for _ in range(2):
    ...         y = kiln.ones(3).exp()
    ...         p.step()
    >>> [e.count for e in p.key_averages() if e.key == "exp"]
    [1]
    """

    def __init__(
        self,
        *,
        activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[[Any], Any] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        with_stack: bool = False,
        with_flops: bool = False,
        with_modules: bool = False,
        experimental_config: Any = None,
        execution_trace_observer: Any = None,
        acc_events: bool = False,
        use_cuda: bool | None = None,
        custom_trace_id_callback: Callable[[], str] | None = None,
        post_processing_timeout_s: float | None = None,
    ) -> None:
        self.activities = set(supported_activities() if activities is None else activities)
        self.on_trace_ready = on_trace_ready
        self._told = _ranges.told(
            {"record_shapes": record_shapes, "with_stack": with_stack, "with_modules": with_modules,
             "with_flops": with_flops, "profile_memory": profile_memory}
        )  # fmt: skip
        self.step_num = 0
        self.current_action = ProfilerAction.NONE
        self._schedule = schedule
        self._metadata: dict[str, str] = {}
        self._begun: float | None = None
        self._events: EventList | None = None
        self._range: record_function | None = None

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Begins with step 0."""
        self._do(ProfilerAction.RECORD if self._schedule is None else self._schedule(self.step_num))

    def stop(self) -> None:
        """Ends what is recorded, and hands it on."""
        self._end_range()
        if self._begun is not None:
            self._finish()
        self.current_action = ProfilerAction.NONE

    def step(self) -> None:
        """The next step begins."""
        self._end_range()
        self.step_num += 1
        if self.current_action is ProfilerAction.RECORD_AND_SAVE and self._begun is not None:
            self._finish()
        if self._schedule is None:
            self._begin_range()
        else:
            self._do(self._schedule(self.step_num))

    def _do(self, action: ProfilerAction) -> None:
        """Begins or ends recording, as a step's action says."""
        records = action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if records and self._begun is None:
            self._begun = _ranges.start(self._told, _flops if self._told.flops else None)
        elif not records and self._begun is not None:
            self._finish()
        self.current_action = action
        if records and self._schedule is not None:
            self._begin_range()

    def _begin_range(self) -> None:
        self._range = record_function(f"ProfilerStep#{self.step_num}").__enter__()

    def _end_range(self) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None

    def _finish(self) -> None:
        assert self._begun is not None
        self._events, self._begun = _ranges.stop(self._begun), None
        if self.on_trace_ready is not None:
            self.on_trace_ready(self)

    def _recorded(self) -> EventList:
        if self._events is None:
            raise AssertionError("profile: nothing was recorded; ask after the end of a recording")
        return self._events

    def events(self) -> EventList:
        """Every kernel and range of the last recording."""
        return self._recorded()

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        """Those of one name as one, told apart by shapes and by so many of the innermost lines."""
        return self._recorded().key_averages(group_by_input_shape, group_by_stack_n)

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Writes the lines that asked for kernels, with their time, as tools that draw flame graphs read
        them.

        AssertionError without `with_stack`, ValueError for another metric.
        """
        if not self._told.stack:
            raise AssertionError("export_stacks() requires with_stack=True")
        self._recorded().export_stacks(path, metric)

    def export_chrome_trace(self, path: str) -> None:
        """Writes the last recording for chrome://tracing or Perfetto; compressed if it ends in .gz."""
        self._recorded().export_chrome_trace(path)

    def add_metadata(self, key: str, value: str) -> None:
        """Keeps a text beside the recording."""
        self._metadata[key] = value

    def add_metadata_json(self, key: str, value: str) -> None:
        """Keeps a text of JSON beside the recording."""
        self._metadata[key] = value


_leave_out(
    profile,
    "export_memory_timeline get_trace_id prepare_trace preset_metadata_json set_custom_trace_id_callback "
    "start_trace stop_trace toggle_collection_dynamic",
    "PyTorch has it, kiln has not; start, step and stop begin and end what is recorded",
)


def _flops(handle: Any, operands: tuple[Any, ...]) -> int:
    return 2 * int(_multiply_adds(handle, operands))


_hint_missing(__name__)
