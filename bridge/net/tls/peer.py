"""The class TlsPeer: the client of a TLS connection; and the rules of `tls.principal_rule`, which name its user.

    CN                            the common name, if the subject has exactly one
    DN, DEFAULT                   the whole subject, as in RFC 4514: CN=orders,OU=shop,O=Example
    RULE:pattern/replacement/     the subject if the whole of it matches; $1 is a group of the pattern
    RULE:pattern/replacement/L    the same in lower case; U: in upper case

Rules are separated by commas, and the first that matches names the user. These are Kafka's rules
(`SslPrincipalMapper.java`), and `CN`. Prefer `CN`: a pattern can mistake an escaped comma in one field of a subject for
the beginning of the next field.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

# A longer subject is not matched, because a pattern may take long for a long text.
SUBJECT_CHARACTERS_MAX: Final = 1024
NAME_CHARACTERS_MAX: Final = 255

_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")


class BadPrincipalRule(ValueError):
    """A rule is invalid. The message is one line."""


class TlsPeer(NamedTuple):
    """The client's side of a connection with TLS. `principal` is None if the client sent no certificate."""

    version: str  # "TLSv1.2" or "TLSv1.3".
    cipher: str
    principal: str | None  # The user that `tls.principal_rule` gives for the subject, without `User:`.
    subject: str  # The subject in the format of RFC 4514; empty without a certificate.


class _Pattern(NamedTuple):
    pattern: re.Pattern[str]
    replacement: str
    case: str


class PrincipalRules:
    """The parsed value of `tls.principal_rule`. Raises BadPrincipalRule."""

    def __init__(self, text: str) -> None:
        self._rules: list[str | _Pattern] = []
        at = 0
        text = text.strip()
        while at < len(text):
            rule, at = _rule_at(text, at)
            self._rules.append(rule)
        if not self._rules:
            raise BadPrincipalRule("expected CN, DN or RULE:pattern/replacement/, got an empty text")

    def principal_of(self, subject: str, common_names: Sequence[str]) -> str | None:
        """Return the user of a certificate; None if no rule matches or the result is no valid name."""
        if len(subject) > SUBJECT_CHARACTERS_MAX:
            return None
        for rule in self._rules:
            name = _applied(rule, subject, common_names)
            if name:
                return name if len(name) <= NAME_CHARACTERS_MAX and name.isprintable() else None
        return None


def _applied(rule: str | _Pattern, subject: str, common_names: Sequence[str]) -> str | None:
    if rule == "CN":
        return common_names[0] if len(common_names) == 1 else None
    if isinstance(rule, str):
        return subject
    found = rule.pattern.fullmatch(subject)
    if found is None:
        return None
    name = found.expand(rule.replacement)
    return {"L": name.lower(), "U": name.upper()}.get(rule.case, name)


def _rule_at(text: str, at: int) -> tuple[str | _Pattern, int]:
    """Return the rule that begins at `at`, and where the next one begins."""
    found = _RULE.match(text, at)
    if found is not None:
        rule: str | _Pattern = _pattern(found)
        end = found.end()
    else:
        end = text.find(",", at) if "," in text[at:] else len(text)
        rule = {"CN": "CN", "DN": "DN", "DEFAULT": "DN"}.get(text[at:end].strip(), "")
        if not rule:
            raise BadPrincipalRule(f"expected CN, DN or RULE:pattern/replacement/, got {text[at:end].strip()[:100]!r}")
    rest = text[end:].lstrip()
    if rest and not rest.startswith(","):
        raise BadPrincipalRule(f"expected a comma after {text[at:end]!r}, got {rest[:100]!r}")
    rest = rest[1:].lstrip()
    return rule, len(text) - len(rest)


def _pattern(found: re.Match[str]) -> _Pattern:
    pattern, replacement, case = (part.replace("\\/", "/") for part in found.groups())
    try:
        compiled = re.compile(pattern)
        # Java's $1 is Python's \g<1>; a backslash would begin an escape of Python.
        template = re.sub(r"\$(\d)", r"\\g<\1>", replacement.replace("\\", "\\\\"))
        re.compile(f"(?:{pattern})|").fullmatch("").expand(template)  # type: ignore[union-attr]  # Checks the groups.
    except (re.error, IndexError) as error:
        raise BadPrincipalRule(f"{found[0][:100]!r}: {error}") from error
    return _Pattern(compiled, template, case)
