"""SQL92 subscriptions: a condition over the properties of a message, read once, then asked for every message.

    compile_condition("price > 10 AND region IN ('eu', 'us')")(b"price\x0112\x02region\x01eu\x02") is True

    condition   = term { OR term }            term   = test { AND test }
    test        = value { = value | <> value | IS [NOT] NULL }
    value       = operand { > | >= | < | <= operand  |  [NOT] BETWEEN operand AND operand  |  [NOT] IN ( text, ... )
                          | [NOT] CONTAINS | STARTSWITH | ENDSWITH text }
    operand     = NOT operand | + operand | - operand | number | text | TRUE | FALSE | NULL | property | ( condition )

Names, numbers and 'text' (a quote within is doubled) are written as in SQL; keywords in any case; -- and /* */ are
comments. This is RocketMQ's grammar, so NOT binds closest: write NOT (a = 1), not NOT a = 1.

Logic has three values. A property that is not there is null, and so is what compares it, but for IS NULL. Only true
delivers. As in RocketMQ, a = b is false where only b is null, so a <> b is true there.

All properties are text, so what a value is compared with says how it is read. With a whole number: as a whole number,
within 32 bits if that number is; with any other number: as a number; with TRUE or FALSE: as one of them. < > <= >= of
two properties read both as numbers. A value that cannot be read so makes the whole condition false, even beside an OR
that would be true, if it is looked at. (Java reads NaN and hexadecimal numbers, too; here they are none.)

Not as RocketMQ: what follows a whole condition is an error instead of being ignored, and 0.0 is a number.
Source: `SelectorParser.jj`, `ComparisonExpression.java`, `LogicExpression.java`, `UnaryExpression.java`.
"""

import itertools
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from duolog.protocol.rocketmq.messages import properties
from duolog.protocol.rocketmq.messages.tags import EXPRESSION_CHARACTERS_MAX, IllegalExpression

if TYPE_CHECKING:
    from lark import Lark, Token

DEPTH_MAX: Final = 50
"""Conditions within conditions. Each level is two calls deep when a message is looked at."""

VERDICTS_MAX: Final = 1 << 14
"""Remembered of all conditions together, some 300 bytes each; then all are forgotten, and found out again."""
VERDICT_BYTES_MAX: Final = 128
"""Of the values that one depends on, and VALUE_BYTES for each of them; beyond, it is not remembered."""
VALUE_BYTES: Final = 8

Condition = Callable[[bytes], bool]
Value = str | int | float | bool | None
Values = Mapping[str, bytes | None]  # of the properties that a condition names
Evaluate = Callable[[Values], Value]


def compile_condition(expression: str) -> Condition:
    """Read an expression; what comes back says of a property string whether the message is wanted.

    Raises IllegalExpression with the place of the fault.
    """
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise IllegalExpression(
            f"subscription of {len(expression)} characters; {EXPRESSION_CHARACTERS_MAX} are allowed"
        )
    from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedToken  # See `_parser`.

    try:
        whole: Any = _parser().parse(expression)
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise _illegal(len(expression), "the expression ends too early") from None
        raise _illegal(error.pos_in_stream or 0, f"unexpected {str(error.token)[:40]!r}") from None
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        raise _illegal(at, f"unexpected {expression[at]!r}") from None
    except UnexpectedEOF:
        raise _illegal(len(expression), "the expression ends too early") from None
    part = _as_condition(whole)
    return _remembering(part.evaluate, sorted(part.names))


def _remembering(evaluate: Evaluate, names: list[str]) -> Condition:
    """Evaluate once for the same values: most conditions are over properties that have few."""
    number, finders = next(_numbers), [properties.finder(name) for name in names]

    def condition(raw: bytes) -> bool:
        values = [find(raw) for find in finders]
        verdict = _verdicts.get((number, *values))
        return verdict if verdict is not None else judge(values)

    def judge(values: list[bytes | None]) -> bool:
        try:
            verdict = evaluate(dict(zip(names, values, strict=True))) is True
        except (_Unreadable, UnicodeDecodeError):
            verdict = False
        if sum([VALUE_BYTES + len(value or b"") for value in values]) <= VERDICT_BYTES_MAX:
            if len(_verdicts) >= VERDICTS_MAX:
                _verdicts.clear()
            _verdicts[number, *values] = verdict
        return verdict

    if len(finders) != 1:
        return condition
    (find_only,) = finders

    def condition_of_one(raw: bytes) -> bool:
        value = find_only(raw)
        verdict = _verdicts.get((number, value))
        return verdict if verdict is not None else judge([value])

    return condition_of_one


