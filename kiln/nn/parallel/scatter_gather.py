"""`scatter` and `gather`, between devices that kiln has one of: refused."""

from kiln.absent import Refused as _Refused
from kiln.absent import hint_missing as _hint_missing

for _name in ("gather", "scatter", "scatter_kwargs"):
    globals()[_name] = _Refused(f"nn.parallel.{_name}")

_hint_missing(__name__)
