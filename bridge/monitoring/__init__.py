"""What operators see: metrics, logs, contained faults, long turns of the loop."""
