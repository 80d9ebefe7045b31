"""The retries of each rule, in the headers of a message."""

from __future__ import annotations

import json

import pytest
from support import shown

from celery_dlx_retry.policy.rule_retries import RuleRetry, rule_retries_of, with_rule_retry
from celery_dlx_retry.wire.dead_record import for_replay


def granted(path, retry):
    return RuleRetry(path=path, name="TimeoutError", retry=retry)


def test_a_message_of_an_older_version_has_no_retries_of_rules():
    assert rule_retries_of({"dlx-history": "[]"}, retries=5) == {}


def test_a_retry_of_the_policy_itself_leaves_no_header():
    assert with_rule_retry({"id": "7b1c"}, None, retries=0) == {"id": "7b1c"}


def test_the_header_of_version_1():
    headers = with_rule_retry({"id": "7b1c"}, granted("0", 1), retries=2)
    headers = with_rule_retry(headers, granted("2.1", 3), retries=3)

    assert headers == {"id": "7b1c", "dlx-rule-retries": '{"0":1,"2.1":3}'}


def test_each_rule_keeps_its_newest_number():
    headers = with_rule_retry({}, granted("0", 1), retries=0)
    headers = with_rule_retry(headers, granted("1", 1), retries=1)
    headers = with_rule_retry(headers, granted("0", 2), retries=2)

    assert rule_retries_of(headers, retries=3) == {"0": 2, "1": 1}


def test_the_header_stays_small_with_any_number_of_rules():
    headers = {}
    for position in range(1000):
        headers = with_rule_retry(headers, granted(str(position), 1), retries=position)

    assert len(headers["dlx-rule-retries"]) < 2000
    assert rule_retries_of(headers, retries=1000)["999"] == 1


def test_a_replay_counts_from_the_start():
    assert "dlx-rule-retries" not in for_replay(with_rule_retry({"id": "7b1c"}, granted("0", 3), retries=2))


@pytest.mark.parametrize(
    "forged",
    [
        *(7, b"\xff", "", "[1]", "{", '{"0":"x"}', '{"0":-1}', '{"0":true}', '{"x":1}', '{"0.":1}', "[" * 100_000),
        *(
            '{"0":6}',
            '{"0":3,"1":3}',
            f'{{"0":{2**63 - 1}}}',
            f'{{"0":{2**70}}}',
            '{"0":NaN}',
            '{"0":Infinity}',
            '{"0":1.0}',
        ),
        json.dumps({str(path): 1 for path in range(101)}),
        json.dumps({"1" * 99: 1}),
    ],
    ids=shown,
)
def test_a_forged_header_counts_nothing(forged):
    assert rule_retries_of({"dlx-rule-retries": forged}, retries=5) == {}


def test_a_rule_that_claims_more_retries_than_there_were_gives_the_next_one_a_count_of_its_own():
    headers = with_rule_retry({"dlx-rule-retries": '{"0":9}'}, granted("1", 1), retries=5)

    assert rule_retries_of(headers, retries=6) == {"1": 1}
