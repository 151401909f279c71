"""The class Security: the parts of this package that ports and commands use, in one object."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from duolog.bridge.clock import Clock
from duolog.bridge.config import Options
from duolog.bridge.security.acls import Acls
from duolog.bridge.security.audit.audit_log import AuditLog
from duolog.bridge.security.authorizer import Authorizer
from duolog.bridge.security.logins import Logins
from duolog.bridge.security.quotas.quotas import Quotas
from duolog.bridge.security.resources import Resources
from duolog.bridge.security.rules import address_of
from duolog.bridge.security.secret_box import DEFAULT_NAME, SecretBox
from duolog.bridge.security.users import Users
from duolog.store.state_log import StateLog
from duolog.store.workers import Executor, Inline

if TYPE_CHECKING:
    from duolog.bridge.security.oauth.tokens import Tokens, TokenUser
    from duolog.bridge.security.scram import LoginFailed

OPEN: Final = (
    "warning: no authentication on {host}: anybody who reaches the ports may do everything (security.enabled)\n"
)
NO_USER: Final = (
    "there is no user: stop the broker, and add the first one with "
    "`duolog user add NAME --super --password-stdin --data {directory}{stream}`"
)


class Security:
    """Users, rules and the decision. The tables exist also while `security.enabled` is off, so that they are kept."""

    def __init__(self, state_log: StateLog, options: Options, clock: Clock) -> None:
        self.options = options.security
        self.is_enabled = options.security.enabled
        self._directory, self._stream = options.store.directory, options.shared.url
        self.users = Users(state_log, options.security)
        self.acls = Acls(state_log, options.security)
        self.quotas = Quotas(state_log, options.security)
        self.resources = Resources(lambda group: self.origins(group))
        self.origins: Callable[[str], Iterable[str]] = lambda group: ()  # Topics of its retries and dead letters.
        self.authorizer = Authorizer(self.users, self.acls, options.security)
        self.audit = AuditLog(options.security, clock, self.authorizer)
        self.executor: Executor = Inline()  # Runs what takes milliseconds; the broker sets threads.
        self.tokens: Tokens | None = None  # None: tokens are not accepted.
        self._box: SecretBox | None = None
        self._logins: Logins | None = None

    @property
    def key_file(self) -> Path:
        """The file with the key of encrypted secrets."""
        named = self.options.secret_key_file
        return Path(named) if named else Path(self._directory) / DEFAULT_NAME

    @property
    def has_key_file(self) -> bool:
        """Whether the key file exists. Blocks."""
        return self.key_file.exists()

    def use(self, box: SecretBox) -> None:
        """Set the box of secrets, from which on users can log in and be added."""
        self._box = box
        self._logins = Logins(self.users, self.options, box, accepts_brokers=bool(self._stream))

    @property
    def has_box(self) -> bool:
        return self._box is not None

    @property
    def box(self) -> SecretBox:
        """The box of secrets. `use` must have been called."""
        assert self._box is not None, "the key file is loaded"
        return self._box

    def check_token(self, token: str, now_ms: int, mono_ms: int) -> Callable[[], "TokenUser | LoginFailed"]:
        """Return the function that checks a token; a thread must call it. `tokens` must be set."""
        tokens = self.tokens
        assert tokens is not None, "security.oauth_keys is set"
        return lambda: tokens.check(token, now_ms, mono_ms)

    @property
    def logins(self) -> Logins:
        """The logins. `use` must have been called."""
        assert self._logins is not None, "the key file is loaded"
        return self._logins

    def open_to(self, listening: Iterable[tuple[str, int]]) -> str:
        """Return an address other than loopback on which no login is needed; empty if there is none."""
        if self.is_enabled:
            return ""
        hosts = {host: address_of(host) for host, _ in listening}
        return next((host for host, address in hosts.items() if address is None or not address.is_loopback), "")

    def warning_of(self, listening: Iterable[tuple[str, int]]) -> str:
        """Return the line of `/readyz` about an address on which anybody may do everything; empty: there is none."""
        open_to = self.open_to(listening)
        return OPEN.format(host=open_to) if open_to else ""

    @property
    def lack(self) -> str:
        """Return what is missing for any login; empty if logins are possible, or security is off."""
        is_lacking = self.is_enabled and not len(self.users) and not self.options.oauth_keys
        stream = f" --shared {self._stream}" if self._stream else ""
        return NO_USER.format(directory=self._directory, stream=stream) if is_lacking else ""
