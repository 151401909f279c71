"""A broker as a process (`process.py`, `service_manager.py`), and a broker that shares its log (`shared_broker.py`).

`external_watchdog.py` and its child process disconnect the clients of the latter while it stands still.
"""