_numbers = itertools.count()
_verdicts: dict[tuple[int | bytes | None, ...], bool] = {}  # by the number of a condition and the values it looks at


class _Unreadable(Exception):
    """A property's value is not what it is compared with; the condition is false."""


def _illegal(at: int, problem: str) -> IllegalExpression:
    return IllegalExpression(f"SQL92 expression, character {at + 1}: {problem}")


# -- Reading

_GRAMMAR: Final = r"""
    ?condition: term | term (_OR term)+            -> any_of
    ?term: test | test (_AND test)+                -> all_of
    ?test: value
        | test "=" value                           -> equal
        | test _UNEQUAL value                      -> unequal
        | test _IS NULL                            -> is_null
        | test _IS _NOT NULL                       -> is_not_null
    ?value: operand
        | value ORDER operand                      -> ordered
        | value _BETWEEN operand _AND operand      -> between
        | value _NOT _BETWEEN operand _AND operand -> not_between
        | value _IN _texts                         -> among
        | value _NOT _IN _texts                    -> not_among
        | value (CONTAINS|STARTSWITH|ENDSWITH) TEXT      -> has_part
        | value _NOT (CONTAINS|STARTSWITH|ENDSWITH) TEXT -> has_not_part
    ?operand: _NOT operand                         -> negation
        | "+" operand
        | "-" operand                              -> negative
        | WHOLE                                    -> whole
        | NUMBER                                   -> number
        | TEXT                                     -> text
        | TRUE                                     -> true
        | FALSE                                    -> false
        | NULL                                     -> null
        | NAME                                     -> property
        | "(" condition ")"
    _texts: "(" TEXT ("," TEXT)* ")"

    _UNEQUAL.2: "<>"
    ORDER: ">=" | "<=" | ">" | "<"
    CONTAINS: "CONTAINS"i
    STARTSWITH: "STARTSWITH"i
    ENDSWITH: "ENDSWITH"i
    _OR: "OR"i
    _AND: "AND"i
    _NOT: "NOT"i
    _IS: "IS"i
    _IN: "IN"i
    _BETWEEN: "BETWEEN"i
    NULL: "NULL"i
    TRUE: "TRUE"i
    FALSE: "FALSE"i
    NAME: /[a-z_$][a-z0-9_$]*/i
    NUMBER: /([0-9]+\.[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
    WHOLE: /(0|[1-9][0-9]*)l?/i
    TEXT: /'([^']|'')*'/

    %ignore /[ \t\n\r\f]+/
    %ignore /--[^\n\r]*/
    %ignore /\/\*([^*]|\*+[^*\/])*\*+\//
"""


@lru_cache(1)
def _parser() -> "Lark":
    """Make the parser when the first subscription needs it: lark takes 9 MB and 50 ms, and most brokers never do."""
    from lark import Lark

    return Lark(_GRAMMAR, start="condition", parser="lalr", lexer="basic", transformer=_Compiler())


class _Kind(Enum):
    PROPERTY = "property"
    CONSTANT = "constant"
    NEGATIVE = "negated value"
    CONDITION = "condition"


class _Part(NamedTuple):
    """A piece of an expression, compiled."""

    kind: _Kind
    evaluate: Evaluate
    at: int  # its first character
    depth: int = 1
    constant: Value = None
    names: frozenset[str] = frozenset()  # of the properties that it looks at


