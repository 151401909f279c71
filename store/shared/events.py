"""What the shared log reports to the broker."""

from typing import NamedTuple


class Deposed(NamedTuple):
    """This broker is no longer the owner, or its copy can no longer follow: it must stop answering, and join again."""

    reason: str


class StoreTrouble(NamedTuple):
    """A request to the store failed and is repeated. The reason says if it will fail until an operator acts."""

    reason: str


class StoreAnswers(NamedTuple):
    """A request has succeeded after `StoreTrouble`."""


Event = Deposed | StoreTrouble | StoreAnswers
