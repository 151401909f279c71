"""Retention: how far log starts may move, and which segments may then be removed."""
