import sys
from dataclasses import fields
from datetime import timedelta
from types import ModuleType, SimpleNamespace

import pytest
from celery import Celery
from django.conf import Settings as DjangoSettings
from support import shown

from celery_dlx_retry import dlx_queue
from celery_dlx_retry.app.configuration import configured
from celery_dlx_retry.app.context import AppContext, context_of
from celery_dlx_retry.errors import ConfigurationError, InvalidSetting, UnknownSetting
from celery_dlx_retry.policy.budget import Budget
from celery_dlx_retry.settings import Settings

DEFAULTS = {
    "prefix": "dlx",
    "queue_type": "quorum",
    "dead_letter_queue": "{queue}.dead",
    "grid": 1.2,
    "bulkheads": None,
    "max_delay_ms": 31_536_000_000,
    "lane_expires_ms": 0,
    "countdown": True,
    "ladder_resolution_ms": 100,
    "ladder_range_ms": 31_536_000_000,
    "declare": True,
    "confirm_timeout_ms": 10_000,
    "crash_limit": 3,
    "budget": None,
    "max_waiting": None,
    "require_rabbitmq": False,
    "doctor_accept": (),
}


def as_dict(settings):
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def test_these_are_all_settings_and_their_defaults():
    assert as_dict(Settings()) == DEFAULTS
    assert Settings.read({}) == Settings()


@pytest.mark.parametrize(
    ("setting", "value", "attribute", "meaning"),
    [
        ("dlx_prefix", "shop.eu:1_a-b", "prefix", "shop.eu:1_a-b"),
        ("dlx_prefix", "p" * 100, "prefix", "p" * 100),
        ("dlx_queue_type", "classic", "queue_type", "classic"),
        ("dlx_dead_letter_queue", "dead", "dead_letter_queue", "dead"),
        ("dlx_dead_letter_queue", "dead-{queue}-{queue}", "dead_letter_queue", "dead-{queue}-{queue}"),
        ("dlx_grid", 1.01, "grid", 1.01),
        ("dlx_grid", 2, "grid", 2),
        ("dlx_max_delay", 3_600, "max_delay_ms", 3_600_000),
        ("dlx_max_delay", timedelta(days=3_650), "max_delay_ms", 315_360_000_000),
        ("dlx_lane_expires", 140, "lane_expires_ms", 140_000),
        ("dlx_lane_expires", timedelta(days=365), "lane_expires_ms", 31_536_000_000),
        ("dlx_countdown", False, "countdown", False),
        ("dlx_ladder_resolution", 0.01, "ladder_resolution_ms", 10),
        ("dlx_ladder_resolution", 60, "ladder_resolution_ms", 60_000),
        ("dlx_ladder_range", 0.1, "ladder_range_ms", 100),
        ("dlx_ladder_range", timedelta(days=3_650), "ladder_range_ms", 315_360_000_000),
        ("dlx_declare", False, "declare", False),
        ("dlx_confirm_timeout", 0.25, "confirm_timeout_ms", 250),
        ("dlx_confirm_timeout", timedelta(seconds=5), "confirm_timeout_ms", 5_000),
        ("dlx_confirm_timeout", 0.0001, "confirm_timeout_ms", 1),
        ("dlx_crash_limit", 1, "crash_limit", 1),
        ("dlx_budget", Budget(per_minute=60), "budget", Budget(per_minute=60)),
        ("dlx_budget", 0.2, "budget", Budget(0.2)),
        ("dlx_bulkheads", 8, "bulkheads", 8),
        ("dlx_max_waiting", 1, "max_waiting", 1),
        ("dlx_max_waiting", 999_999_999, "max_waiting", 999_999_999),
        ("dlx_require_rabbitmq", True, "require_rabbitmq", True),
        ("dlx_doctor_accept", ["orphans", "no-consumer:orders"], "doctor_accept", ("orphans", "no-consumer:orders")),
    ],
)
def test_a_setting_changes_its_attribute_and_no_other(setting, value, attribute, meaning):
    assert as_dict(Settings.read({setting: value})) == {**DEFAULTS, attribute: meaning}


