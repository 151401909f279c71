"""SQL92 subscriptions: compiles a condition over the properties of a message, which is then evaluated for each message.

    compile_condition("price > 10 AND region IN ('eu', 'us')")(b"price\x0112\x02region\x01eu\x02") is True

    condition   = term { OR term }            term   = test { AND test }
    test        = value { = value | <> value | IS [NOT] NULL }
    value       = operand { > | >= | < | <= operand  |  [NOT] BETWEEN operand AND operand  |  [NOT] IN ( text, ... )
                          | [NOT] CONTAINS | STARTSWITH | ENDSWITH text }
    operand     = NOT operand | + operand | - operand | number | text | TRUE | FALSE | NULL | property | ( condition )

Names, numbers and 'text' (a quote within is doubled) are written as in SQL; keywords in any case; -- and /* */ are
comments. This is RocketMQ's grammar, so NOT binds closest: write NOT (a = 1), not NOT a = 1.

Conditions have three-valued logic. A property that a message does not have is null. A comparison with null is null,
except IS NULL. A message is delivered if the condition is true. As in RocketMQ, a = b is false if only b is null, so
a <> b is then true.

All properties are text. The other operand of a comparison determines how a property is converted: to an integer if it
is an integer (of 32 bits if that integer is within 32 bits), to a number if it is another number, and to a truth value
if it is TRUE or FALSE. The operators < > <= >= convert two properties to numbers. If a property that is evaluated
cannot be converted, the whole condition is false, even if another operand of OR is true. Java also converts NaN and
hexadecimal numbers; Duolog does not.

Differences from RocketMQ: text after a whole condition is an error and not ignored, and 0.0 is a number.
Source: `SelectorParser.jj`, `ComparisonExpression.java`, `LogicExpression.java`, `UnaryExpression.java`.
"""

import itertools
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from duolog.protocol.rocketmq.filters.sql92_parts import (
    LONG_MAX,
    ConditionPart,
    Evaluate,
    PartKind,
    Unreadable,
    Value,
    Values,
    among,
    around,
    as_condition,
    compare,
    constant,
    equality,
    has_part,
    illegal,
    joined,
    order,
    start_of,
    unquoted,
)
from duolog.protocol.rocketmq.messages import properties
from duolog.protocol.rocketmq.messages.tags import EXPRESSION_CHARACTERS_MAX, IllegalExpression

if TYPE_CHECKING:
    from lark import Lark, Token

RESULTS_MAX: Final = 1 << 14
"""The number of cached results of all conditions, with about 300 bytes each. A full cache is cleared."""
RESULT_BYTES_MAX: Final = 128
"""A result is cached if the values on which it depends have at most so many bytes, plus VALUE_BYTES for each value."""
VALUE_BYTES: Final = 8

Condition = Callable[[bytes], bool]


