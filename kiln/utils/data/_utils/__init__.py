"""What loaders are made of: fetching, collation, workers. Programs use what kiln.utils.data shows of it."""

from kiln.utils.data._utils import collate, fetch, pin_memory, worker

__all__ = ["collate", "fetch", "pin_memory", "worker"]

MP_STATUS_CHECK_INTERVAL = worker.MP_STATUS_CHECK_INTERVAL
