"""Bearer tokens: a signed JWT (RFC 7519) names a user, until it expires.

A token must be signed with an asymmetric key of the key set, and must have `exp`; issuer and audience must be those of
the settings, if these are set. The name of the user is in the claim `security.oauth_user_claim`.
"""

from typing import Any, Final, NamedTuple

import jwt

from duolog.bridge.config import SecurityOptions
from duolog.bridge.security.oauth.key_sets import KeySet
from duolog.bridge.security.rules import NAME_CHARACTERS_MAX
from duolog.bridge.security.scram import LoginFailed
from duolog.bridge.security.users import GROUPS_MAX

TOKEN_BYTES_MAX: Final = 16 << 10
LEEWAY_MS: Final = 5_000  # By so much the clock of the identity provider may be ahead.
# No algorithm with a shared secret: the public key would be taken for the secret.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class TokenUser(NamedTuple):
    """Whom a token names, and until when."""

    name: str
    groups: tuple[str, ...]
    until_ms: int


class Tokens:
    """Checks tokens. Threads call `check`, because it may read the key set."""

    def __init__(self, keys: KeySet, options: SecurityOptions) -> None:
        self._keys, self._options = keys, options

    def check(self, token: str, now_ms: int, mono_ms: int) -> TokenUser | LoginFailed:
        """Return whom a token names, or why it is refused."""
        try:
            return self._user_of(self._claims(token, mono_ms), now_ms)
        except LoginFailed as failure:
            return failure
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, OverflowError) as error:
            return LoginFailed(f"the token is not valid: {error}"[:300])

    def _claims(self, token: str, mono_ms: int) -> dict[str, Any]:
        if len(token) > TOKEN_BYTES_MAX:
            raise LoginFailed(f"the token has more than {TOKEN_BYTES_MAX} characters")
        key = self._keys.find(jwt.get_unverified_header(token).get("kid"), mono_ms)
        if key is None:
            raise LoginFailed("the token is signed with an unknown key")
        options = self._options
        return jwt.decode(
            token,
            key,
            algorithms=ALGORITHMS,
            audience=options.oauth_audience or None,
            issuer=options.oauth_issuer or None,
            options={
                "require": ["exp", options.oauth_user_claim],
                # Times are compared with the broker's clock, below.
                "verify_exp": False, "verify_nbf": False, "verify_iat": False,
                "verify_aud": bool(options.oauth_audience), "verify_iss": bool(options.oauth_issuer),
            },
        )  # fmt: skip

    def _user_of(self, claims: dict[str, Any], now_ms: int) -> TokenUser:
        until_ms = int(float(claims["exp"]) * 1000)
        if now_ms >= until_ms:
            raise LoginFailed("the token has expired")
        if int(float(claims.get("nbf", 0)) * 1000) > now_ms + LEEWAY_MS:
            raise LoginFailed("the token is not valid yet")
        name = claims[self._options.oauth_user_claim]
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
            raise LoginFailed(f"the claim {self._options.oauth_user_claim} of the token is not the name of a user")
        groups = claims.get(self._options.oauth_groups_claim) if self._options.oauth_groups_claim else None
        named = groups if isinstance(groups, list) else []
        return TokenUser(name, tuple(str(each)[:NAME_CHARACTERS_MAX] for each in named[:GROUPS_MAX]), until_ms)
