"""A retry that changes nothing is the received message with new headers, as Celery would write it; else Celery does."""

from __future__ import annotations

import functools
import gc
import pickle
import weakref
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from types import MethodType
from uuid import uuid4

import pytest
from celery import Celery, Task, signals
from celery._state import _task_stack
from celery.app.amqp import AMQP
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.exceptions import Reject, Retry, SoftTimeLimitExceeded
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kombu.messaging import Producer
from kombu.serialization import dumps

from celery_dlx_retry import Budget, DLXRetryTask
from celery_dlx_retry.app.context import context_of
from celery_dlx_retry.policy.decision import Dead, Wait
from celery_dlx_retry.policy.reasons import Reason
from celery_dlx_retry.topology.names import WorkQueue
from celery_dlx_retry.wire.message import Message
from celery_dlx_retry.worker import celery_publish as sending
from celery_dlx_retry.worker.retry_message import copy_with
from celery_dlx_retry.worker.run_state import DeliveryInfo, RunState
from celery_dlx_retry.worker.run_state import Retry as RetryOutcome
from tests.unit.examples import many

PROPERTIES = {"correlation_id", "reply_to", "priority", "delivery_mode", "message_id", "expiration", "timestamp"}
LINK = {"task": "t.link", "args": [1], "kwargs": {}, "options": {}, "subtask_type": None, "immutable": False}


def new_app(cls=Celery, **conf):
    app = cls("writing", broker="amqp://127.0.0.1:1", set_as_current=False)
    app.conf.update(conf)
    return app


def new_task(app, **options):
    @app.task(name="t.task", base=options.pop("base", DLXRetryTask), bind=True, shared=False, **options)
    def task(self, *args, **kwargs):
        """Is never run."""

    app.finalize()
    return task


def request(*, args=(), kwargs=(), serializer="json", properties=(), **headers):
    """As a worker's pool process gets it."""
    args, kwargs = list(args), dict(kwargs)
    embed = {name: headers.pop(name, None) for name in ("callbacks", "errbacks", "chain", "chord")}
    headers = {
        **dict.fromkeys(("shadow", "eta", "expires", "group", "group_index", "parent_id", "stamped_headers")),
        "lang": "py",
        "task": "t.task",
        "id": "1",
        "root_id": "1",
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": "shown",
        "kwargsrepr": "too",
        "origin": "me",
        "ignore_result": False,
        "replaced_task_nesting": 0,
        "stamps": {},
        **headers,
    }
    properties = {"correlation_id": headers["id"], "reply_to": "me", "priority": None, **dict(properties)}
    content_type, content_encoding, body = dumps((args, kwargs, embed), serializer)
    message = Message(
        body=body,
        content_type=content_type,
        content_encoding=content_encoding,
        headers=headers,
        properties=properties,
    )
    info = DeliveryInfo(
        {"exchange": "", "routing_key": "celery", "priority": properties["priority"], "redelivered": False},
        queue=WorkQueue(name="celery"),
        message=message,
        worker="w",
        is_bound=True,
        forwards=True,
        is_watched=False,
    )
    facts = {**headers, **embed, "reply_to": properties["reply_to"], "correlation_id": headers["id"]}
    facts |= {"delivery_info": info, "hostname": "w", "args": args, "kwargs": kwargs}
    info.run = RunState(facts, args, kwargs)
    return Context(facts, called_directly=False)


@contextmanager
def running(task, its_request):
    _task_stack.push(task)
    task.request_stack.push(its_request)
    try:
        yield
    finally:
        task.request_stack.pop()
        _task_stack.pop()


def retried(task, its_request, **options):
    """The retry of this request: what would be published, or the type of the error; and whether Celery wrote it."""
    info = its_request.delivery_info
    try:
        with running(task, its_request):
            task.retry(countdown=1, **options)
    except Retry:
        retry = info.run.outcome
        assert isinstance(retry, RetryOutcome)
        if retry.message is None:
            return copy_with(context_of(task.app), info.message, retry.headers), False
        return retry.message, True
    except Exception as error:  # noqa: BLE001 - to be compared
        return (type(error), str(error)), True


