"""RocketMQ's messages as bytes: what the commitlog holds, and the parts of a message."""
