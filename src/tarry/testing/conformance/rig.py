"""What a conformance test works with: an open broker, short words for requests, and patience instead of timings.

Nothing here judges a broker. Under virtual time what happens at once takes no time at all, so patience is short there;
by the real clock it is long, and no test depends on how fast the machine is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Generic, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
import pytest

from tarry import abc
from tarry._wire.batch import decode, encode_record, seal
from tarry.config import TopicOptions
from tarry.errors import LogUnavailable, TarryError, TopicNotFound
from tarry.types import (
    Header,
    Message,
    Origin,
    Ownership,
    Position,
    ProducerStamp,
    Receipt,
    RecordBatch,
    Segment,
    Start,
    TopicInfo,
    TopicPartition,
)

T = TypeVar("T")
MIB = 1024 * 1024
EPOCH_MS = 1_325_376_000_000
"""The timestamp of messages that say none: 2012 began then."""
LONG = 20.0
"""A wait in seconds that no test sees the end of; below what a log may cap a wait to (30 s)."""
OVERHEAD = 512
"""Bytes of a reply that may go to metadata and framing, per partition."""

Spec = abc.FetchTarget | tuple[TopicPartition, "Position | int | Start"]
"""A target, or in short its partition and where to begin; unfenced."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How a broker is to be opened: seconds after which a silent member is evicted, and an unreleased partition taken.

    Most tests want both to be so long that neither ever happens.
    """

    session: float = 300.0
    rebalance: float = 300.0


class Asked(Generic[T]):
    """A request that runs in a task of its own: still out, answered, or withdrawn."""

    def __init__(self, request: Callable[[], Awaitable[T]], patience: float) -> None:
        self._request = request
        self._patience = patience
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._answers: list[T] = []
        self._error: TarryError | None = None

    async def run(self) -> None:
        """Ask, and note the answer."""
        with self._scope:
            try:
                self._answers.append(await self._request())
            except TarryError as error:
                self._error = error
        self._ended.set()

    @property
    def is_out(self) -> bool:
        """Neither answered nor withdrawn."""
        return not self._ended.is_set()

    async def answer(self) -> T:
        """The answer, which has to come now; an error is raised."""
        with anyio.fail_after(self._patience):
            await self._ended.wait()
        if self._error is not None:
            raise self._error
        assert self._answers, "the request was withdrawn"
        return self._answers[0]

    async def withdraw(self) -> None:
        """Cancel the task that waits for the answer; it ends now, and without one."""
        self._scope.cancel()
        with anyio.fail_after(self._patience):
            await self._ended.wait()
        assert not self._answers, f"answered before it was withdrawn: {self._answers[0]!r}"
        assert self._error is None, f"answered before it was withdrawn: {self._error!r}"

    async def abandon(self, *, turns: int) -> list[T]:
        """Cancel the task after so many turns of the loop, wherever the request may be by then.

        Returns the answer, if there was one.
        """
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        self._scope.cancel()
        with anyio.fail_after(self._patience):
            await self._ended.wait()
        return self._answers


class Rig:
    """An open broker under test.

    Args:
        prefix: of every name of a topic, group or consumer, so that tests do not meet on a log that outlives them.
        timeouts: with which the broker was opened.
        parked: how many requests wait at the log, None where that cannot be known.
        tasks: where requests run that are not waited for.
    """

    def __init__(
        self,
        broker: abc.Broker,
        tasks: anyio.abc.TaskGroup,
        *,
        prefix: str,
        timeouts: Timeouts,
        is_virtual: bool,
        parked: Callable[[], int | None],
    ) -> None:
        self.broker = broker
        self.timeouts = timeouts
        self.is_virtual = is_virtual
        self._tasks = tasks
        self._prefix = prefix
        self._parked = parked
        self._made: dict[str, None] = {}
        self.patience = 0.5 if is_virtual else 20.0
        self.short = 5.0 if is_virtual else 0.1

    def name(self, label: str) -> str:
        """A name that no other test uses."""
        return f"{self._prefix}-{label}"

    # -------------------------------------------------------------------------------------------- time

    def ask(self, request: Callable[..., Awaitable[T]], *args: Any, **options: Any) -> Asked[T]:
        """Start a request and go on."""
        asked = Asked(lambda: request(*args, **options), self.patience)
        self._tasks.start_soon(asked.run)
        return asked

    async def settle(self) -> None:
        """Give everything that is out the time to get where it goes.

        By the real clock that is likely and not certain: no test may fail because something takes longer.
        """
        await anyio.sleep(0.1 if self.is_virtual else 0.05)

    async def turn(self) -> None:
        """Let everybody else have a few turns; what has just been asked for may or may not be on its way then."""
        for _ in range(3):
            await anyio.lowlevel.checkpoint()

    async def until(self, condition: Callable[[], bool | Awaitable[bool]], *, within: float = 0.0) -> None:
        """Wait for something that has to become true, at the latest so many seconds from now (and some patience)."""
        with anyio.fail_after(within + self.patience):
            while True:
                found = condition()
                if await found if isawaitable(found) else found:
                    return
                await anyio.sleep(0.01)

    @contextmanager
    def taking(self, seconds: float) -> Generator[None]:
        """What happens inside takes so many seconds; by the real clock not less."""
        begin = anyio.current_time()
        yield
        taken = anyio.current_time() - begin
        assert taken > seconds - 0.01, f"over after {taken:.3f} s instead of {seconds:g} s"
        assert taken < seconds + self.patience, f"took {taken:.3f} s instead of {seconds:g} s"

    @property
    def parked(self) -> int | None:
        """How many requests wait at the log; None where that cannot be seen."""
        return self._parked()

    async def nothing_parked(self) -> None:
        """Everything that was withdrawn is gone at the log too, where that can be seen."""
        await self.until(lambda: not self.parked)

    # -------------------------------------------------------------------------------------------- writing

    async def topic(self, partitions: int = 1, *, label: str = "topic", **options: Any) -> tuple[TopicPartition, ...]:
        """Create a topic and return its partitions."""
        info = await self.create(label, partitions=partitions, **options)
        return tuple(TopicPartition(info.name, part.partition) for part in info.partitions)

    async def create(self, label: str, *, exist_ok: bool = False, **options: Any) -> TopicInfo:
        """Create a topic."""
        name = self.name(label)
        self._made[name] = None
        return await self.broker.create_topic(name, TopicOptions(**options), exist_ok=exist_ok)

    async def clear(self) -> None:
        """Delete what the test has created and left."""
        for name in self._made:
            with suppress(TopicNotFound, LogUnavailable):  # it was deleted, or the broker was closed: by the test
                await self.broker.delete_topic(name)

    async def append(
        self, at: TopicPartition, *values: bytes | None, times: Sequence[int] = (), stamp: ProducerStamp | None = None
    ) -> Receipt:
        """Append messages as one batch."""
        return await self.broker.append(at, batch(*values, times=times), producer=stamp)

    async def fill(self, at: TopicPartition, count: int, *, size: int = 100) -> Receipt:
        """Append so many records of exactly `size` bytes each."""
        return await self.broker.append(at, sized(*[size] * count))

    async def log_end(self, at: TopicPartition) -> Position:
        """Where a partition ends."""
        info = await self.broker.describe_topic(at.topic)
        return info.partitions[at.partition].log_end

    # -------------------------------------------------------------------------------------------- sessions

    async def reader(self, *partitions: TopicPartition, name: str | None = None) -> abc.Session:
        """A standalone consumer of these partitions; `name` is a label."""
        identity = abc.ConsumerIdentity(None if name is None else self.name(name))
        return await self.broker.open_session(identity, (), partitions)

    async def member(self, *topics: str, group: str = "group", static: str | None = None) -> abc.Session:
        """A new member of a group; `group` is a label."""
        return await self.broker.open_session(self.group(group, static), topics, ())

    def group(self, label: str = "group", static: str | None = None) -> abc.ConsumerIdentity:
        """The identity of a group's members."""
        return abc.ConsumerIdentity(self.name(label), "group", static)

    # -------------------------------------------------------------------------------------------- reading

    async def poll(
        self,
        session: abc.Session,
        *targets: Spec,
        count: int = 1000,
        max_bytes: int = MIB,
        min_count: int = 1,
        max_wait: float = 0.0,
        commit: bool = False,
    ) -> abc.PollReply:
        """Poll targets of one leader."""
        wanted = [target(spec) for spec in targets]
        leader = await session.route(wanted[0].partition)
        return await session.poll(
            leader, wanted, count=count, max_bytes=max_bytes, min_count=min_count, max_wait=max_wait, commit=commit
        )

    async def wait(
        self,
        session: abc.Session,
        *targets: Spec,
        min_count: int = 1,
        min_bytes: int | None = None,
        max_wait: float = LONG,
        change: abc.WatchChange | None = None,
    ) -> dict[TopicPartition, abc.Ready]:
        """Wait for readiness; the answer by partition, none of which may be named twice."""
        wanted = [target(spec) for spec in targets]
        leader = await session.route(wanted[0].partition)
        found = await session.wait_ready(
            leader, wanted, min_count=min_count, min_bytes=min_bytes, max_wait=max_wait, change=change
        )
        by_partition = {ready.partition: ready for ready in found}
        assert len(by_partition) == len(found), f"named twice: {found}"
        return by_partition