@contextmanager
def listener(signal=signals.before_task_publish):
    """Somebody hears of it, and so Celery does it all."""
    heard = []

    def hear(**facts):
        heard.append(facts)

    signal.connect(hear, weak=False)
    try:
        yield heard
    finally:
        signal.disconnect(hear)


def on_the_wire(message):
    if not isinstance(message, Message):
        return message
    ours = {key for key in message.headers if key.startswith("dlx-")}
    body = message.body.encode() if isinstance(message.body, str) else message.body
    if "python" in message.content_type and "compression" not in message.headers:
        # Pickle writes equal values in several ways.
        args, kwargs, embed = pickle.loads(body)  # noqa: S301
        body = (list(args), kwargs, embed)
    return (
        body,
        message.content_type,
        message.content_encoding,
        # Of two retries, one is written a moment later.
        {key: value for key, value in message.headers.items() if key not in ours and key != "eta"},
        "eta" in message.headers,
        ours,
        {key: value for key, value in message.properties.items() if key in PROPERTIES and value is not None},
        message.compression,
    )


data = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
arguments = {"args": st.lists(data, max_size=2), "kwargs": st.dictionaries(st.sampled_from(["a", "b"]), data)}
links = st.none() | st.just([LINK])
texts = st.none() | st.text(max_size=4)
counts = st.none() | st.integers(0, 9)
limits = st.lists(st.none() | st.integers(1, 99), min_size=2, max_size=2)
stamped = st.sampled_from([None, [], ["s"], ["priority"], ["serializer"], ["exchange"], ["add_to_parent"]]).map(
    lambda names: {"stamped_headers": names, "stamps": {name: ["1"] for name in names or ()}}
)
# What Celery itself always writes. A foreign message without it comes back as it was.
written = st.text(min_size=1, max_size=4)
properties = st.fixed_dictionaries({"priority": counts, "reply_to": written}, optional={"expiration": st.just("9999")})
came = st.builds(
    lambda stamps, **facts: {**facts, **stamps},
    stamped,
    **arguments,
    callbacks=links,
    errbacks=links,
    chain=links,
    chord=st.none() | st.just(LINK),
    serializer=st.sampled_from(["json", "pickle", "yaml"]),
    shadow=st.none() | written,
    group=texts,
    group_index=counts,
    retries=st.integers(0, 9),
    root_id=texts,
    parent_id=texts,
    origin=written,
    argsrepr=written,
    kwargsrepr=written,
    timelimit=limits,
    ignore_result=st.booleans(),
    replaced_task_nesting=st.integers(0, 3),
    properties=properties,
) | st.builds(lambda **facts: facts, mine=texts, other=data, **{"x-death": st.just([{"count": 1}])})
asked = st.fixed_dictionaries(
    {},
    optional={
        **arguments,
        "priority": counts,
        "link": links,
        "time_limit": st.none() | st.integers(1, 99),
        "headers": st.dictionaries(st.sampled_from(["mine", "yours"]), data),
        "shadow": texts,
        "expires": st.sampled_from([None, "2099-01-01T00:00:00+00:00"]),
        "compression": st.sampled_from([None, "gzip"]),
        "serializer": st.sampled_from(["json", "yaml", "none of these"]),
        "message_id": texts,
        "task_id": st.just("2"),
        "ignore_result": st.booleans(),
        "delivery_mode": st.sampled_from([1, 2]),
        "queue": st.just("celery"),
    },
)
TASK = new_task(new_app(accept_content=["json", "pickle", "yaml"]), max_retries=None)


