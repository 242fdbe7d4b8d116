"""`torch.jit.annotations`: types that scripts would read; Python reads lists."""

from typing import Any, Dict, Final, List, Optional, Tuple, Union  # noqa: UP035

__all__ = [
    "Any", "BroadcastingList1", "BroadcastingList2", "BroadcastingList3", "Dict", "Final", "List", "Optional",
    "Tuple", "Union",
]  # fmt: skip

# `BroadcastingList2[int]` of an argument: a number for both, or a list
BroadcastingList1: Any = list
BroadcastingList2: Any = list
BroadcastingList3: Any = list
