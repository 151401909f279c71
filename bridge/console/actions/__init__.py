"""The table of all actions: what a form of a page asks the API to do.

An action is a function that turns a form into a `Planned` request. `ACTIONS` names them; the name is the last part of
the path to which the form is sent.
"""

from collections.abc import Callable, Mapping
from typing import Final

from duolog.bridge.console.actions import broker, delayed, groups, messages, topics, transactions
from duolog.bridge.console.actions.planned import Planned
from duolog.bridge.console.forms import Form

ACTIONS: Final[Mapping[str, Callable[[Form], Planned]]] = {
    "create-topic": topics.create,
    "configure-topic": topics.configure,
    "delete-topic": topics.delete,
    "pause-topic": topics.pause,
    "resume-topic": topics.resume,
    "send-message": messages.send,
    "cancel-timer": delayed.cancel,
    "reschedule-timer": delayed.reschedule,
    "deliver-timer": delayed.deliver_now,
    "cancel-key": delayed.cancel_key,
    "reschedule-key": delayed.reschedule_key,
    "add-schedule": delayed.add_schedule,
    "remove-schedule": delayed.remove_schedule,
    "abort-transaction": transactions.abort,
    "commit-half": transactions.commit,
    "roll-back-half": transactions.roll_back,
    "reset-group": groups.reset,
    "delete-group": groups.delete,
    "redrive": groups.redrive,
    "reload-settings": broker.reload_settings,
    "acknowledge-records": broker.acknowledge,
}