@settings(max_examples=many(500))
@given(came, asked)
@example({}, {})
@example({}, {"args": [object()]})
def test_a_retry_is_the_message_that_celery_would_write(came, asked):
    message, _ = retried(TASK, request(**came), **asked)
    with listener() as heard:
        celerys, is_celerys = retried(TASK, request(**came), **asked)

    assert on_the_wire(message) == on_the_wire(celerys)
    assert is_celerys
    assert heard or not isinstance(celerys, Message)


@pytest.mark.parametrize(
    "came",
    [
        {},
        {"args": [1, {"a": [2]}], "kwargs": {"x": "y"}, "chain": [LINK], "callbacks": [LINK], "group": "g"},
        {"stamped_headers": ["s"], "stamps": {"s": ["1"]}},
        {"x-death": [{"count": 3}], "mine": "too", "retries": 7},
        {"properties": {"priority": 5}, "timelimit": [60, 50]},
    ],
)
def test_celery_is_not_asked_for_what_needs_no_asking(came):
    message, is_celerys = retried(TASK, request(**came))

    assert isinstance(message, Message)
    assert not is_celerys


class Proxy:
    """As like what is within it as can be, as wrapt's are."""

    def __init__(self, within, call):
        self.within, self.call = within, call

    def __getattr__(self, name):
        return getattr(self.within, name)

    def __get__(self, it, owner=None):
        return self if it is None else Proxy(MethodType(self.within, it), partial(self.call, it))

    def __call__(self, *args, **kwargs):
        return self.call(*args, **kwargs)


def interlope(monkeypatch, owner, name, *, wrap=None):
    """Stand in the place of a function; returns a list that gets longer at each call."""
    calls = []
    within = getattr(owner, name)

    def call(*args, **kwargs):
        calls.append(name)
        return within(*args, **kwargs)

    monkeypatch.setattr(owner, name, Proxy(within, call) if wrap is Proxy else functools.wraps(within)(call))
    return calls


@pytest.mark.parametrize("wrap", [functools.wraps, Proxy], ids=lambda it: it.__name__)
@pytest.mark.parametrize(
    ("owner", "name"),
    [(Task, "apply_async"), (Celery, "send_task"), (Producer, "publish"), (AMQP, "as_task_v2"), (Task, "shadow_name")],
    ids=lambda it: getattr(it, "__name__", it),
)
def test_who_wraps_a_function_of_celery_is_called(owner, name, wrap, monkeypatch):
    calls = interlope(monkeypatch, owner, name, wrap=wrap)

    message, is_celerys = retried(new_task(new_app()), request())

    assert isinstance(message, Message)
    assert is_celerys
    assert calls == [name]


@pytest.mark.parametrize("of", ["app", "task", "amqp"])
def test_who_wraps_a_method_of_one_object_is_called(of, monkeypatch):
    task = new_task(new_app())
    owner, name = {
        "app": (task.app, "send_task"),
        "task": (task, "shadow_name"),
        "amqp": (task.app.amqp, "send_task_message"),
    }[of]
    calls = interlope(monkeypatch, owner, name)

    message, _ = retried(task, request())

    assert isinstance(message, Message)
    assert calls == [name]


@pytest.mark.parametrize("signal", ["before_task_publish", "after_task_publish", "task_sent"])
def test_who_listens_to_a_publish_hears_of_it(signal):
    with listener(getattr(signals, signal)) as heard:
        retried(new_task(new_app()), request())

    assert len(heard) == 1


def test_an_app_that_sends_tasks_in_its_own_way_does():
    sent = []

    class Mine(Celery):
        def send_task(self, *args, **kwargs):
            sent.append(args[0])
            return super().send_task(*args, headers={**kwargs.pop("headers"), "tenant": "acme"}, **kwargs)

    message, _ = retried(new_task(new_app(Mine)), request())

    assert sent == ["t.task"]
    assert message.headers["tenant"] == "acme"


def test_a_base_class_below_ours_is_asked():
    class Traced(Task):
        abstract = True

        def apply_async(self, *args, **kwargs):
            return super().apply_async(*args, **{**kwargs, "headers": {**kwargs["headers"], "trace": "7"}})

    class Base(DLXRetryTask, Traced):
        abstract = True

    message, _ = retried(new_task(new_app(), base=Base), request())

    assert message.headers["trace"] == "7"


