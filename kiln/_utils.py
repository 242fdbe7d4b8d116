"""Functions that Python's pickles of PyTorch's tensors name, for programs that read them as torch's."""

from kiln.serialization import words

_rebuild_tensor = words.rebuild_tensor
_rebuild_tensor_v2 = words.rebuild_tensor_v2
_rebuild_tensor_v3 = words.rebuild_tensor_v3
_rebuild_parameter = words.rebuild_parameter
_rebuild_parameter_with_state = words.rebuild_parameter_with_state
