"""Linear algebra under the names of torch.linalg: what the table has as "linalg.name"."""

from kiln.table import registry

__getattr__, __dir__ = registry.namespace(__name__)
