"""How long a statement takes: `Timer` measures, `Measurement` is what it found, `Compare` a table of several.

timer = benchmark.Timer("x @ x", globals={"x": kiln.ones(64, 64)}, num_threads=2)
print(timer.blocked_autorange())
"""

from kiln.absent import hint_missing as _hint_missing
from kiln.utils.benchmark.compare import Compare
from kiln.utils.benchmark.measurement import (
    Measurement,
    TaskSpec,
    ordered_unique,
    select_unit,
    trim_sigfig,
    unit_to_english,
)
from kiln.utils.benchmark.timer import Language, Timer, set_torch_threads, timer

__all__ = [
    "Compare", "Language", "Measurement", "TaskSpec", "Timer", "ordered_unique", "select_unit",
    "set_torch_threads", "timer", "trim_sigfig", "unit_to_english",
]  # fmt: skip

_hint_missing(__name__)
