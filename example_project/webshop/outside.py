"""The outside world as tasks see it: a bank and a partner over HTTP, a mail server, a picture."""

import os
import signal
import smtplib
import time
import urllib.request

WORLD = os.environ.get("SHOP_WORLD", "127.0.0.1:8025")  # the mail server is on the next port
TIMEOUT_SECONDS = 5


def pay(order):
    post("payments", order)


def call_webhook(order):
    post("webhook", order)


def book(order, amount):
    post("books", f"{order} {amount}")


def post(path, text):
    """Raise HTTPError, an OSError with the answer's headers, unless it is 2xx."""
    with urllib.request.urlopen(f"http://{WORLD}/{path}", text.encode(), timeout=TIMEOUT_SECONDS):
        pass


def send_mail(order):
    host, port = WORLD.split(":")
    with smtplib.SMTP(host, int(port) + 1, timeout=TIMEOUT_SECONDS) as server:
        server.sendmail("shop@example.com", ["you@example.com"], f"Subject: {order}\n\nThank you.")


def draw(order, picture):
    if picture == "100-gigapixels.png":
        os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out
    if picture == "1000-gigapixels.png":
        time.sleep(1)  # noqa: TID251 - until the memory is full, and all processes of the container are killed:
        os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
    post("thumbnails", order)
