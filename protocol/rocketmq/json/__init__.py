"""JSON as RocketMQ's Java side writes and reads it."""
