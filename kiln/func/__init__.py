"""kiln.func: functions made of functions, under torch.func's names. See README.md."""

from kiln.func.vmap import vmap

__all__ = ["vmap"]
