"""Failed messages of RocketMQ groups: retries, dead letters, redrive."""
