"""Indexes, which are derived from the commitlog: the index of each queue, steps back of store times, the key index."""
