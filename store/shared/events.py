"""The events that the shared log reports to the broker."""

from typing import NamedTuple


class Deposed(NamedTuple):
    """This broker is no longer the owner, or its copy can no longer follow. It must stop answering and join again."""

    reason: str


class StoreTrouble(NamedTuple):
    """A request to the store failed and is repeated. The reason says whether it fails until an operator acts."""

    reason: str


class StoreAnswers(NamedTuple):
    """A request has succeeded after a StoreTrouble."""


Event = Deposed | StoreTrouble | StoreAnswers
