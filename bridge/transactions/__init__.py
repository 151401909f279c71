"""Transactions of both protocols, kept in the log."""
