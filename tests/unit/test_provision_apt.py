"""The lock around apt-get, which root takes."""

import fcntl
import os
import stat
import tempfile

import pytest

from celery_dlx_retry.testing.sandbox import WayFailed
from tests.provision import apt


@pytest.fixture
def lock(monkeypatch, tmp_path):
    """The lock of a root on a Debian, in a directory of the test."""
    path = tmp_path / "apt.lock"
    monkeypatch.setattr(apt, "LOCK", path)
    monkeypatch.setattr(apt, "LOCK_SECONDS", 0.2)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/apt-get")
    return path


def test_the_lock_is_not_where_every_user_may_write():
    assert not apt.LOCK.is_relative_to(tempfile.gettempdir())
    assert not apt.LOCK.is_relative_to("/tmp")  # noqa: S108 - that is the point
    assert not apt.LOCK.parent.stat().st_mode & stat.S_IWOTH


def test_only_root_can_read_the_lock_and_so_hold_it(lock):
    with apt.one_at_a_time():
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600

    with apt.one_at_a_time():
        pass


def test_a_link_in_place_of_the_lock_is_not_followed(lock, tmp_path):
    target = tmp_path / "shadow"
    target.write_text("precious")
    lock.symlink_to(target)

    with pytest.raises(WayFailed, match=r"the lock .* cannot be opened"), apt.one_at_a_time():
        pass

    assert target.read_text() == "precious"


def test_a_lock_that_another_process_holds_is_waited_for_but_not_without_limit(lock):
    holder = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(holder, fcntl.LOCK_EX)

    with pytest.raises(WayFailed, match="another process has held the lock"), apt.one_at_a_time():
        pass
    os.close(holder)

    with apt.one_at_a_time():
        pass


def test_who_may_not_install_takes_no_lock(lock, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with apt.one_at_a_time():
        assert not lock.exists()
