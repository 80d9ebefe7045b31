"""The shop's tasks, which Django and Flask share."""

from celery import shared_task

from example_project.webshop import outside


@shared_task(bind=True, max_retries=8)
def charge(self, order):
    """The bank says 429, and after how many seconds it wants to be asked again."""
    try:
        outside.pay(order)
    except OSError as exc:
        asked = getattr(exc, "headers", {}).get("Retry-After")
        raise self.retry(exc=exc, countdown=int(asked or min(60, 2**self.request.retries))) from exc


@shared_task(autoretry_for=(OSError,), retry_backoff=1, retry_jitter=False, max_retries=5)
def send_receipt(order):
    """The mail server hangs up now and then."""
    outside.send_mail(order)


@shared_task(bind=True, max_retries=120)
def tell_partner(self, order):
    """Their webhook is down for minutes: ask after 1, 2, 4, … seconds, then each minute, for two hours."""
    try:
        outside.call_webhook(order)
    except OSError as exc:
        raise self.retry(exc=exc, countdown=min(60, 2**self.request.retries)) from exc


@shared_task
def draw_thumbnail(order, picture):
    """A picture that takes more memory than there is kills the process, or the whole worker."""
    outside.draw(order, picture)


@shared_task
def book(order, amount):
    """The customer typed an amount that is not a number, and a retry does not change that."""
    outside.book(order, int(amount))


def fulfil(order, *, amount, picture):
    """Send the tasks of an order."""
    charge.delay(order)
    send_receipt.delay(order)
    tell_partner.delay(order)
    draw_thumbnail.delay(order, picture)
    book.delay(order, amount)
