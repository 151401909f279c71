"""The labels of the fields of all forms, by the action or the path of the page to which the form is sent.

The templates show them, and an error about a field names its label.
"""

from collections.abc import Mapping
from typing import Final

LABELS: Final[Mapping[str, Mapping[str, str]]] = {
    "add-schedule": {
        "name": "Name",
        "topic": "Topic",
        "key": "Key",
        "every": "Every",
        "cron": "or a cron expression",
        "zone": "Time zone",
        "until": "Until (UTC)",
        "count": "Number of runs",
        "missed": "Missed runs",
        "value": "Body",
        "headers": "Headers, one a line",
    },
    "cancel-key": {
        "topic": "Topic",
        "key": "Key",
    },
    "configure-topic": {
        "configs": "Configs, one a line; NAME= sets the default",
    },
    "create-topic": {
        "name": "Name",
        "queues": "Queues",
        "configs": "Configs, one a line",
    },
    "redrive": {
        "to": "Send again to",
    },
    "reschedule-key": {
        "topic": "Topic",
        "key": "Key",
        "delay": "Deliver in",
        "at": "or at (UTC)",
    },
    "reschedule-timer": {
        "delay": "Deliver in",
        "at": "or at (UTC)",
    },
    "reset-group": {
        "to": "To",
        "offset": "or to the offset",
        "time": "or to the moment (UTC)",
        "back": "or back by",
        "topics": "Only these topics, one a line",
    },
    "send-message": {
        "topic": "Topic",
        "key": "Key",
        "tag": "Tag (RocketMQ)",
        "queue": "Queue",
        "delay": "Deliver in",
        "at": "Deliver at (UTC)",
        "value": "Body",
        "headers": "Headers, one a line",
    },
    "/console/dead-letters": {
        "reason": "Reason",
        "topic": "Came from the topic",
        "key": "Key",
        "tag": "Tag",
        "group": "Group",
    },
    "/console/delayed": {
        "topic": "Topic",
        "key": "Key (needs a topic)",
        "from": "Due from (UTC)",
        "until": "Due before (UTC)",
        "span": "Histogram of the next",
    },
    "/console/groups": {
        "search": "Name contains",
    },
    "/console/log": {
        "level": "Level and above",
        "component": "Component",
        "search": "Contains",
    },
    "/console/messages": {
        "topic": "Topic",
        "queue": "Queue",
        "offset": "From offset",
        "time": "From time (UTC)",
        "key": "Key",
        "tag": "Tag",
        "header": "Header",
        "sql": "SQL92 condition",
        "as": "Bodies as",
    },
    "/console/schedules": {
        "cron": "Cron expression",
        "zone": "Time zone",
    },
    "/console/settings": {
        "search": "Name contains",
    },
    "/console/timer": {
        "id": "Id of a message",
    },
    "/console/topics": {
        "search": "Name contains",
    },
}
