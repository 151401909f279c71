"""Monitoring: metrics, logs, contained faults, records set aside, long turns of the loop."""
