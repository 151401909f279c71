"""The parts that a SQL92 condition (`sql92.py`) is compiled to: what each evaluates, and how values are compared."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from duolog.protocol.rocketmq.messages.tags import IllegalExpression

if TYPE_CHECKING:
    from lark import Token

DEPTH_MAX: Final = 50
"""The largest depth of nested conditions. The evaluation of each level takes two nested calls."""

Value = str | int | float | bool | None
Values = Mapping[str, bytes | None]  # The properties that a condition names, and their values.
Evaluate = Callable[[Values], Value]


class Unreadable(Exception):
    """The value of a property cannot be converted to the type of the other operand; the condition is false."""


def illegal(at: int, problem: str) -> IllegalExpression:
    return IllegalExpression(f"SQL92 expression, character {at + 1}: {problem}")


class PartKind(Enum):
    PROPERTY = "property"
    CONSTANT = "constant"
    NEGATIVE = "negated value"
    CONDITION = "condition"


class ConditionPart(NamedTuple):
    """A compiled part of an expression."""

    kind: PartKind
    evaluate: Evaluate
    at: int  # The index of its first character.
    depth: int = 1
    constant: Value = None
    names: frozenset[str] = frozenset()  # The properties that it evaluates.


def start_of(token: "Token") -> int:
    return token.start_pos or 0


def unquoted(token: "Token") -> str:
    return token[1:-1].replace("''", "'")


def constant(token: "Token", value: Value) -> ConditionPart:
    return ConditionPart(PartKind.CONSTANT, lambda values: value, start_of(token), constant=value)


def around(kind: PartKind, evaluate: Evaluate, *inner: ConditionPart) -> ConditionPart:
    depth = max(part.depth for part in inner) + 1
    if depth > DEPTH_MAX:
        raise illegal(inner[0].at, f"more than {DEPTH_MAX} conditions within each other")
    return ConditionPart(
        kind, evaluate, inner[0].at, depth, names=inner[0].names.union(*[part.names for part in inner])
    )


def as_condition(part: ConditionPart) -> ConditionPart:
    """Convert a part to true, false or null. A condition is unchanged; a property is text and therefore never true."""
    is_truth = part.kind is PartKind.CONSTANT and type(part.constant) in (bool, type(None))
    if part.kind is PartKind.CONDITION or is_truth:
        return part
    if part.kind is not PartKind.PROPERTY:
        raise illegal(part.at, f"a {part.kind.value} is neither true nor false")
    inner = part.evaluate
    return around(PartKind.CONDITION, lambda values: None if inner(values) is None else False, part)


def joined(parts: Iterable[ConditionPart], *, decisive: bool) -> ConditionPart:
    """Combine conditions by OR, where the first true one decides, or by AND, where the first false one decides."""
    conditions = [as_condition(part) for part in parts]
    evaluates = [part.evaluate for part in conditions]

    def evaluate(values: Values) -> Value:
        result: Value = not decisive
        for each in evaluates:
            value = each(values)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return around(PartKind.CONDITION, evaluate, *conditions)


def equality(left: ConditionPart, right: ConditionPart) -> ConditionPart:
    left_of, right_of = left.evaluate, right.evaluate

    def evaluate(values: Values) -> Value:
        a, b = left_of(values), right_of(values)
        if a is None:
            return None if b is not None else True
        if b is None:
            return False
        return a == b if type(a) is type(b) else compare(a, b) == 0

    return around(PartKind.CONDITION, evaluate, left, right)


_ORDERS: Final[dict[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def order(left: ConditionPart, sign: str, right: ConditionPart) -> ConditionPart:
    for part in (left, right):
        is_number = type(part.constant) in (int, float)
        if part.kind is PartKind.CONDITION or (part.kind is PartKind.CONSTANT and not is_number):
            raise illegal(part.at, f"only numbers and properties can be compared by {sign}")
    left_of, right_of, holds = left.evaluate, right.evaluate, _ORDERS[sign]

    def evaluate(values: Values) -> Value:
        a, b = left_of(values), right_of(values)
        if a is None or b is None:
            return None
        if type(a) is str and type(b) is str:
            a, b = _to_float(a), _to_float(b)
        return holds(compare(a, b), 0)

    return around(PartKind.CONDITION, evaluate, left, right)


def among(part: ConditionPart, texts: "list[Token]", *, wanted: bool) -> ConditionPart:
    if part.kind is not PartKind.PROPERTY:
        raise illegal(part.at, "IN needs a property before it")
    members = frozenset(map(unquoted, texts))
    inner = part.evaluate

    def evaluate(values: Values) -> Value:
        value = inner(values)
        return None if value is None else (value in members) is wanted

    return around(PartKind.CONDITION, evaluate, part)


_PARTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def has_part(part: ConditionPart, kind: "Token", token: "Token", *, wanted: bool) -> ConditionPart:
    """Compile CONTAINS and NOT CONTAINS. Both are false if the value is null or no text, or the part is empty."""
    inner, looked_for, has = part.evaluate, unquoted(token), _PARTS[kind.upper()]

    def evaluate(values: Values) -> Value:
        value = inner(values)
        return type(value) is str and looked_for != "" and has(value, looked_for) is wanted

    return around(PartKind.CONDITION, evaluate, part)


# -- Values

_INTEGER_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[dDfF]?")


def compare(a: Value, b: Value) -> int:
    """Return the sign of a - b; neither may be null. Raises Unreadable if a text cannot be converted."""
    if type(a) is str and type(b) is not str:
        a = a.lower() == "true" if type(b) is bool else _like(b, a)
    elif type(b) is str and type(a) is not str:
        b = _like(a, b)  # TRUE = a is not converted: Apache RocketMQ fails there.
    if (type(a) is bool) is not (type(b) is bool):
        return -1  # As in Apache RocketMQ, the values are not equal.
    return (a > b) - (a < b)  # type: ignore[operator]


def _like(kind: Value, text: str) -> int | float:
    """Convert a text to the type of number with which it is compared."""
    if type(kind) is float:
        return _to_float(text)
    if type(kind) is not int or not _WHOLE.fullmatch(text):
        raise Unreadable
    number = int(text)
    limit = _INTEGER_MAX if -_INTEGER_MAX - 1 <= kind <= _INTEGER_MAX else LONG_MAX
    if not -limit - 1 <= number <= limit:
        raise Unreadable
    return number


def _to_float(text: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise Unreadable
    return float(found[1])