PREFIX = "1 to 100 letters, digits, dots, dashes, colons or _, and must not start with RabbitMQ's 'amq.'"
TYPE = '"classic" or "quorum"'
PATTERN = (
    "1 to 200 bytes of printable text that does not start with 'amq.', and more than {queue}, which is replaced by the "
    "name of the work queue"
)
GRID = "a number from 1.01 to 2"
CODES = 'a list of codes, such as ["shared-prefix", "no-consumer:orders"]'
BUDGET = "a Budget, a share (a number above 0), or None"
MOST = "a whole number from 1 to 999999999, or None"
COUNT = "a whole number from 1 on"
BOOLEAN = "True or False"
EXPIRES = "0, or from 140000 to 31536000000 ms"
RESOLUTION = "from 10 to 60000 ms"
RANGE = "from dlx_ladder_resolution to 315360000000 ms, which is ten years"
LENGTH = "from 1 to 315360000000 ms, which is ten years and RabbitMQ's longest TTL"
SECONDS = "a timedelta or a number of seconds, finite and not negative"


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [
        ("dlx_prefix", "", PREFIX),
        ("dlx_prefix", "p" * 101, PREFIX),
        ("dlx_prefix", "a b", PREFIX),
        ("dlx_prefix", "shop\n", PREFIX),
        ("dlx_prefix", "größe", PREFIX),
        ("dlx_prefix", "amq.shop", PREFIX),
        ("dlx_prefix", None, PREFIX),
        ("dlx_prefix", b"dlx", PREFIX),
        ("dlx_queue_type", "stream", TYPE),
        ("dlx_queue_type", "Quorum", TYPE),
        ("dlx_queue_type", None, TYPE),
        ("dlx_queue_type", ["quorum"], TYPE),
        ("dlx_dead_letter_queue", "", PATTERN),
        ("dlx_dead_letter_queue", "{queue}", PATTERN),
        ("dlx_dead_letter_queue", "{name}.dead", PATTERN),
        ("dlx_dead_letter_queue", "{queue.dead", PATTERN),
        ("dlx_dead_letter_queue", "{queue!r}", PATTERN),
        ("dlx_dead_letter_queue", "d" * 201, PATTERN),
        ("dlx_dead_letter_queue", None, PATTERN),
        ("dlx_grid", 1, GRID),
        ("dlx_grid", 1.009, GRID),
        ("dlx_grid", 2.1, GRID),
        ("dlx_grid", True, GRID),
        ("dlx_grid", "1.1", GRID),
        ("dlx_grid", float("nan"), GRID),
        ("dlx_grid", float("inf"), GRID),
        ("dlx_crash_limit", 0, COUNT),
        ("dlx_crash_limit", 1.5, COUNT),
        ("dlx_crash_limit", True, COUNT),
        ("dlx_crash_limit", None, COUNT),
        ("dlx_budget", 0, BUDGET),
        ("dlx_budget", "0.2", BUDGET),
        ("dlx_budget", {"share": 0.2}, BUDGET),
        ("dlx_bulkheads", 0, "a whole number from 1 to 999, or None"),
        ("dlx_bulkheads", 1_000, "a whole number from 1 to 999, or None"),
        ("dlx_bulkheads", "8", "a whole number from 1 to 999, or None"),
        ("dlx_max_waiting", 0, MOST),
        ("dlx_max_waiting", 1_000_000_000, MOST),
        ("dlx_max_waiting", 1.5, MOST),
        ("dlx_max_waiting", True, MOST),
        ("dlx_declare", "no", BOOLEAN),
        ("dlx_declare", 0, BOOLEAN),
        ("dlx_declare", None, BOOLEAN),
        ("dlx_require_rabbitmq", 1, BOOLEAN),
        ("dlx_doctor_accept", "orphans", CODES),
        ("dlx_doctor_accept", [1], CODES),
        ("dlx_lane_expires", 1, EXPIRES),
        ("dlx_lane_expires", 139.999, EXPIRES),
        ("dlx_lane_expires", timedelta(days=366), EXPIRES),
        ("dlx_lane_expires", None, SECONDS),
        ("dlx_countdown", None, BOOLEAN),
        ("dlx_ladder_resolution", 0, RESOLUTION),
        ("dlx_ladder_resolution", 0.009, RESOLUTION),
        ("dlx_ladder_resolution", 61, RESOLUTION),
        ("dlx_ladder_resolution", "fine", SECONDS),
        ("dlx_ladder_range", 0.099, RANGE),
        ("dlx_ladder_range", 315_360_000.001, RANGE),
        ("dlx_ladder_range", None, SECONDS),
        ("dlx_max_delay", 0, LENGTH),
        ("dlx_max_delay", timedelta(0), LENGTH),
        ("dlx_max_delay", 315_360_000.001, LENGTH),
        ("dlx_max_delay", -1, SECONDS),
        ("dlx_max_delay", "1h", SECONDS),
        ("dlx_max_delay", None, SECONDS),
        ("dlx_max_delay", float("inf"), SECONDS),
        ("dlx_confirm_timeout", 0, LENGTH),
        ("dlx_confirm_timeout", True, SECONDS),
        ("dlx_confirm_timeout", timedelta(seconds=-1), SECONDS),
    ],
    ids=shown,
)
def test_a_bad_value_fails_with_what_is_and_what_should_be(setting, value, wanted):
    with pytest.raises(InvalidSetting) as caught:
        Settings.read({setting: value})

    assert caught.value.setting == setting
    assert caught.value.wanted == wanted
    assert str(caught.value).startswith(f"{setting} is ")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"dlx_prefix": "a b"},
            (
                "dlx_prefix is 'a b'; it must be 1 to 100 letters, digits, dots, dashes, colons or _, "
                "and must not start with RabbitMQ's 'amq.'."
            ),
        ),
        ({"dlx_queue_type": "stream"}, 'dlx_queue_type is \'stream\'; it must be "classic" or "quorum".'),
        (
            {"dlx_dead_letter_queue": "{queue}"},
            (
                "dlx_dead_letter_queue is '{queue}'; it must be 1 to 200 bytes of printable text that does not start "
                "with 'amq.', and more than {queue}, which is replaced by the name of the work queue."
            ),
        ),
        ({"dlx_grid": 3}, "dlx_grid is 3; it must be a number from 1.01 to 2."),
        ({"dlx_declare": "no"}, "dlx_declare is 'no'; it must be True or False."),
        ({"dlx_crash_limit": 0}, "dlx_crash_limit is 0; it must be a whole number from 1 on."),
        (
            {"dlx_confirm_timeout": "5"},
            "dlx_confirm_timeout is '5'; it must be a timedelta or a number of seconds, finite and not negative.",
        ),
        (
            {"dlx_max_delay": timedelta(days=3_650, microseconds=1)},
            (
                "dlx_max_delay is 315360000001; it must be from 1 to 315360000000 ms, "
                "which is ten years and RabbitMQ's longest TTL."
            ),
        ),
    ],
)
def test_the_sentence_of_a_bad_value(values, sentence):
    with pytest.raises(InvalidSetting) as caught:
        Settings.read(values)

    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("dlx_prefx", "There is no setting 'dlx_prefx'. Did you mean 'dlx_prefix'?"),
        ("dlx_max_delay_ms", "There is no setting 'dlx_max_delay_ms'. Did you mean 'dlx_max_delay'?"),
        ("dlx_confirm_timout", "There is no setting 'dlx_confirm_timout'. Did you mean 'dlx_confirm_timeout'?"),
        (
            "dlx_zzz",
            (
                "There is no setting 'dlx_zzz'. The settings are dlx_budget, dlx_bulkheads, dlx_confirm_timeout, "
                "dlx_countdown, dlx_crash_limit, dlx_dead_letter_queue, dlx_declare, dlx_doctor_accept, dlx_grid, "
                "dlx_ladder_range, dlx_ladder_resolution, dlx_lane_expires, dlx_max_delay, dlx_max_waiting, "
                "dlx_prefix, dlx_queue_type, dlx_require_rabbitmq."
            ),
        ),
    ],
)
def test_a_setting_that_does_not_exist_is_refused_with_a_suggestion(setting, sentence):
    with pytest.raises(UnknownSetting) as caught:
        Settings.read({setting: 1})

    assert str(caught.value) == sentence
    assert isinstance(caught.value, ConfigurationError)


