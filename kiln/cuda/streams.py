"""PyTorch's path of CUDA's streams."""

from kiln.cuda.classes import Event, ExternalStream, Stream

__all__ = ["Event", "ExternalStream", "Stream"]
