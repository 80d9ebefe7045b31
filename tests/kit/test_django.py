"""In a Django test a worker of its own opens the test's database; it never opens the one of development."""

from __future__ import annotations

import sqlite3

import pytest

from tests.kit.outside import run_pytest, write

PROJECT = {
    "settings.py": """
        SECRET_KEY = "x"
        INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes"]
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "development", "TEST": @test@}}
        USE_TZ = True
        CELERY_TASK_DEFAULT_QUEUE = CELERY_DLX_PREFIX = "@prefix@"
        CELERY_BROKER_URL = "@url@"
        """,
    "shop.py": """
        from celery import Celery
        from celery_dlx_retry import DLXRetryTask

        app = Celery("shop", task_cls="celery_dlx_retry:DLXRetryTask")
        app.config_from_object("django.conf:settings", namespace="CELERY")

        @app.task(policy=[60, 600])
        def join(name):
            from django.contrib.auth.models import Group

            Group.objects.create(name=name)

        @app.task
        def idle():
            pass
        """,
    "pytest.ini": """
        [pytest]
        DJANGO_SETTINGS_MODULE = settings
        dlx_broker_url = @url@
        """,
}
WITH_A_DATABASE = """
    import pytest
    from django.contrib.auth.models import Group
    from django.db import transaction
    from shop import join

    @pytest.mark.django_db(transaction=True)
    def test_the_worker_writes_where_the_test_reads(dlx):
        with dlx.worker("shop", "--pool", "solo"):
            with transaction.atomic():
                join.delay_on_commit("customers")
            dlx.assert_succeeded(join)
            assert [group.name for group in Group.objects.all()] == ["customers"]
"""
WITHOUT_ONE = """
    from shop import idle, join

    def test_what_opens_no_database_is_fine(dlx):
        with dlx.worker("shop", "--pool", "solo"):
            idle.delay()
            dlx.assert_succeeded(idle)

    def test_what_opens_one_is_told(dlx):
        with dlx.worker("shop", "--pool", "solo"):
            join.delay("customers")
            dlx.assert_retried(join, delays=[60, 600])
"""


@pytest.fixture
def told(broker, prefix, tmp_path):
    """What pytest says of a test in the project; its development database is there, with a group."""

    def run(test, *, database):
        write(tmp_path, {**PROJECT, "test_shop.py": test}, prefix=prefix, url=broker.url, test=repr(database))
        with sqlite3.connect(tmp_path / "development") as development:
            development.execute("CREATE TABLE auth_group (id INTEGER PRIMARY KEY, name TEXT)")
        said = run_pytest(tmp_path)
        assert development.execute("SELECT name FROM auth_group").fetchall() == [], "development data was changed"
        development.close()
        return said

    return run


def test_the_worker_opens_the_database_of_the_test(told):
    assert "1 passed" in told(WITH_A_DATABASE, database={"NAME": "of-tests"})


def test_a_database_in_memory_is_refused_with_its_cure(told):
    said = told(WITH_A_DATABASE, database={})

    assert "1 failed" in said
    assert "which this test has in memory, where no other process can see it" in said
    assert "DATABASES['default']['TEST'] = {'NAME': 'test.sqlite3'}" in said


def test_without_a_test_database_none_is_opened(told):
    said = told(WITHOUT_ONE, database={"NAME": "of-tests"})

    assert "1 failed, 1 passed" in said
    assert "was about to open 'development', the database 'default' of the settings" in said
