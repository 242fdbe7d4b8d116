"""Models as programs: files of ONNX read, checked, followed."""
