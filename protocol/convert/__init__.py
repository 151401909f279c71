"""Converts stored messages between the two protocols. `mapping.py` describes the mapping of all fields."""
