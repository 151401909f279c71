"""Masking: what pages do not show of messages, by the rules of `http.masks`.

    payments:card,cvv     in messages of the topic `payments`, the fields `card` and `cvv` of JSON bodies at any depth,
                          and headers of these names; KEYS is the key of a message
    hr.*:*                of all topics whose names begin with `hr.`, all keys, headers and bodies

A body that is not whole JSON is hidden as a whole where a rule names fields. Masking protects from eyes, not from the
owner of a login: the HTTP API gives messages as they are to everybody who may read the topic.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from duolog.bridge.config.checks import ALL_FIELDS, MaskRule

HIDDEN: Final = "***"
KEY: Final = "keys"


class Masking:
    """The rules of one broker."""

    def __init__(self, rules: Iterable[MaskRule]) -> None:
        self._rules = tuple(rules)

    def masked(self, topic: str | None, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the view of a message, as the API gives it, without what the rules for its topic hide."""
        shown = dict(row)
        fields = self._fields(topic or "")
        if not fields:
            return shown
        is_all = ALL_FIELDS in fields
        if is_all or KEY in fields:
            _hide(shown, "key")
        if shown.get("headers"):
            shown["headers"] = {
                name: HIDDEN if is_all or name.lower() in fields else value for name, value in shown["headers"].items()
            }
        if is_all or "tags" in fields:
            _hide(shown, "tag")
        if is_all:
            _hide(shown, "value")
        else:
            _mask_body(shown, fields)
        return shown

    def _fields(self, topic: str) -> frozenset[str]:
        """Return the names of the hidden fields in lower case."""
        found = frozenset[str]()
        for rule in self._rules:
            if fnmatchcase(topic, rule.topic):
                found |= rule.fields
        return found


def _hide(row: dict[str, Any], name: str) -> None:
    """Hide a field that has a value."""
    had = row.pop(f"{name}_base64", None) is not None or row.get(name) is not None
    if had:
        row[name] = HIDDEN


def _mask_body(row: dict[str, Any], fields: frozenset[str]) -> None:
    text, encoded = row.get("value"), row.get("value_base64")
    if text is None and encoded is None:
        return
    try:
        found = json.loads(base64.b64decode(encoded or "") if text is None else text)
    except (ValueError, RecursionError):
        _hide(row, "value")
        return
    row.pop("value_base64", None)
    try:
        row["value"] = json.dumps(_without(found, fields), ensure_ascii=False)
    except RecursionError:
        _hide(row, "value")


def _without(value: Any, fields: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {name: HIDDEN if name.lower() in fields else _without(each, fields) for name, each in value.items()}
    return [_without(each, fields) for each in value] if isinstance(value, list) else value
