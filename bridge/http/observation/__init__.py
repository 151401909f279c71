"""Routes that show what the broker does now: figures of the last hour, warnings, clients, log lines.

Each module has the handler of one route, a function; `routes.py` lists them.
"""
