from kiln.batching.context import Batching
import sys, types
class _M(types.ModuleType):
    def __call__(self): return Batching()
sys.modules[__name__].__class__ = _M
