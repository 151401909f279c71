"""Recovery of the log at a start, and the checkpoints that shorten it."""
