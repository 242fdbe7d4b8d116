"""ONNX: programs as models that other runtimes run.

export     a module or a function with example arguments, as PyTorch's callers write it
"""
