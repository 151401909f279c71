"""Actions on topics."""

from duolog.bridge.config import units
from duolog.bridge.console.actions.planned import Planned
from duolog.bridge.console.commands import duolog, option, options
from duolog.bridge.console.forms import Form, given
from duolog.bridge.http.local_api import path_of


def create(form: Form) -> Planned:
    name, queues, configs = form.text("name"), form.number("queues"), form.pairs("configs")
    body = given(name=name, queues=queues, configs=_plain(configs) or None)
    words = duolog("topic", "create", name, *option("--queues", queues), *_config_options(configs))
    return Planned("POST", "/api/topics", words, f"The topic {name} was created.", body)


def configure(form: Form) -> Planned:
    name, configs = form.text("topic"), form.pairs("configs")
    body = {"configs": {key: value or None for key, value in _plain(configs).items()}}
    words = duolog("topic", "configure", name, *_config_options(configs))
    return Planned("PATCH", path_of("/api/topics/{}", name), words, f"The configs of {name} were changed.", body)


def delete(form: Form) -> Planned:
    name = form.text("topic")
    words = duolog("topic", "delete", name)
    return Planned("DELETE", path_of("/api/topics/{}", name), words, f"The topic {name} was deleted.")


def pause(form: Form) -> Planned:
    name = form.text("topic")
    words = duolog("timer", "pause", name)
    done = f"Deliveries of delayed messages to {name} are paused."
    return Planned("POST", path_of("/api/topics/{}/pause", name), words, done)


def resume(form: Form) -> Planned:
    name = form.text("topic")
    words = duolog("timer", "resume", name)
    done = f"Deliveries of delayed messages to {name} go on."
    return Planned("POST", path_of("/api/topics/{}/resume", name), words, done)


def _plain(configs: dict[str, str]) -> dict[str, str]:
    return {name: units.without_unit(name, value) for name, value in configs.items()}


def _config_options(configs: dict[str, str]) -> tuple[str, ...]:
    return options("--config", [f"{name}={value}" for name, value in configs.items()])
