"""A message's way out: queues in the form of either client protocol, whichever of them wrote the messages."""
