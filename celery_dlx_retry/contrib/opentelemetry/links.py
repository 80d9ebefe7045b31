"""Read and write the ids of spans: in our header, and in the headers that a tracer of the sender wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Link, SpanContext, TraceFlags

from celery_dlx_retry.contrib.opentelemetry.attributes import LINK

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from celery_dlx_retry.wire.trace_header import TaskTrace

_LONGEST = 8192


class _Headers(Getter[Mapping[str, Any]]):
    """Reads texts of a sane length: a sender can write any value into a header."""

    def get(self, carrier: Mapping[str, Any], key: str) -> list[str] | None:
        value = carrier.get(key)
        return [value] if isinstance(value, str) and len(value) <= _LONGEST else None

    def keys(self, carrier: Mapping[str, Any]) -> list[str]:
        return [key for key in carrier if isinstance(key, str)]


_HEADERS = _Headers()


def sender_of(headers: Mapping[str, Any]) -> Context:
    """Return the context that the sender of a message was in; an empty one if its headers have none."""
    return propagate.extract(headers, context=Context(), getter=_HEADERS)


def traceparent(span: Span | None) -> str:
    """Return the id of a span as W3C writes it; empty if it has none."""
    if span is None or not (it := span.get_span_context()).is_valid:
        return ""
    return f"00-{it.trace_id:032x}-{it.span_id:016x}-{it.trace_flags & TraceFlags.SAMPLED:02x}"


def links_to(trace: TaskTrace) -> list[Link]:
    """Return one link to each span that the header names. An attribute of the link says which of the three it is."""
    roles: dict[str, str] = {}
    for role, span in (("first", trace.first), ("previous", trace.previous), ("published", trace.published)):
        if span:
            roles[span] = f"{roles[span]},{role}" if span in roles else role
    return [Link(_context(span), {LINK: found}) for span, found in roles.items()]


def _context(span: str) -> SpanContext:
    _, trace_id, span_id, flags = span.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
