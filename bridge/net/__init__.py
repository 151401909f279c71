"""Sockets, connections, answers that wait for the log, and long polls."""