# ------------------------------------------------------------------------------------------------ words


@contextmanager
def refused(*kinds: type[TarryError]) -> Generator[pytest.ExceptionInfo[TarryError]]:
    """What happens inside is refused with one of these errors, which say that nothing was applied."""
    with pytest.raises(kinds) as caught:
        yield caught
    assert caught.value.applied == "no", f"{caught.value!r} leaves open whether it was applied"


def target(spec: Spec, ownership: Ownership | None = None) -> abc.FetchTarget:
    """A target out of a short form."""
    if not isinstance(spec, abc.FetchTarget):
        partition, at = spec
        spec = abc.FetchTarget(partition, at if isinstance(at, Start) else Position(at))
    return spec if ownership is None else abc.FetchTarget(spec.partition, spec.at, ownership, spec.history)


def batch(*values: bytes | None, times: Sequence[int] = ()) -> RecordBatch:
    """A batch of messages without keys."""
    stamps = times or [EPOCH_MS] * len(values)
    return seal([encode_record(value, None, (), at) for value, at in zip(values, stamps, strict=True)], stamps)


def records(*messages: tuple[bytes | None, bytes | None, Sequence[Header], int]) -> RecordBatch:
    """A batch of whole messages: value, key, headers, timestamp."""
    return seal([encode_record(*message) for message in messages], [at for _, _, _, at in messages])


