"""The one builder of error messages; a leaf that imports nothing of kiln.

The rule: a message names the function, says what it expected and what came, and what to do. Where PyTorch
refuses the same, it is an error that the same `except` catches, and the text holds PyTorch's first words,
those before its first value, since programs and tests match them ("mat1 and mat2 shapes cannot be
multiplied"). Which argument has a wrong type kiln says in words of its own. `make errors` compares all of it.

message("linear", "weight of shape (out, in)", describe(w), "transpose it with w.t()")
-> "linear: expected weight of shape (out, in), got float32 tensor of shape (3,); transpose it with w.t()"
"""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType, TracebackType

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LONGEST = 80  # characters of a foreign value shown in a message


def message(op: str, expected: str, came: str, hint: str = "") -> str:
    """One sentence: which op, what it expected, what came, and (after a semicolon) what to do.

    >>> message("reshape", "12 elements", "shape (5, 2)", "pass -1 for one dim")
    'reshape: expected 12 elements, got shape (5, 2); pass -1 for one dim'
    """
    text = f"{op}: expected {expected}, got {came}"
    return f"{text}; {hint}" if hint else text


def describe(value: object) -> str:
    """A value as messages show it: a tensor by dtype and shape, a number by itself, the rest by type.

    >>> describe(3), describe("relu"), describe([1, 2]), describe(None)
    ('int 3', "str 'relu'", 'list of 2', 'None')
    """
    if value is None:
        return "None"
    kind = type(value).__name__
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{str(dtype).rpartition('.')[2]} tensor of shape {tuple(shape)}"
    if isinstance(value, (bool, int, float, complex, str, bytes)):
        shown = repr(value)
        return f"{kind} {shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + '...'}"
    if isinstance(value, (list, tuple, dict, set)):
        return f"{kind} of {len(value)}"
    return kind


def writable(text: str) -> str:
    r"""Text that UTF-8 can hold: halves of surrogate pairs, as in the name of a file that is not UTF-8, are
    escaped as Python does.

    >>> writable("odd\udcff.py")
    'odd\\udcff.py'
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def place(file: str, line: int) -> str:
    """A line of the user's program, as IPython calls it where it is a notebook's.

    >>> place("train.py", 3)
    'train.py:3'
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", lambda file: None)
    named = name_of(file)  # ("Cell", "In[3]")
    return f"{named[0].lower()} {named[1]}, line {line}" if named else f"{writable(file)}:{line}"


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns about the nearest line of the user's program, however many calls of kiln's lie in between.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as found:
    ...     warnings.simplefilter("always")
    ...     warn("softmax: no dim was given")
    >>> found[0].category.__name__, str(found[0].message)
    ('UserWarning', 'softmax: no dim was given')
    """
    level = 2
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (is_own(frame) or frame.f_globals.get("__name__") == "contextlib"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level if frame is not None else 2)


def entries(traceback: TracebackType | None) -> list[TracebackType]:
    """The frames of a traceback, the outermost first."""
    found = []
    while traceback is not None:
        found.append(traceback)
        traceback = traceback.tb_next
    return found


def is_own(frame: FrameType) -> bool:
    """Whether a frame is one of kiln's."""
    return frame.f_code.co_filename.startswith(_HERE)


def whole_tracebacks() -> bool:
    """Whether the user wants to see kiln's frames and errors as they were raised."""
    return os.environ.get("KILN_TRACEBACK") == "full"


def shorten(error: BaseException) -> None:
    """Cut kiln's own frames from an error's traceback: what is left are lines of the user's program."""
    if whole_tracebacks():
        return
    kept = [entry for entry in entries(error.__traceback__) if not is_own(entry.tb_frame)]
    for entry, after in zip(kept, [*kept[1:], None]):
        entry.tb_next = after
    error.__traceback__ = kept[0] if kept else None
