"""What Celery's delivery_info lacks: the queue that a message was consumed from, and the message itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_dlx_retry.core.message import Message
    from celery_dlx_retry.core.topology import WorkQueue


class DeliveryInfo(dict[str, Any]):
    """The dict that tasks know as ``self.request.delivery_info``, with two attributes more.

    It travels into the pool's child together with the body, which pickle then sends once. As attributes they stay out
    of what ``celery inspect active`` shows of the dict: a body is nobody's business.
    """

    def __init__(self, info: dict[str, Any], *, queue: WorkQueue, message: Message) -> None:
        super().__init__(info, queue=queue.name)
        self.queue = queue
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (dict(self), self.queue, self.message)


def _rebuild(info: dict[str, Any], queue: WorkQueue, message: Message) -> DeliveryInfo:
    return DeliveryInfo(info, queue=queue, message=message)
