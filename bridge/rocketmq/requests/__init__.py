"""What every RocketMQ request passes: connection, admission, errors, answers."""
