"""How long a member may count on its session, found out by its own signs of life."""

from __future__ import annotations

from tarry._core.lease import Lease
from tests.marks import rule


@rule("K18")
def test_signs_of_life_keep_a_lease():
    lease = Lease(1.0, 0.25, 10.0)
    for now in 10.9, 11.8, 12.7:
        assert not lease.is_over(now)
        assert lease.beat(now) is None
    assert not lease.is_over(13.6)


@rule("K18")
def test_a_gap_as_long_as_the_timeout_ends_it_as_it_does_at_the_log():
    lease = Lease(1.0, 0.25, 10.0)
    assert not lease.is_over(10.99)
    assert lease.is_over(11.0)
    assert lease.beat(13.0) == 3.0


@rule("K18")
def test_a_lease_that_is_over_is_not_kept_by_a_sign_of_life_and_told_of_once():
    lease = Lease(1.0, 0.25, 10.0)
    assert lease.beat(13.0) == 3.0
    assert lease.is_over(13.0)
    assert lease.beat(13.5) is None
    assert lease.is_over(13.5)


@rule("K18")
def test_once_renewed_the_next_gap_counts_from_there():
    lease = Lease(1.0, 0.25, 10.0)
    lease.beat(13.0)
    lease.renew(13.1)
    assert not lease.is_over(14.0)
    assert lease.beat(15.1) == 2.0


@rule("K18")
def test_a_session_that_does_not_lapse_has_no_gaps():
    lease = Lease(None, 5.0, 0.0)
    assert not lease.is_over(1e9)
    assert lease.beat(1e9) is None


@rule("K18")
def test_the_next_sign_of_life_is_due_while_it_is_still_in_time():
    lease = Lease(1.0, 0.25, 10.0)
    assert [lease.is_due(now) for now in (10.0, 10.24, 10.25, 10.99, 11.0, 12.0)] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    lease.beat(10.5)
    assert not lease.is_due(10.7)
    assert Lease(None, 5.0, 0.0).is_due(7.0)