class _Compiler:
    """What lark calls for each rule, the innermost first: with the tokens and parts that the rule is made of.

    The class has more than 20 methods, because there is one for each rule of the grammar.
    """

    # -- Operands

    def property(self, found: "list[Token]") -> _Part:
        name = str(found[0])

        def evaluate(values: Values) -> Value:
            value = values.get(name)
            return None if value is None else value.decode()

        return _Part(_Kind.PROPERTY, evaluate, _at(found[0]), names=frozenset((name,)))

    def whole(self, found: "list[Token]") -> _Part:
        number = int(found[0].rstrip("lL"))
        if number > _LONG_MAX:
            raise _illegal(_at(found[0]), f"{number} exceeds {_LONG_MAX}")
        return _constant(found[0], number)

    def number(self, found: "list[Token]") -> _Part:
        number = float(found[0])
        if number == float("inf"):
            raise _illegal(_at(found[0]), "the number is too large")
        return _constant(found[0], number)

    def text(self, found: "list[Token]") -> _Part:
        return _constant(found[0], _unquoted(found[0]))

    def true(self, found: "list[Token]") -> _Part:
        return _constant(found[0], True)

    def false(self, found: "list[Token]") -> _Part:
        return _constant(found[0], False)

    def null(self, found: "list[Token]") -> _Part:
        return _constant(found[0], None)

    def negative(self, found: list[_Part]) -> _Part:
        (part,) = found
        inner = part.evaluate

        def evaluate(values: Values) -> Value:
            value = inner(values)
            return -value if type(value) in (int, float) else None  # type: ignore[operator]

        return _around(_Kind.NEGATIVE, evaluate, part)

    # -- Logic

    def negation(self, found: list[_Part]) -> _Part:
        part = _as_condition(found[0])
        inner = part.evaluate

        def evaluate(values: Values) -> Value:
            value = inner(values)
            return None if value is None else not value

        return _around(_Kind.CONDITION, evaluate, part)

    def any_of(self, found: list[_Part]) -> _Part:
        return _joined(found, decisive=True)

    def all_of(self, found: list[_Part]) -> _Part:
        return _joined(found, decisive=False)

    # -- Comparing

    def equal(self, found: list[_Part]) -> _Part:
        left, right = found
        for part in found:
            if part.kind is _Kind.CONSTANT and part.constant is None:
                raise _illegal(part.at, "NULL cannot be compared; write IS NULL")
        return _equality(left, right)

    def unequal(self, found: list[_Part]) -> _Part:
        return self.negation([self.equal(found)])

    def is_null(self, found: Any) -> _Part:
        inner = found[0].evaluate
        return _around(_Kind.CONDITION, lambda values: inner(values) is None, found[0])

    def is_not_null(self, found: Any) -> _Part:
        inner = found[0].evaluate
        return _around(_Kind.CONDITION, lambda values: inner(values) is not None, found[0])

    def ordered(self, found: Any) -> _Part:
        left, sign, right = found
        return _order(left, str(sign), right)

    def between(self, found: list[_Part]) -> _Part:
        value, low, high = found
        if low.kind is high.kind is _Kind.CONSTANT:
            if low.constant is None or high.constant is None:
                raise _illegal(low.at, "NULL cannot be compared")
            numbers = str not in (type(low.constant), type(high.constant))
            if numbers and _compare(high.constant, low.constant) < 0:
                raise _illegal(low.at, f"BETWEEN {low.constant} AND {high.constant}: the greater comes first")
        return self.all_of([_order(value, ">=", low), _order(value, "<=", high)])

    def not_between(self, found: list[_Part]) -> _Part:
        value, low, high = found
        return self.any_of([_order(value, "<", low), _order(value, ">", high)])

    def among(self, found: Any) -> _Part:
        return _among(found[0], found[1:], wanted=True)

    def not_among(self, found: Any) -> _Part:
        return _among(found[0], found[1:], wanted=False)

    def has_part(self, found: Any) -> _Part:
        return _has_part(*found, wanted=True)

    def has_not_part(self, found: Any) -> _Part:
        return _has_part(*found, wanted=False)


# -- Making parts


def _at(token: "Token") -> int:
    return token.start_pos or 0


def _unquoted(token: "Token") -> str:
    return token[1:-1].replace("''", "'")


def _constant(token: "Token", value: Value) -> _Part:
    return _Part(_Kind.CONSTANT, lambda values: value, _at(token), constant=value)


def _around(kind: _Kind, evaluate: Evaluate, *inner: _Part) -> _Part:
    depth = max(part.depth for part in inner) + 1
    if depth > DEPTH_MAX:
        raise _illegal(inner[0].at, f"more than {DEPTH_MAX} conditions within each other")
    return _Part(kind, evaluate, inner[0].at, depth, names=inner[0].names.union(*[part.names for part in inner]))