def test_flags_overrule_what_is_configured_and_leave_the_rest():
    configured = Settings.read({"dlx_prefix": "shop", "dlx_confirm_timeout": 5})

    changed = configured.changed({"dlx_confirm_timeout": 1, "dlx_declare": False})

    assert changed == Settings(prefix="shop", confirm_timeout_ms=1_000, declare=False)
    assert configured == Settings(prefix="shop", confirm_timeout_ms=5_000)
    assert configured.changed({}) == configured


def test_flags_are_checked_as_settings_are():
    with pytest.raises(InvalidSetting, match=r"^dlx_queue_type is 'stream'"):
        Settings().changed({"dlx_queue_type": "stream"})
    with pytest.raises(UnknownSetting, match="Did you mean 'dlx_declare'"):
        Settings().changed({"dlx_declared": True})


# --- from an app's configuration ---


@pytest.fixture
def app():
    with Celery("test", broker="memory://", set_as_current=False) as app:
        yield app


def test_an_app_that_says_nothing_has_the_defaults(app):
    assert AppContext(app).settings == Settings()


def test_lower_case_keys_are_read_from_the_configuration(app):
    app.conf.update(dlx_prefix="shop", dlx_max_delay=60, task_default_queue="orders")

    assert configured(app) == {"dlx_prefix": "shop", "dlx_max_delay": 60}
    assert AppContext(app).settings == Settings(prefix="shop", max_delay_ms=60_000)


