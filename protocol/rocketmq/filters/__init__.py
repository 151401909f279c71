"""Subscription filters: tags and SQL92 conditions."""
