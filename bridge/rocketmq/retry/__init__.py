"""Retries, dead letters and redrive."""
