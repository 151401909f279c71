"""What all RocketMQ requests share: connections, admission limits, errors, answers."""
