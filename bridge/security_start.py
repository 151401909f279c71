"""The start of security: the key file, the keys of tokens, and the threads that check passwords and tokens."""

import logging
import ssl
from collections.abc import Callable
from typing import Final

from duolog.bridge.net.addresses import Addresses, StartError
from duolog.bridge.security.secret_box import SecretBox
from duolog.bridge.security.security import Security
from duolog.store.errors import StoreError
from duolog.store.workers import Post, Workers

log = logging.getLogger("bridge")

THREADS: Final = 2
WAITING_MAX: Final = 256  # Logins that wait for a thread; further ones fail.


def start_security(
    security: Security, addresses: Addresses, outgoing: Callable[[], ssl.SSLContext | None], post: Post
) -> Workers | None:
    """Make logins possible, and return their threads; None: security is off, which is said on addresses for others.

    Raises ConfigError if the key file cannot be used.
    """
    if not security.is_enabled:
        if open_to := security.open_to(addresses.listening.values()):
            log.warning("authentication is off, anybody who reaches the ports may do everything host=%s", open_to)
        return None
    if security.options.audit_file:
        from duolog.bridge.security.audit.audit_file import AuditFile

        security.audit.sink = AuditFile(security.options.audit_file, security.options.audit_queue_bytes)
    security.use(SecretBox.load(security.key_file))
    if security.options.oauth_keys:
        _accept_tokens(security, outgoing)
    workers = start_workers(post)
    security.executor = workers
    return workers


def start_workers(post: Post) -> Workers:
    """Start the threads that check passwords and tokens."""
    return Workers("logins", THREADS, post, WAITING_MAX, StoreError(f"{WAITING_MAX} logins wait for a thread"))


def check_users(security: Security) -> None:
    """Raise StartError if no login is possible. Must be called after the whole state was replayed."""
    if security.lack:
        raise StartError(f"security.enabled: {security.lack}")


def _accept_tokens(security: Security, outgoing: Callable[[], ssl.SSLContext | None]) -> None:
    """Accept tokens of `security.oauth_keys`; the modules are imported only for that."""
    from duolog.bridge.security.oauth.key_sets import KeySet, reader_of
    from duolog.bridge.security.oauth.tokens import Tokens

    security.tokens = Tokens(KeySet(reader_of(security.options.oauth_keys, outgoing)), security.options)
