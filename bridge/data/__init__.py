"""A message's way in and out: checked, published, read, and converted between the protocols."""
