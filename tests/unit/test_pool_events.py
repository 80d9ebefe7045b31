"""Events of forked processes reach the subscribers of the main process, whole and short."""

import os
import subprocess
import sys
import textwrap

CODE = """
    import os, time
    from celery_dlx_retry import events
    from celery_dlx_retry.worker.pool_events import bring_pool_events
    {setup}
    seen = {seen}()
    events.subscribe(lambda event: seen.append((os.getpid(), event)), in_main=True)
    bring_pool_events()
    children = []
    for number in range(4):
        if not (child := os.fork()):
            inherited = len(seen)
            try:
                for round in range(200):
                    events.emit({event})
            finally:
                os._exit(len(seen) - inherited)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0, 0]
    until = time.monotonic() + 10
    while len(seen) < 800 and time.monotonic() < until:
        time.sleep(0.01)
    assert {{pid for pid, _ in seen}} == {{os.getpid()}}
    {check}
    print(len(seen))
"""


def run(event, *, setup="", check="", seen="list"):
    code = textwrap.dedent(CODE).format(event=event, setup=setup, check=check, seen=seen)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False, env=os.environ
    )
    assert not done.stderr, done.stderr
    return done.stdout.strip()


def test_all_events_of_all_processes_arrive_and_long_texts_are_cut():
    event = (
        "events.DeadLettered(task='t', task_id=str(round), queue='q', reason='failed', attempts=1, group='3d666e04', "
        "error_type='E', error='x' * 100_000, worker='w')"
    )

    assert run(event, check="assert {len(event.error) for _, event in seen} == {200}") == "800"


def test_a_problem_that_cannot_be_pickled_keeps_its_name():
    event = "events.GivenBack(task='t', task_id='7', queue='q', worker='w', problem=Odd(lambda: 0))"
    setup = "Odd = type('Odd', (Exception,), {})"

    assert run(event, setup=setup, check="assert {event.cause for _, event in seen} == {'Odd'}") == "800"


def test_a_subscriber_that_ends_its_thread_does_not_end_the_reading():
    event = "events.Purged(dead_letter_queue='q', count=1)"
    setup = """class Ending(list):
    def append(self, it):
        super().append(it)
        raise SystemExit
"""

    assert run(event, setup=setup, seen="Ending") == "800"
