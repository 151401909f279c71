"""Quotas: how much the clients of a user or of a client id may use.

entity.py          whom quotas are for, which one counts, and the keys
stored_quotas.py   the quotas, as state records
quotas.py          what each client has used, and whether it must wait
"""