@pytest.mark.parametrize("before", ["publishes", "publishes and fails"])
def test_a_base_class_below_ours_that_publishes_nothing_does_not_publish_what_came_before(before):
    class Odd(Task):
        abstract = True
        does = before

        def apply_async(self, *args, **kwargs):
            result = super().apply_async(*args, **kwargs) if self.does != "nothing" else None
            if self.does == "publishes and fails":
                raise KeyError(self.does)
            return result

    class Base(DLXRetryTask, Odd):
        abstract = True

    task = new_task(new_app(), base=Base)
    retried(task, request(id="1", root_id="1"))
    task.does = "nothing"
    refused, _ = retried(task, request(id="2", root_id="2"))

    assert isinstance(refused, tuple), f"the message of task {refused.headers['id']} instead of 2"
    assert refused[0] is Reject
    assert "was not published" in refused[1]


def test_an_app_that_sends_more_than_the_retry_with_its_producer_does_not_have_the_other_message_taken_for_it():
    class Audited(Celery):
        def send_task(self, *args, **kwargs):
            result = super().send_task(*args, **kwargs)
            super().send_task("audit", (args[0],), producer=kwargs["producer"], exchange="", routing_key="audit")
            return result

    (error, text), _ = retried(new_task(new_app(Audited)), request())

    assert error is Reject
    assert "published other messages" in text


@pytest.mark.parametrize("none", [None, ""])
def test_a_retry_that_wants_no_id_gets_a_new_one_as_from_celery(none):
    message, _ = retried(TASK, request(), task_id=none)

    assert len(message.headers["id"]) == len(str(uuid4()))


def test_who_overrides_apply_async_gets_the_result_that_celery_would_give():
    results = []

    class Base(DLXRetryTask):
        abstract = True

        def apply_async(self, *args, **kwargs):
            results.append(super().apply_async(*args, **kwargs))
            return results[-1]

    task = new_task(new_app(), base=Base, ignore_result=True)
    retried(task, request(ignore_result=True))
    with listener():
        retried(task, request(ignore_result=True))

    ours, celerys = ((type(it), it.id, it.ignored, it.backend) for it in results)
    assert ours == celerys


@pytest.mark.parametrize("is_ignored", [True, False])
def test_a_backend_is_told_of_a_call_whose_result_is_wanted(is_ignored, monkeypatch):
    task, told = new_task(new_app()), []
    monkeypatch.setattr(task.app.backend, "on_task_call", lambda _producer, task_id: told.append(task_id))

    _, is_celerys = retried(task, request(ignore_result=is_ignored))

    assert not is_celerys
    assert told == ([] if is_ignored else ["1"])


def test_a_message_of_another_program_comes_back_as_it_was():
    its_request = request(properties={"reply_to": None, "app_id": "billing", "message_id": "m1"}, lang="java")
    info = its_request.delivery_info
    few = {name: info.message.headers[name] for name in ("lang", "task", "id")}
    info.message = replace(info.message, headers={**few, "tenant": "acme"})
    facts = {**few, "tenant": "acme", "delivery_info": info, "args": [], "kwargs": {}, "hostname": "w"}
    info.run = RunState(facts, [], {})

    message, is_celerys = retried(TASK, Context(facts, called_directly=False))

    assert not is_celerys
    assert {name: value for name, value in message.headers.items() if not name.startswith("dlx-")} == {
        **few,
        "tenant": "acme",
        "retries": 1,
        "eta": message.headers["eta"],
    }
    assert {"app_id": "billing", "message_id": "m1"}.items() <= message.properties.items()
    assert message.body == info.message.body