def compile_condition(expression: str) -> Condition:
    """Compile an expression to a function of the property string, which returns whether the message matches.

    Raises IllegalExpression with the position of the error.
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
            raise illegal(len(expression), "the expression ends too early") from None
        raise illegal(error.pos_in_stream or 0, f"unexpected {str(error.token)[:40]!r}") from None
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        raise illegal(at, f"unexpected {expression[at]!r}") from None
    except UnexpectedEOF:
        raise illegal(len(expression), "the expression ends too early") from None
    part = as_condition(whole)
    return _with_cached_results(part.evaluate, sorted(part.names))


def _with_cached_results(evaluate: Evaluate, names: list[str]) -> Condition:
    """Return the condition with a cache of its results: most conditions use properties with few different values."""
    number, finders = next(_numbers), [properties.finder(name) for name in names]

    def condition(raw: bytes) -> bool:
        values = [find(raw) for find in finders]
        result = _results.get((number, *values))
        return result if result is not None else judge(values)

    def judge(values: list[bytes | None]) -> bool:
        try:
            result = evaluate(dict(zip(names, values, strict=True))) is True
        except (Unreadable, UnicodeDecodeError):
            result = False
        if sum([VALUE_BYTES + len(value or b"") for value in values]) <= RESULT_BYTES_MAX:
            if len(_results) >= RESULTS_MAX:
                _results.clear()
            _results[number, *values] = result
        return result

    if len(finders) != 1:
        return condition
    (find_only,) = finders

    def condition_of_one(raw: bytes) -> bool:
        value = find_only(raw)
        result = _results.get((number, value))
        return result if result is not None else judge([value])

    return condition_of_one


_numbers = itertools.count()
_results: dict[tuple[int | bytes | None, ...], bool] = {}  # By the number of a condition and its values.


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


class _Compiler:
    """What lark calls for each rule, the innermost first: with the tokens and parts that the rule is made of.

    The class has more than 20 methods because there is one for each rule of the grammar.
    """

    # -- Operands

    def property(self, found: "list[Token]") -> ConditionPart:
        name = str(found[0])

        def evaluate(values: Values) -> Value:
            value = values.get(name)
            return None if value is None else value.decode()

        return ConditionPart(PartKind.PROPERTY, evaluate, start_of(found[0]), names=frozenset((name,)))

    def whole(self, found: "list[Token]") -> ConditionPart:
        number = int(found[0].rstrip("lL"))
        if number > LONG_MAX:
            raise illegal(start_of(found[0]), f"{number} exceeds {LONG_MAX}")
        return constant(found[0], number)

    def number(self, found: "list[Token]") -> ConditionPart:
        number = float(found[0])
        if number == float("inf"):
            raise illegal(start_of(found[0]), "the number is too large")
        return constant(found[0], number)

    def text(self, found: "list[Token]") -> ConditionPart:
        return constant(found[0], unquoted(found[0]))

    def true(self, found: "list[Token]") -> ConditionPart:
        return constant(found[0], True)

    def false(self, found: "list[Token]") -> ConditionPart:
        return constant(found[0], False)

    def null(self, found: "list[Token]") -> ConditionPart:
        return constant(found[0], None)

    def negative(self, found: list[ConditionPart]) -> ConditionPart:
        (part,) = found
        inner = part.evaluate

        def evaluate(values: Values) -> Value:
            value = inner(values)
            return -value if type(value) in (int, float) else None  # type: ignore[operator]

        return around(PartKind.NEGATIVE, evaluate, part)

    # -- Logic

    def negation(self, found: list[ConditionPart]) -> ConditionPart:
        part = as_condition(found[0])
        inner = part.evaluate

        def evaluate(values: Values) -> Value:
            value = inner(values)
            return None if value is None else not value

        return around(PartKind.CONDITION, evaluate, part)

    def any_of(self, found: list[ConditionPart]) -> ConditionPart:
        return joined(found, decisive=True)

    def all_of(self, found: list[ConditionPart]) -> ConditionPart:
        return joined(found, decisive=False)

    # -- Comparing

    def equal(self, found: list[ConditionPart]) -> ConditionPart:
        left, right = found
        for part in found:
            if part.kind is PartKind.CONSTANT and part.constant is None:
                raise illegal(part.at, "NULL cannot be compared; write IS NULL")
        return equality(left, right)

    def unequal(self, found: list[ConditionPart]) -> ConditionPart:
        return self.negation([self.equal(found)])

    def is_null(self, found: Any) -> ConditionPart:
        inner = found[0].evaluate
        return around(PartKind.CONDITION, lambda values: inner(values) is None, found[0])

    def is_not_null(self, found: Any) -> ConditionPart:
        inner = found[0].evaluate
        return around(PartKind.CONDITION, lambda values: inner(values) is not None, found[0])

    def ordered(self, found: Any) -> ConditionPart:
        left, sign, right = found
        return order(left, str(sign), right)

    def between(self, found: list[ConditionPart]) -> ConditionPart:
        value, low, high = found
        if low.kind is high.kind is PartKind.CONSTANT:
            if low.constant is None or high.constant is None:
                raise illegal(low.at, "NULL cannot be compared")
            numbers = str not in (type(low.constant), type(high.constant))
            if numbers and compare(high.constant, low.constant) < 0:
                raise illegal(low.at, f"BETWEEN {low.constant} AND {high.constant}: the greater comes first")
        return self.all_of([order(value, ">=", low), order(value, "<=", high)])

    def not_between(self, found: list[ConditionPart]) -> ConditionPart:
        value, low, high = found
        return self.any_of([order(value, "<", low), order(value, ">", high)])

    def among(self, found: Any) -> ConditionPart:
        return among(found[0], found[1:], wanted=True)

    def not_among(self, found: Any) -> ConditionPart:
        return among(found[0], found[1:], wanted=False)

    def has_part(self, found: Any) -> ConditionPart:
        return has_part(*found, wanted=True)

    def has_not_part(self, found: Any) -> ConditionPart:
        return has_part(*found, wanted=False)
