"""Benchmarks: hot paths in process (`paths.py`), and stock clients against Duolog and its peers (`end_to_end.py`)."""
