"""POP consumption."""
