"""PyTorch's paths that are no path of kiln's, and the modules that stand there."""

from __future__ import annotations

# PyTorch's files whose names are elsewhere in kiln
PATHS = {
    "__config__": "kiln.as_torch.config",
    "_C": "kiln.as_torch.core",
    "_VF": "kiln",
    "_custom_ops": "kiln.library",
    "_dynamo._trace_wrapped_higher_order_op": "kiln.as_torch.dynamo",
    "_dynamo.eval_frame": "kiln.as_torch.dynamo",
    "_dynamo.exc": "kiln.as_torch.dynamo_errors",
    "_dynamo.utils": "kiln.as_torch.dynamo",
    "_dynamo": "kiln.as_torch.dynamo",
    "_inductor": "kiln.as_torch.inductor",
    "_jit_internal": "kiln.jit",
    "_subclasses": "kiln.as_torch.fake",
    "_subclasses.fake_tensor": "kiln.as_torch.fake",
    "_tensor_str": "kiln.as_torch.tensor_str",
    "ao": "kiln.as_torch.quantization",
    "ao.nn": "kiln.as_torch.quantization",
    "ao.quantization": "kiln.as_torch.quantization",
    "cpu.amp.autocast_mode": "kiln.cpu.amp",
    "cuda.amp.autocast_mode": "kiln.cuda.amp",
    "cuda.amp.grad_scaler": "kiln.cuda.amp",
    "fft": "kiln.as_torch.fft",
    "functional": "kiln",
    "fx.experimental": "kiln.as_torch.fake",
    "jit.annotations": "kiln.as_torch.annotations",
    "onnx.operators": "kiln.as_torch.symbols",
    "onnx.symbolic_helper": "kiln.as_torch.symbols",
    "onnx.symbolic_opset11": "kiln.as_torch.symbols",
    "ops": "kiln.as_torch.ops",
    "quantization": "kiln.as_torch.quantization",
    "serialization": "kiln.serialization",
    "torch_version": "kiln.as_torch.version",
    "version": "kiln.as_torch.version",
}
