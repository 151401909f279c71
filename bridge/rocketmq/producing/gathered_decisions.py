"""One append for the verdicts on half messages that came by one read of a socket and that no client awaits.

`HalfMessageLog.gathered` holds the decisions of one-way END_TRANSACTION requests that came by the same read. The
connection appends them when it has handled the read, or before it handles a request of another kind.
"""

from typing import Final

from duolog.bridge.monitoring.metrics import Metrics
from duolog.bridge.rocketmq.requests.errors import code_of
from duolog.bridge.transactions.half_message_log import HalfMessageLog
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.store.errors import StoreError

# Requests that may be handled while decisions are gathered. Of the sends, these are half messages, which no consumer
# sees; `send.py` appends the gathered decisions before any other message.
GATHERING: Final = (RequestCode.END_TRANSACTION, RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2)


def append_gathered(halves: HalfMessageLog, metrics: Metrics, now_ms: int) -> None:
    """Append the gathered decisions; a failure is only counted, because no answer is sent."""
    try:
        halves.append_gathered(now_ms)
    except StoreError as error:
        metrics.errors["rocketmq", code_of(error).name] += 1
