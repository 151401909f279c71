"""What a start does with the log that it finds, and the checkpoints that make this short."""
