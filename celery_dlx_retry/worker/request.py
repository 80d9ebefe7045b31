"""DLXRequest: what the worker's main process knows of a delivery and Celery's own request does not."""

from __future__ import annotations

from typing import Any

from billiard.einfo import ExceptionWithTraceback
from celery.worker.request import Request

from celery_dlx_retry.core.message import Message
from celery_dlx_retry.worker.delivery import DeliveryInfo
from celery_dlx_retry.worker.guard import AlreadyDead
from celery_dlx_retry.worker.runtime import runtime_of


class DLXRequest(Request):
    """Celery's request, which knows the queue it came from and acknowledges what is a dead letter already."""

    _delivery_info: dict[str, Any]
    _is_settled = False

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        runtime = runtime_of(self._app)
        if not runtime.is_rabbitmq:
            return
        info = message.delivery_info
        self._delivery_info = self._request_dict["delivery_info"] = DeliveryInfo(
            self._delivery_info,
            queue=runtime.consumed_queue(info.get("consumer_tag"), otherwise=info.get("routing_key") or ""),
            message=Message(
                body=message.body,
                content_type=message.content_type,
                content_encoding=message.content_encoding,
                headers=message.headers,
                properties=message.properties,
                compression=None if message.errors else message.headers.get("compression"),
            ),
        )

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:  # noqa: FBT001, FBT002
        """See whether the pool's child has settled the failure before Celery acknowledges or rejects it."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        self._is_settled = isinstance(error, AlreadyDead) or getattr(exc_info, "dlx_is_settled", False)
        return super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)

    def reject(self, requeue: bool = False) -> None:  # noqa: FBT001, FBT002
        """A dead letter that is published is not rejected as well: a queue with a DLX would make a second one."""
        if self._is_settled and not requeue:
            self.acknowledge()
        else:
            super().reject(requeue)
