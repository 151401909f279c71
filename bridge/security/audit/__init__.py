"""The audit log: logins, refusals and administrative changes, with who did them.

audit_log.py    what is written, at most how much in a second, and the counters
audit_file.py   the thread that appends lines to `security.audit_file`
"""
