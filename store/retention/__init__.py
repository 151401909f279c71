"""Retention: computes the log start of queues from limits, and finds the segments that can be removed."""