def sized(*sizes: int) -> RecordBatch:
    """A batch of records of exactly these sizes."""
    return seal([_record(size) for size in sizes], [EPOCH_MS] * len(sizes))


def _record(size: int) -> bytes:
    room = size - len(encode_record(b"", None, (), EPOCH_MS))
    while len(encode_record(bytes(room), None, (), EPOCH_MS)) > size:
        room -= 1
    record = encode_record(bytes(room), None, (), EPOCH_MS)
    assert len(record) == size, f"no record has exactly {size} bytes"
    return record


def only(reply: abc.PollReply) -> abc.TargetReply:
    """What the one target of a poll got."""
    (found,) = reply.targets
    return found


def offsets(reply: abc.TargetReply) -> list[int]:
    """The offsets that a target got; nothing may be missing between them."""
    found = [run.base + index for run in reply.runs for index in range(run.count)]
    assert found == list(range(reply.position, reply.next)), f"{reply.partition}: {found} from {reply.position} on"
    return found


def counts(reply: abc.PollReply) -> list[int]:
    """How many messages each target got."""
    return [len(offsets(found)) for found in reply.targets]


def size_of(reply: abc.PollReply) -> int:
    """Bytes of all records of a reply."""
    return sum(run.size for found in reply.targets for run in found.runs)


def messages(reply: abc.TargetReply) -> list[Message]:
    """The messages that a target got."""
    if not reply.runs:
        return []
    assert reply.head is not None, "there are messages, so there is a newest one"
    origin = Origin(reply.partition, reply.head, reply.ownership, reply.history)
    return decode(Segment(origin, reply.runs))


def values(reply: abc.TargetReply) -> list[bytes | None]:
    """The values that a target got."""
    return [message.value for message in messages(reply)]


def owned(*members: abc.Session) -> list[Mapping[TopicPartition, Ownership]]:
    """What each member owns."""
    return [member.assignment.owned for member in members]