@pytest.mark.parametrize("container", ["args", "kwargs", "chain", "callbacks"])
def test_a_container_that_the_body_changed_in_place_is_not_copied(container):
    came = {"args": [["a"]], "kwargs": {"x": {"y": 1}}, "chain": [LINK], "callbacks": [LINK]}
    its_request = request(**came)
    before, _ = retried(TASK, its_request)
    its_request = request(**came)
    changed = {
        "args": lambda: its_request.args[0].append("b"),
        "kwargs": lambda: its_request.kwargs["x"].update(y=2),
        "chain": lambda: its_request.chain.append(LINK),
        "callbacks": lambda: its_request.callbacks.append(LINK),
    }
    changed[container]()

    message, is_celerys = retried(TASK, its_request)

    assert is_celerys
    assert message.body != before.body


@pytest.mark.parametrize("change", ["added", "removed", "replaced"])
def test_a_header_of_the_sender_that_the_body_changed_is_in_the_retry(change):
    its_request = request(tenant="acme", other="stays")
    if change == "removed":
        del its_request.headers["tenant"]
    else:
        its_request.headers["tenant" if change == "replaced" else "new"] = "changed"

    message, _ = retried(TASK, its_request)

    found = {name: message.headers[name] for name in ("tenant", "other", "new") if name in message.headers}
    assert (
        found
        == {
            "added": {"tenant": "acme", "other": "stays", "new": "changed"},
            "removed": {"other": "stays"},
            "replaced": {"tenant": "changed", "other": "stays"},
        }[change]
    )


def test_arguments_that_the_body_replaced_are_in_the_retry():
    its_request = request(args=[1], kwargs={"a": 2})
    its_request.kwargs["a"] = 3
    its_request.args = (4,)

    message, is_celerys = retried(TASK, its_request)

    assert is_celerys
    assert message.body.startswith('[[4], {"a": 3}')


def test_a_later_retry_replaces_an_earlier_one_that_is_not_published_yet():
    its_request = request(args=[1])
    _, was_celerys = retried(TASK, its_request, args=[2])

    message, is_celerys = retried(TASK, its_request)

    assert was_celerys
    assert not is_celerys
    assert message.body.startswith("[[1]")


def test_a_message_of_an_unknown_type_is_written_as_the_app_writes():
    its_request = request()
    info = its_request.delivery_info
    info.message = replace(info.message, content_type="application/x-unknown")

    message, _ = retried(new_task(new_app(task_serializer="yaml")), its_request)

    assert message.content_type == "application/x-yaml"


@pytest.mark.parametrize(("soft", "is_refused"), [(60, True), (40, False)])
def test_a_soft_time_limit_that_can_never_be_reached_is_refused_as_celery_does(soft, is_refused):
    task = new_task(new_app(), soft_time_limit=soft, time_limit=50)

    message, _ = retried(task, request())

    assert isinstance(message, tuple) == is_refused
    assert not is_refused or message[0] is ValueError


def test_arguments_that_celery_makes_data_of_are_left_to_celery():
    dump = staticmethod(lambda _args, kwargs: (["data"], kwargs))
    task = new_task(new_app(), _dump_pydantic_arguments=dump)

    message, is_celerys = retried(task, request())
    with listener():
        celerys, _ = retried(task, request())

    assert is_celerys
    assert message.body == celerys.body


def test_an_app_that_runs_all_tasks_at_once_publishes_no_retry():
    (error, text), _ = retried(new_task(new_app(task_always_eager=True)), request())

    assert error is Reject
    assert "was not published" in text


def test_a_task_that_changes_its_request_is_retried_with_what_it_has_changed():
    its_request = request(args=[{"seen": []}], mine="first")
    its_request.args[0]["seen"].append(1)
    its_request.headers["mine"] = "second"
    its_request.update(shadow="other")

    message, is_celerys = retried(TASK, its_request)

    assert is_celerys
    assert message.body.startswith('[[{"seen": [1]}]')
    assert (message.headers["mine"], message.headers["shadow"]) == ("second", "other")


