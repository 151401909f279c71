"""A message's way out: reads queues in the format of either client protocol, whichever protocol wrote the messages."""
