"""What is derived from the commitlog for reading: the index of each queue, times, keys."""
