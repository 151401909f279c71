"""The members of RocketMQ's consumer and producer groups."""