@pytest.mark.parametrize(
    ("key", "value", "namespace"),
    [
        ("dlx_budget", Budget, ""),
        ("dlx_prefix", str, ""),
        ("dlx_declare", lambda: True, ""),
        ("CELERY_DLX_BUDGET", Budget, "CELERY"),
        ("dlx_countdown", print, "CELERY"),
    ],
)
def test_a_class_or_a_function_is_no_value_of_a_setting(app, key, value, namespace):
    app.config_from_object(SimpleNamespace(**{key: value}), namespace=namespace or None)

    with pytest.raises(InvalidSetting, match=r"^dlx_\w+ is <"):
        _ = AppContext(app).settings


def test_a_function_with_another_name_is_no_setting(app):
    app.config_from_object(SimpleNamespace(dlx_queue=dlx_queue, dlx_helper=print, dlx_prefix="shop"))

    assert AppContext(app).settings == Settings(prefix="shop")


def test_lower_case_keys_are_read_from_an_object(app):
    app.config_from_object(SimpleNamespace(dlx_prefix="shop"))

    assert AppContext(app).settings == Settings(prefix="shop")


def test_upper_case_keys_are_read_under_djangos_namespace(app):
    django = SimpleNamespace(
        CELERY_DLX_PREFIX="shop", CELERY_DLX_CONFIRM_TIMEOUT=timedelta(seconds=2), CELERY_TASK_DEFAULT_QUEUE="orders"
    )
    app.config_from_object(django, namespace="CELERY")

    assert configured(app) == {"dlx_prefix": "shop", "dlx_confirm_timeout": timedelta(seconds=2)}
    assert AppContext(app).settings == Settings(prefix="shop", confirm_timeout_ms=2_000)
    assert app.conf.task_default_queue == "orders"


def test_another_namespace_works_as_well(app):
    app.config_from_object(SimpleNamespace(SHOP_DLX_PREFIX="shop", CELERY_DLX_PREFIX="other"), namespace="SHOP")

    assert AppContext(app).settings == Settings(prefix="shop")


def test_lower_case_keys_still_work_beside_a_namespace(app):
    app.config_from_object(SimpleNamespace(CELERY_DLX_PREFIX="shop"), namespace="CELERY")
    app.conf.dlx_declare = False

    assert AppContext(app).settings == Settings(prefix="shop", declare=False)


