"""Data directories that earlier versions wrote, and the script that writes one: `make_data.py`."""
