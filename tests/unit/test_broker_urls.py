"""No part of a password is shown, however wrong the URL is that holds it."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.connection import Connection

from celery_dlx_retry.broker.connection import shown
from celery_dlx_retry.errors import BadBrokerURL
from celery_dlx_retry.values.broker_urls import UNREADABLE, check_broker_urls, is_loopback, read_url, shown_url

# What people write: a scheme that is missing or wrong, a part that is missing, a good URL in front.
TEMPLATES = [
    "amqp://shop:{}@rabbit/vhost", "amqp://shop:{}@rabbit:5672//", "amqps://shop:{}@[::1]:5671/v", "pyamqp://:{}@rabbit",
    "shop:{}@rabbit", "amqp:/shop:{}@rabbit", "//shop:{}@rabbit", "amqp:shop:{}@rabbit", "amqp//shop:{}@rabbit",
    "amqp:///shop:{}@rabbit", " amqp://shop:{}@rabbit", "amqp://shop:{}@", "amqp+ssl://shop:{}@rabbit",
    "amqp://shop:{}@rabbit:port/v", "amqp://ok;amqp:/shop:{}@rabbit", "amqp://ok;shop:{}@rabbit",
    "amqp://ok;amqp://shop:{}@rabbit:x", "amqp://shop:12/{}@rabbit", "amqp://shop:12#{}@rabbit",
    "amqp://shop:12?{}@rabbit", "amqp://shop:12;{}@rabbit", "http://shop:{}@rabbit:15672", "redis://:{}@cache/0",
]  # fmt: skip
WELL = TEMPLATES[:4]
BROKERS = TEMPLATES[:-2]
# Letters that occur in no template, so that any part of the password is found; and all that hurts in a URL.
passwords = st.text(alphabet="XYZ0123456789/#?%@:;[]\\+&= \t\néß\u2028", min_size=1, max_size=20).filter(
    lambda it: any(char in "XYZ" for char in it)
)


def leaks(text: str) -> list[str]:
    """The letters of a password that are in a text; no URL of this module has them elsewhere."""
    return re.findall("[XYZ]", text)


@pytest.mark.parametrize("template", TEMPLATES)
@given(password=passwords)
def test_no_letter_of_a_password_is_shown(template, password):
    url = template.format(password)

    assert leaks(shown_url(url)) == []
    assert shown_url(url).isprintable()


@pytest.mark.parametrize("template", BROKERS)
@given(password=passwords)
def test_what_the_check_lets_through_can_be_connected_to_without_showing_the_password(template, password):
    url = template.format(password)

    if (problem := problem_of(url)) is not None:
        assert leaks(f"{problem!r} {problem.facts} {problem.__context__!r}") == []
        return
    connection = Connection(url)
    assert leaks(shown(connection) + connection.as_uri()) == []


def problem_of(url: str) -> BadBrokerURL | None:
    try:
        check_broker_urls(url)
    except BadBrokerURL as problem:
        return problem
    return None


@pytest.mark.parametrize("template", WELL)
@given(password=st.text(min_size=1, max_size=20).filter(lambda it: it.isprintable()))
def test_a_quoted_password_is_read(template, password):
    parts = read_url(template.format(quote(password, safe="")))

    assert parts is not None
    assert parts.password == quote(password, safe="")


@pytest.mark.parametrize(
    "url",
    [
        "amqp://rabbit//?heartbeat=5&login_method=PLAIN&connect_timeout=0.5",
        "amqp://", "amqp:///v", "localhost", "rabbit-1.example.com", "amqp://rabbit", "amqp://u:p%40w@rabbit/a%2Fb",
        "amqp://u:p@w@rabbit//", "amqp://u:p w\\@rabbit/a b", "amqp://rabbit//?heartbeat=5", "AMQP://u:p@bücher.example",
        "amqps://u:p@[fe80::1%25eth0]:5671/v", "amqp://a;amqp://b;", ["amqp://a", "amqp://b"], ("a", "b"), None, "",
        "redis://:p/w#@cache", "memory://", "sqs://", "filesystem://", "sqla+postgresql://u:p@h/db",
    ],
)  # fmt: skip
def test_what_kombu_can_use_is_let_through(url):
    check_broker_urls(url)


@pytest.mark.parametrize(
    ("url", "which"),
    [
        ("u:pw@h", "The broker's URL"),
        ("amqp://ok;amqp:/u:pw@h", "Broker URL 2 of 2"),
        (["amqp://ok", "amqp://u:p/w@h", "amqp://ok"], "Broker URL 2 of 3"),
        ("amqp://ok;redis://u:b:pw@h", "Broker URL 2 of 2"),
        (["http://u:pw@h", "ok"], "Broker URL 1 of 2"),
        ("amqp://ok;amqp://u:pw@h//?heartbeat=x", "Broker URL 2 of 2"),
        ("amqp://h//?connect_timeout=nan", "The broker's URL"),
        ("amqp://h//?login_method=x", "The broker's URL"),
    ],
)
def test_the_error_says_which_url_is_wrong(url, which):
    with pytest.raises(
        BadBrokerURL, match=f"^{which} cannot be read\\. Write amqp://USER:PASSWORD@HOST:PORT/VHOST\\. "
    ):
        check_broker_urls(url)


def test_a_readable_url_is_shown_without_credentials_and_query():
    assert shown_url("amqp://u:p@rabbit:5672/v?x=1") == "amqp://rabbit:5672/v"
    assert shown_url(["rabbit", "amqps://u:p@[::1]/v"]) == "rabbit; amqps://[::1]/v"
    assert shown_url(["rabbit", "amqps://u:p@[::1]/v", "u:p@h"]) == UNREADABLE


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "::1"])
def test_loopback_is_known(host):
    assert is_loopback(host)
    assert not is_loopback(f"{host}.example.com")
