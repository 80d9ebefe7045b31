import copy
import inspect
import pickle
import re
import string
from datetime import datetime, timedelta, timezone

import pytest

from celery_dlx_retry import errors
from celery_dlx_retry.errors import ConfigurationError, DeadLetter, DLXError, InvalidDelay, RetryIn, Unreachable
from celery_dlx_retry.operations import operation_errors


def classes(module):
    found = [each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, DLXError)]
    return [each for each in found if each.__module__ == module.__name__]


MODULES = [errors, operation_errors]
CLASSES = [each for module in MODULES for each in classes(module)]


def an_error(cls):
    """One with a fact for every name in its sentence."""
    if cls is DeadLetter:
        return DeadLetter("the customer is gone {for ever}")
    if cls is RetryIn:
        return RetryIn(37, "the gate is closed")
    names = [name for _, name, _, _ in string.Formatter().parse(cls.sentence) if name]
    return cls(**{name: f"a {name}" for name in names})


def through_pickle(error):
    return pickle.loads(pickle.dumps(error))  # noqa: S301


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("duplicate", [through_pickle, copy.copy])
def test_every_error_survives_the_way_between_processes(cls, duplicate):
    error = an_error(cls)

    arrived = duplicate(error)

    assert type(arrived) is cls
    assert arrived.facts == error.facts
    assert str(arrived) == str(error)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_fact_is_an_attribute_and_in_the_sentence(cls):
    error = an_error(cls)

    for name, fact in error.facts.items():
        assert getattr(error, name) == fact
        assert name == "seconds" or str(fact) in str(error)


def test_a_fact_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="colour"):
        _ = Unreachable(problem="timed out").colour


@pytest.mark.parametrize(
    "seconds", [None, True, -1, -0.5, float("nan"), float("inf"), timedelta(-1), "x", "5", datetime.now(timezone.utc)]
)
def test_retry_in_with_no_delay_is_an_error_where_it_is_written(seconds):
    with pytest.raises(InvalidDelay, match=re.escape(f"RetryIn.seconds is {seconds!r}; it must be a timedelta or a")):
        RetryIn(seconds)


@pytest.mark.parametrize("seconds", [0, 37, 0.25, 10**400, timedelta(hours=1)])
def test_retry_in_takes_seconds_and_timedeltas(seconds):
    assert RetryIn(seconds).seconds == seconds


def test_a_wrong_program_is_a_value_error_to_those_who_do_not_know_us():
    assert issubclass(ConfigurationError, ValueError)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_says_in_a_sentence_when_it_is_raised(cls):
    assert re.match(r"[-`A-Z]\S* .+", cls.__doc__), cls.__doc__
