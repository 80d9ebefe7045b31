"""``celery dlx doctor``: what loses, loops or blocks in this app and on this broker."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import click

from celery_dlx_retry.cli.context import app_of, management_option, queues_option
from celery_dlx_retry.cli.output import counted, echo, json_line, json_option, monitored, table
from celery_dlx_retry.operations.diagnose import Diagnosis, diagnose


@click.command()
@queues_option
@management_option
@json_option
@click.pass_context
def doctor(
    ctx: click.Context, queue_names: tuple[str, ...] | None, management_url: str | None, *, as_json: bool
) -> None:
    """Find what loses, loops or blocks; nothing is changed. Exit code 1 unless all findings are information."""
    with app_of(ctx) as app, monitored("Examining") as monitor:
        found = diagnose(app, queues=queue_names or (), management_url=management_url, monitor=monitor)
    if as_json:
        for finding in found.findings:
            json_line(asdict(finding))
    elif found.findings:
        table(
            ("severity", "code", "fact", "consequence", "cure"),
            [(it.severity, it.code, it.fact, it.consequence, it.cure) for it in found.findings],
        )
    if not as_json:
        echo(_summary(found))
    if found.grave:
        ctx.exit(1)


def _summary(found: Diagnosis) -> str:
    count = Counter(finding.severity for finding in found.findings)
    grave = len(found.grave)
    bites = f"{counted(grave, 'finding')} that {'bites' if grave == 1 else 'bite'}" if grave else "Nothing that bites"
    return (
        f"{bites}: {counted(count['error'], 'error')}, {counted(count['warning'], 'warning')}; "
        f"{count['info']} for information."
    )
