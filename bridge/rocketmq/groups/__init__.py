"""The members of consumer and producer groups."""
