"""Linear algebra under the names of torch.linalg: what the table has as "linalg.name"."""

from typing import TYPE_CHECKING

from kiln.table import registry

if TYPE_CHECKING:
    from kiln._typed.linalg import *  # noqa: F403
    from kiln.ops.linalg.outside import LinAlgError as LinAlgError
else:
    __getattr__, __dir__ = registry.namespace(__name__)
