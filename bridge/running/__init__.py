"""A broker as a process (`process.py`, `service_manager.py`), and a broker that shares its log (`shared_broker.py`)."""
