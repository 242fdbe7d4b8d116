"""Stores: keys and values that processes share, by which they find each other."""

from kiln.distributed.store.base import HashStore, PrefixStore, QueueEmptyError, Store
from kiln.distributed.store.file import FileStore
from kiln.distributed.store.tcp import TCPStore

__all__ = ["FileStore", "HashStore", "PrefixStore", "QueueEmptyError", "Store", "TCPStore"]
for _class in (FileStore, HashStore, PrefixStore, QueueEmptyError, Store, TCPStore):
    _class.__module__ = "kiln.distributed"