def _as_condition(part: _Part) -> _Part:
    """Take a part for true, false or null: a condition as it is, a property never for true, since it is text."""
    if part.kind is _Kind.CONDITION or (part.kind is _Kind.CONSTANT and type(part.constant) in (bool, type(None))):
        return part
    if part.kind is not _Kind.PROPERTY:
        raise _illegal(part.at, f"a {part.kind.value} is neither true nor false")
    inner = part.evaluate
    return _around(_Kind.CONDITION, lambda values: None if inner(values) is None else False, part)


def _joined(parts: Iterable[_Part], *, decisive: bool) -> _Part:
    """Join conditions by OR (one that is true decides) or by AND (one that is false does)."""
    conditions = [_as_condition(part) for part in parts]
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

    return _around(_Kind.CONDITION, evaluate, *conditions)


def _equality(left: _Part, right: _Part) -> _Part:
    left_of, right_of = left.evaluate, right.evaluate

    def evaluate(values: Values) -> Value:
        a, b = left_of(values), right_of(values)
        if a is None:
            return None if b is not None else True
        if b is None:
            return False
        return a == b if type(a) is type(b) else _compare(a, b) == 0

    return _around(_Kind.CONDITION, evaluate, left, right)


_ORDERS: Final[dict[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def _order(left: _Part, sign: str, right: _Part) -> _Part:
    for part in (left, right):
        is_number = type(part.constant) in (int, float)
        if part.kind is _Kind.CONDITION or (part.kind is _Kind.CONSTANT and not is_number):
            raise _illegal(part.at, f"only numbers and properties can be compared by {sign}")
    left_of, right_of, holds = left.evaluate, right.evaluate, _ORDERS[sign]

    def evaluate(values: Values) -> Value:
        a, b = left_of(values), right_of(values)
        if a is None or b is None:
            return None
        if type(a) is str and type(b) is str:
            a, b = _to_float(a), _to_float(b)
        return holds(_compare(a, b), 0)

    return _around(_Kind.CONDITION, evaluate, left, right)


def _among(part: _Part, texts: "list[Token]", *, wanted: bool) -> _Part:
    if part.kind is not _Kind.PROPERTY:
        raise _illegal(part.at, "IN needs a property before it")
    among = frozenset(map(_unquoted, texts))
    inner = part.evaluate

    def evaluate(values: Values) -> Value:
        value = inner(values)
        return None if value is None else (value in among) is wanted

    return _around(_Kind.CONDITION, evaluate, part)


_PARTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def _has_part(part: _Part, kind: "Token", token: "Token", *, wanted: bool) -> _Part:
    """Of a value that is null or no text, and of an empty part, both CONTAINS and NOT CONTAINS are false."""
    inner, looked_for, has = part.evaluate, _unquoted(token), _PARTS[kind.upper()]

    def evaluate(values: Values) -> Value:
        value = inner(values)
        return type(value) is str and looked_for != "" and has(value, looked_for) is wanted

    return _around(_Kind.CONDITION, evaluate, part)


# -- Values

_INTEGER_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[dDfF]?")


def _compare(a: Value, b: Value) -> int:
    """Give the sign of a - b, both not null; raises _Unreadable if a text is not what the other one is."""
    if type(a) is str and type(b) is not str:
        a = a.lower() == "true" if type(b) is bool else _like(b, a)
    elif type(b) is str and type(a) is not str:
        b = _like(a, b)  # Not so of TRUE = a: Java's broker fails there.
    if (type(a) is bool) is not (type(b) is bool):
        return -1  # As Java's broker has it: not equal.
    return (a > b) - (a < b)  # type: ignore[operator]


def _like(kind: Value, text: str) -> int | float:
    """Read a text as the kind of number that it is compared with."""
    if type(kind) is float:
        return _to_float(text)
    if type(kind) is not int or not _WHOLE.fullmatch(text):
        raise _Unreadable
    number = int(text)
    limit = _INTEGER_MAX if -_INTEGER_MAX - 1 <= kind <= _INTEGER_MAX else _LONG_MAX
    if not -limit - 1 <= number <= limit:
        raise _Unreadable
    return number


def _to_float(text: str) -> float:
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        raise _Unreadable
    return float(found[1])
