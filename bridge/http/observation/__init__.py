"""Routes that show what the broker does now: figures of the last hour, warnings, clients, log lines."""
