"""The JSON body with a verdict on a half message: a client sends it, or a producer answers a check-back with it.

{"verdict": "commit" | "rollback" | "unknown"}
"""

from typing import Final

import msgspec

from duolog.txn.half_verdicts import HalfVerdict

_VERDICTS: Final = {"commit": HalfVerdict.COMMITTED, "rollback": HalfVerdict.ROLLED_BACK}


class VerdictBody(msgspec.Struct, forbid_unknown_fields=True):
    """The fields of the body."""

    verdict: str


def read_verdict(body: bytes) -> HalfVerdict | None:
    """Return the verdict in a body; None for `unknown` and any other text.

    Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError if the body is invalid.
    """
    return _VERDICTS.get(msgspec.json.decode(body, type=VerdictBody).verdict)