@pytest.mark.parametrize(
    "conf", [{"task_protocol": 1}, {"task_compression": "gzip"}, {"task_send_sent_event": True}], ids=str
)
def test_a_setting_that_changes_messages_does(conf, monkeypatch):
    told = []
    monkeypatch.setattr(sending._Teller, "publish", lambda _self, kind, *_, **__: told.append(kind))
    task = new_task(new_app(**conf))

    message, is_celerys = retried(task, request())

    assert is_celerys
    assert told == (["task-sent"] if "task_send_sent_event" in conf else [])
    assert ("task" in message.headers) == ("task_protocol" not in conf)
    assert ("compression" in message.headers) == ("task_compression" in conf)


def test_wrong_arguments_are_refused_as_celery_does():
    app = new_app()

    @app.task(name="t.strict", base=DLXRetryTask, bind=True, shared=False)
    def strict(self, one):
        """Is never run."""

    app.finalize()

    refused, _ = retried(strict, request(args=[1]), args=[1, 2])
    with listener():
        by_celery, _ = retried(strict, request(args=[1]), args=[1, 2])

    assert refused == by_celery
    assert refused[0] is TypeError


def test_a_soft_time_limit_whose_retry_the_budget_refuses_is_not_given_back():
    task = new_task(new_app(), budget=Budget(per_minute=1, reserve=1), max_retries=None)
    paid, _ = retried(task, request(), exc=SoftTimeLimitExceeded())

    its_request = request()
    refused, _ = retried(task, its_request, exc=SoftTimeLimitExceeded())

    assert isinstance(paid, Message)
    assert refused[0] is SoftTimeLimitExceeded
    assert its_request.delivery_info.run.decision == Dead(Reason.BUDGET)
    assert its_request.delivery_info.run.outcome is None


def test_headers_that_fill_a_frame_are_left_to_celery():
    message, is_celerys = retried(TASK, request(mine="x" * 130_660))

    assert is_celerys
    assert isinstance(message, Message)


def test_a_priority_that_the_body_set_is_the_one_of_the_retry():
    its_request = request(properties={"priority": 1})
    its_request.delivery_info["priority"] = 7

    message, _ = retried(TASK, its_request)

    assert message.properties["priority"] == 7


def test_a_class_that_overrides_retry_chooses_the_delay_of_a_policy_too():
    class Sooner(DLXRetryTask):
        abstract = True

        def retry(self, *args, countdown=None, **options):
            return super().retry(*args, countdown=min(countdown, 1), **options)

    task, its_request = new_task(new_app(), base=Sooner, policy=20), request()
    run = its_request.delivery_info.run
    run.granted = Wait(20_000)

    with running(task, its_request), pytest.raises(Retry):
        task.retry(countdown=20, max_retries=1)  # as the guard does

    assert run.outcome.delay_ms == 1000


def test_a_run_that_is_over_leaves_nothing_for_the_garbage_collector():
    task = new_task(new_app())
    task.__trace__ = build_tracer(task.name, task, app=task.app)
    facts = dict(vars(request()))
    message = weakref.ref(facts["delivery_info"].message)

    gc.disable()
    try:
        task.__trace__("1", [], {}, facts)
        del facts
        assert message() is None
    finally:
        gc.enable()


def test_a_retry_that_a_wrapper_around_the_guard_swallows_is_published_all_the_same():
    app = new_app()

    @app.task(name="t.task", base=DLXRetryTask, bind=True, shared=False)
    def task(self):
        self.retry(countdown=1)

    app.finalize()
    call = type(app.tasks["t.task"]).__call__

    def swallow(self, *args, **kwargs):
        with suppress(Retry):
            call(self, *args, **kwargs)

    type(app.tasks["t.task"]).__call__ = swallow
    task.__trace__ = build_tracer(task.name, task, app=app)

    result = task.__trace__("1", [], {}, dict(vars(request())))

    assert result.retval.dlx_outcome.headers["retries"] == 1
