"""The benchmarks: `python bench/run.py`, or `python -m bench.run`."""