def test_a_misspelt_key_fails_the_start(app):
    app.conf.dlx_prefx = "shop"

    with pytest.raises(UnknownSetting, match=r"^There is no setting 'dlx_prefx'\. Did you mean 'dlx_prefix'\?$"):
        _ = AppContext(app).settings


def test_a_misspelt_key_under_a_namespace_fails_the_start(app):
    app.config_from_object(SimpleNamespace(CELERY_DLX_PREFX="shop"), namespace="CELERY")

    with pytest.raises(UnknownSetting) as caught:
        _ = AppContext(app).settings

    assert str(caught.value) == "There is no setting 'CELERY_DLX_PREFX'. Did you mean 'CELERY_DLX_PREFIX'?"


@pytest.mark.parametrize(
    ("namespace", "written", "right"),
    [
        ("CELERY", "DLX_PREFIX", "CELERY_DLX_PREFIX"),
        ("CELERY_", "DLX_GRID", "CELERY_DLX_GRID"),
        ("", "DLX_PREFIX", "dlx_prefix"),
        ("", "CELERY_DLX_PREFIX", "dlx_prefix"),
    ],
)
def test_a_key_that_celery_would_overlook_fails_the_start_and_is_named_as_it_was_written(
    app, namespace, written, right
):
    app.config_from_object(SimpleNamespace(**{written: "shop"}), namespace=namespace or None)

    with pytest.raises(UnknownSetting) as caught:
        _ = AppContext(app).settings

    assert str(caught.value) == f"There is no setting {written!r}. Did you mean {right!r}?"


@pytest.mark.parametrize("namespace", ["CELERY", None])
@pytest.mark.parametrize("name", ["DLX_QUEUE", "DLX_EXCHANGE", "DLX_DELAY", "DLX_URL", "SHOP_DLX_PREFIX"])
def test_what_is_only_like_one_of_ours_may_be_somebody_elses(app, name, namespace):
    app.config_from_object(SimpleNamespace(**{name: "x"}), namespace=namespace)

    assert AppContext(app).settings == Settings()


def test_a_configuration_may_import_our_own_function(app):
    app.config_from_object(SimpleNamespace(dlx_queue=dlx_queue, dlx_prefix="shop"))

    assert AppContext(app).settings == Settings(prefix="shop")


def test_what_a_setting_was_computed_from_may_stand_beside_it(app, monkeypatch):
    module = ModuleType("shop_settings")
    vars(module).update({"dlx_prefix": "shop", "DLX_PREFIX": "shop", "CELERY_DLX_PREFIX": "shop", "TIME_ZONE": ""})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    app.config_from_object(DjangoSettings(module.__name__), namespace="CELERY")

    assert AppContext(app).settings == Settings(prefix="shop")


@pytest.mark.parametrize("written", ["CELERY_dlx_prefix", "celery_dlx_prefix", "dlx_prefix"])
def test_a_key_that_django_overlooks_fails_the_start(app, monkeypatch, written):
    module = ModuleType("shop_settings")
    vars(module).update({written: "shop", "TIME_ZONE": ""})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    app.config_from_object(DjangoSettings(module.__name__), namespace="CELERY")

    with pytest.raises(UnknownSetting) as caught:
        _ = AppContext(app).settings

    assert str(caught.value) == f"There is no setting {written!r}. Did you mean 'CELERY_DLX_PREFIX'?"


def test_the_defaults_never_go_into_the_apps_configuration(app):
    context = context_of(app)

    assert context.settings == Settings()
    assert [key for key in app.conf if "dlx" in key.lower()] == []


def test_a_workers_flags_overrule_its_configuration_also_when_it_was_read_already(app):
    app.conf.update(dlx_prefix="shop", dlx_declare=False)
    context = context_of(app)
    assert context.names.dead() == "shop.v1.dead"

    context.use_flags({"dlx_prefix": "flag"})

    assert context.settings == Settings(prefix="flag", declare=False)
    assert context.names.dead() == "flag.v1.dead"


def test_an_app_has_one_runtime(app):
    assert context_of(app) is context_of(app)
