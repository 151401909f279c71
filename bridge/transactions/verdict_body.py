"""The JSON body that names a verdict on a half message: a producer sends it, or answers a check-back with it.

{"verdict": "commit" | "rollback" | "unknown"}
"""

from typing import Final

import msgspec

from duolog.txn.half import Verdict

_VERDICTS: Final = {"commit": Verdict.COMMITTED, "rollback": Verdict.ROLLED_BACK}


class VerdictBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body."""

    verdict: str


def read_verdict(body: bytes) -> Verdict | None:
    """Return the verdict that a body names; None for `unknown` and all other names.

    Raises msgspec.DecodeError, UnicodeDecodeError and RecursionError for what is no such body.
    """
    return _VERDICTS.get(msgspec.json.decode(body, type=VerdictBody).verdict)
