"""The end of a broker: what is out ends, and nothing is answered afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tarry.errors import LogUnavailable, NotAMember, TarryError
from tarry.testing.conformance.groups import owns
from tarry.testing.conformance.rig import LONG, Rig, refused
from tarry.testing.conformance.suite import Suite, rests_on
from tarry.types import UNFENCED, Offset, Receipt, Start

GONE = (LogUnavailable, NotAMember)
"""What a closed broker says: that it is closed, or that it knows no session any more."""


class Closing(Suite):
    """See the module."""

    @rests_on("S15", "I4")
    async def test_what_is_out_ends(self, rig: Rig) -> None:
        p0, p1 = await rig.topic(2)
        readers = [await rig.reader(p0, p1) for _ in range(2)]
        polls = [rig.ask(rig.poll, each, (p0, 0), min_count=1 + i, max_wait=LONG) for i, each in enumerate(readers)]
        waits = [rig.ask(rig.wait, each, (p0, 0), (p1, 0), min_count=1 + i) for i, each in enumerate(readers)]
        await rig.settle()
        await rig.broker.aclose()
        for poll, wait in zip(polls, waits, strict=True):
            with refused(*GONE):
                await poll.answer()
            with refused(*GONE):
                await wait.answer()

    @rests_on("design 3")
    async def test_nothing_is_answered_afterwards(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        await rig.append(at, b"a")
        reader = await rig.reader(at, name="reader")
        for _ in range(2):
            await rig.broker.aclose()
        verbs: list[Callable[[], Awaitable[object]]] = [
            lambda: rig.append(at, b"b"),
            lambda: rig.create("other"),
            lambda: rig.broker.describe_topic(at.topic),
            rig.broker.list_topics,
            lambda: rig.reader(at),
        ]
        for verb in verbs:
            with refused(LogUnavailable):
                await verb()
        verbs = [
            lambda: rig.poll(reader, (at, 0)),
            lambda: rig.wait(reader, (at, 0)),
            lambda: reader.resolve(at, Start.first()),
            lambda: reader.stored_offset(at),
            lambda: reader.store_offset(at, Offset(0), ownership=UNFENCED),
        ]
        for verb in verbs:
            with refused(*GONE):
                await verb()

    @rests_on("design 3", "W5")
    async def test_an_append_that_meets_the_end_is_written_or_refused(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        asked = [rig.ask(rig.append, at, b"%d" % number) for number in range(30)]
        await rig.turn()
        await rig.broker.aclose()
        outcomes: list[Receipt | TarryError] = []
        for each in asked:
            try:
                outcomes.append(await each.answer())
            except LogUnavailable as error:
                outcomes.append(error)
        written = [outcome.offset for outcome in outcomes if isinstance(outcome, Receipt)]
        assert sorted(written) == list(range(len(written)))


class ClosingGroups(Suite):
    """The same for members of a group."""

    @rests_on("S15", "design 4.1")
    async def test_a_member_that_follows_its_assignment_is_told(self, rig: Rig) -> None:
        (at,) = await rig.topic()
        member = await rig.member(at.topic)
        await owns(rig, member, at)
        follows = rig.ask(member.changed, member.assignment.version)
        await rig.settle()
        await rig.broker.aclose()
        with refused(*GONE):
            await follows.answer()
