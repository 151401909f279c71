"""The command `duolog`."""
