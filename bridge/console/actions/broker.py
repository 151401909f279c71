"""Actions on the broker itself."""

from duolog.bridge.console.actions.planned import Planned
from duolog.bridge.console.commands import duolog, option
from duolog.bridge.console.forms import Form, given


def reload_settings(form: Form) -> Planned:
    return Planned("POST", "/api/settings/reload", duolog("config", "reload"), "The settings were read again.")


def acknowledge(form: Form) -> Planned:
    kind, place = form.optional("kind"), form.optional("place")
    words = duolog("poison", "acknowledge", *option("--kind", kind), *option("--place", place))
    done = "The records that were set aside are acknowledged."
    return Planned("POST", "/api/poison/acknowledge", words, done, given(kind=kind, place=place))
