"""The client: from a URL to a broker, topics, producers and consumers.

It owns the one task group in which the loops of its consumers run, so that a consumer may be entered and left in any
task.
Not here: what a log does (`brokers`), what a consumer does (`consumer`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack, overload

import anyio
import anyio.abc

from tarry import abc
from tarry._runtime.bridge import Bound
from tarry._runtime.clock import random_bytes, random_share, wall_ms
from tarry._runtime.signals import Drain, current_drain
from tarry.config import MIB, AutoCommit, ConsumerOptions, LogOptions, PollOptions, ProducerOptions, TopicOptions
from tarry.consumer.arguments import check_runs
from tarry.consumer.consumer import Consumer
from tarry.consumer.membership import Hook, Hooks
from tarry.consumer.reads import Reads, fill_count
from tarry.errors import ConfigError, ConfigTypeError, FeatureUnavailable, NotStarted, UsageError
from tarry.instruments import Instruments
from tarry.producer.producer import Producer
from tarry.types import (
    GroupInfo,
    Offset,
    Start,
    T,
    TopicInfo,
    TopicPartition,
    check_name,
    check_offset,
    check_topic,
    named_partition,
)
from tarry.values import decoder_of, encoder_of

StartSoon = Callable[[Callable[[], Awaitable[None]]], None]
OpenBroker = Callable[[StartSoon], Awaitable[abc.Broker]]
Partitions = Sequence["TopicPartition | int"]


class ProducerArguments(TypedDict, total=False):
    """What `client.producer` takes besides the topic and `value_type`; see there, and `ProducerOptions`."""

    partitioner: abc.Partitioner | None
    retries: int
    retry_spacing: float | timedelta
    refresh_interval: float | timedelta


class ConsumerArguments(TypedDict, total=False):
    """What `client.consumer` takes besides topics and `value_type`; see there, and `ConsumerOptions`."""

    group: str | None
    member: str | None
    name: str | None
    partitions: Partitions | None
    poll: PollOptions | None
    start: Start | None
    commit: AutoCommit | None
    on_assigned: Hook | None
    on_revoked: Hook | None
    drain_timeout: float | timedelta
    buffer_messages: int | None
    buffer_bytes: int
    heartbeat_interval: float | timedelta
    hook_timeout: float | timedelta
    max_processing_time: float | timedelta
    cool_down: float | timedelta


def connect(
    target: str,
    *,
    durability: Literal["full", "normal", "memory"] = "full",
    busy_timeout: float | timedelta = 10.0,
    instruments: Sequence[abc.Instrument] = (),
    **log_options: Any,
) -> Client:
    """A client for a log; nothing is opened before `async with`.

    Args:
        target: `"orders.db"` or `"sqlite:///orders.db"`, a file, created when missing; `"memory:"`, a private log.
        durability: `"full"`: a receipt survives a power cut; `"normal"`: the newest may be lost then; `"memory"`: a
            crash may lose the file.
        busy_timeout: seconds to wait for a foreign write lock before `LogBusy`.
        instruments: receive every event.
        log_options: further fields of `LogOptions`.

    Raises:
        ConfigError: an unknown kind of URL, or an option out of range.
    """
    if not isinstance(target, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigTypeError(
            f"connect takes a path or URL as str, not {type(target).__name__} ({target!r}); use str(path)"
        )
    given: dict[str, Any] = {"durability": durability, "busy_timeout": busy_timeout}
    options = LogOptions(**given, **log_options)
    return Client(_opener(target, options), name=target, instruments=instruments)


def _opener(target: str, options: LogOptions) -> OpenBroker:
    from tarry.brokers.local.host import open_file, open_memory

    scheme, separator, rest = target.partition("://")
    if target == "memory:":
        return lambda start_soon: open_memory(start_soon, options)
    if target == ":memory:":
        raise ConfigError("':memory:' is what SQLite says; a private log is 'memory:'")
    if not target or (separator and scheme == "sqlite" and not rest.lstrip("/")):
        raise ConfigError("connect needs a file, for example 'orders.db', or 'memory:'")
    if not separator:
        return lambda start_soon: open_file(target, options)
    if "@" in rest.split("/")[0]:
        raise ConfigError(f"credentials do not belong into a URL ({scheme}://...@...); they end up in logs")
    if scheme == "sqlite":
        if not rest.startswith("/"):
            raise ConfigError(f"{target!r}: write sqlite:///relative.db or sqlite:////absolute.db, or just the path")
        return lambda start_soon: open_file(rest[1:], options)
    if scheme in ("tarry", "tarry+tls", "kafka"):
        raise FeatureUnavailable(
            f"{scheme}:// is not there yet; this release has the embedded log ('orders.db', 'memory:')"
        )
    raise ConfigError(f"unknown URL {target!r}; use a path, sqlite:///path or memory:")


class Client(Bound):
    """A connection to one log; an async context manager. Consumers still open when it is left are shut down.

    It belongs to the event loop in which it is entered, with all that is made from it: in another loop or thread their
    use is a `UsageError`.
    """

    def __init__(
        self, open_broker: OpenBroker, *, name: str = "log", instruments: Sequence[abc.Instrument] = ()
    ) -> None:
        self._open_broker = open_broker
        self._name = name
        self._instruments = Instruments(*_check_instruments(instruments))
        self._broker: abc.Broker | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._services: list[anyio.CancelScope] = []
        self._consumers: dict[Consumer[Any], None] = {}
        self._drain: Drain | None = None

    def __repr__(self) -> str:
        return f"<tarry client of {self._name}{'' if self._broker else ', not open'}>"

    async def __aenter__(self) -> Self:
        """Open the log.

        Raises:
            LogInUse, LogUnavailable, DataError: the file cannot be opened; the message says why and what to do.
        """
        if self._tasks is not None:
            raise UsageError(f"{self!r} cannot be entered again; call tarry.connect() again")
        self._drain = current_drain()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            self._broker = await self._open_broker(self._serve)
        except BaseException:
            await self._end_tasks()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut consumers down, close the log, end all tasks; also inside a cancelled scope."""
        with anyio.CancelScope(shield=True):
            for consumer in list(self._consumers):
                await consumer.shutdown()
            broker, self._broker = self._broker, None
            if broker is not None:
                await broker.aclose()
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        assert self._tasks is not None
        for scope in self._services:
            scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    def _serve(self, service: Callable[[], Awaitable[None]]) -> None:
        """Run a service until it ends or the client is closed; a cancel from outside does not reach it before that."""
        assert self._tasks is not None
        scope = anyio.CancelScope(shield=True)
        self._services.append(scope)

        async def serve() -> None:
            with scope:
                await service()
            self._services.remove(scope)

        self._tasks.start_soon(serve)

    # ------------------------------------------------------------------------------------------- topics

    @property
    def broker(self) -> abc.Broker:
        """The broker behind this client.

        Raises:
            NotStarted: the client is not open.
        """
        if self._broker is None:
            raise NotStarted(f"{self!r}: use `async with tarry.connect(...) as client:`")
        return self._broker

    @property
    def counts(self) -> dict[str, int]:
        """How often each event happened."""
        return dict(self._instruments.counts)

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        retention_age: float | timedelta | None = None,
        retention_bytes: int | None = None,
        max_record_bytes: int = MIB,
        exist_ok: bool = False,
    ) -> TopicInfo:
        """Create a topic.

        Args:
            name: `stream/topic`, or a bare name in the stream `default`.
            partitions: 1 to 10,000.
            retention_age: seconds (or a timedelta) after which messages go; None keeps them.
            retention_bytes: bytes per partition above which the oldest messages go, the newest too if alone above.
            max_record_bytes: largest encoded message, up to 16 MiB.
            exist_ok: return an existing topic of that name as it is.

        Cancellation: it may still be created.

        Raises:
            TopicExists: there is one of that name, and `exist_ok` is not set.
            InvalidName, ConfigError: a name or an option that cannot be; nothing was created.
            NotStarted: the client is not open; so with every method that asks the log.
        """
        given: dict[str, Any] = {
            "partitions": partitions,
            "retention_age": retention_age,
            "retention_bytes": retention_bytes,
            "max_record_bytes": max_record_bytes,
        }
        options = TopicOptions(**given)
        return await self.broker.create_topic(check_topic(name), options, exist_ok=exist_ok)

    async def grow_topic(self, name: str, partitions: int) -> TopicInfo:
        """Give a topic more partitions; with as many as it has already nothing changes.

        Running consumers of the whole topic, and groups, read the new partitions from their first message, without a
        restart (K56). Producers take the new number over within `refresh_interval`; equal keys may go to another
        partition from then on, so what has to stay in order by key should be read to its end first.

        Args:
            partitions: how many it is to have in all, up to 10,000.

        Raises:
            ConfigError: it has more than that; partitions are never taken away. Nothing was changed.
            TopicNotFound: there is no such topic.
        """
        wanted = TopicOptions(partitions=partitions).partitions
        return await self.broker.grow_topic(check_topic(name), wanted)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its messages and stored offsets; `TopicNotFound` when there is none.

        Its consumers are told at their next read; the partitions of a group just go (K57).
        Cancellation: it may still be deleted.
        """
        await self.broker.delete_topic(check_topic(name))

    async def topics(self) -> Sequence[TopicInfo]:
        """All topics, by name."""
        return await self.broker.list_topics()

    async def topic(self, name: str) -> TopicInfo:
        """One topic; `TopicNotFound` when there is none."""
        return await self.broker.describe_topic(check_topic(name))

    # ------------------------------------------------------------------------------------------- groups

    async def groups(self) -> Sequence[GroupInfo]:
        """All groups that have members or stored offsets, by name."""
        return await self.broker.list_groups()

    async def group(self, name: str) -> GroupInfo:
        """One group: its members, what they own, where it stands; `GroupNotFound` when nothing is known of it."""
        return await self.broker.describe_group(check_name("group name", name))

    async def reset_group(self, name: str, offsets: Mapping[TopicPartition, Offset | int | None]) -> None:
        """Set stored offsets of a group without members, up or down; None deletes, so that its start rule decides.

        All are checked before the first is stored.

        Args:
            offsets: the last finished message of each partition, inclusive; or None.

        Raises:
            ConfigError: no mapping of partitions to offsets; nothing was stored.
            GroupNotFound: nothing is known of a group of that name.
            NotAccepted: the group has members; stop them first.
            OffsetOutOfRange, TopicNotFound: one of them does not exist; nothing was stored.
        """
        given = {named_partition(at, ()): _offset(at, offset) for at, offset in _check_mapping(offsets).items()}
        await self.broker.reset_group(check_name("group name", name), given)

    # ------------------------------------------------------------------------------------------- factories

    @overload
    def producer(
        self, topic: str, *, value_type: type[bytes] = ..., **arguments: Unpack[ProducerArguments]
    ) -> Producer: ...
    @overload
    def producer(
        self, topic: str, *, value_type: type[T] | abc.Encoder[T], **arguments: Unpack[ProducerArguments]
    ) -> Producer[T]: ...
    @overload
    def producer(self, topic: str, *, value_type: object, **arguments: Unpack[ProducerArguments]) -> Producer[Any]: ...
    def producer(
        self, topic: str, *, partitioner: abc.Partitioner | None = None, value_type: object = bytes, **options: Any
    ) -> Producer[Any]:
        """A direct producer for a topic; enter it with `async with`.

        Args:
            partitioner: `f(key, value, partitions) -> int`, with the value as bytes; wins over everything else (P4).
            value_type: what `send` takes: `bytes`; a pydantic model, or anything that pydantic's TypeAdapter takes, or
                a msgspec Struct, written as JSON; or an object with `encode(value)` (`abc.Codec`). A delete marker
                stays None. A value that does not encode is refused before anything is sent (`UnencodableValue`).
            options: fields of `ProducerOptions`.

        Raises:
            ConfigError: an option that cannot work; says which.
        """
        _check_function("partitioner", partitioner)
        return Producer(
            self._broker,
            check_topic(topic),
            options=ProducerOptions(**options),
            partitioner=partitioner,
            encode_value=encoder_of(value_type),
            clock_ms=wall_ms,
            producer_id=random_bytes(16),
        )

    @overload
    def consumer(
        self, *topics: str, value_type: type[bytes] = ..., **arguments: Unpack[ConsumerArguments]
    ) -> Consumer: ...
    @overload
    def consumer(
        self, *topics: str, value_type: type[T] | abc.Decoder[T], **arguments: Unpack[ConsumerArguments]
    ) -> Consumer[T]: ...
    @overload
    def consumer(self, *topics: str, value_type: object, **arguments: Unpack[ConsumerArguments]) -> Consumer[Any]: ...
    def consumer(
        self,
        *topics: str,
        group: str | None = None,
        member: str | None = None,
        name: str | None = None,
        partitions: Partitions | None = None,
        poll: PollOptions | None = None,
        start: Start | None = None,
        commit: AutoCommit | None = None,
        on_assigned: Hook | None = None,
        on_revoked: Hook | None = None,
        value_type: object = bytes,
        **options: Any,
    ) -> Consumer[Any]:
        """A consumer; enter it with `async with`. Building it does no I/O (C15).

        Args:
            topics: read all their partitions, unless `partitions` names some.
            group: share the partitions of the topics with the other members of the group; the log says who reads what.
                Offsets are stored for the group.
            member: a name for this member: two of one name are not let into the group at the same time.
            name: under which offsets are stored; without one nothing can be.
            partitions: read just these; with one topic plain ints name its partitions.
            poll: how long to wait and how much to bring; default `PollOptions()`.
            start: where partitions without a position begin; default `Start.next()`: behind the stored offset, else at
                the first message.
            commit: who stores offsets; default `AutoCommit.disabled()`.
            on_assigned: called with the partitions that came, before anything of them is delivered.
            on_revoked: called with the partitions that go: those given up after the message in hand and before the last
                store, those lost without notice afterwards. Both may be async, are cut off after `hook_timeout`, and
                an error of theirs reaches the reader once, as `RebalanceHookError`.
            value_type: what `message.value` is: `bytes`; a pydantic model, or anything that pydantic's TypeAdapter
                takes, or a msgspec Struct, read from JSON; or an object with `decode(bytes)` (`abc.Codec`). A delete
                marker stays None and is not decoded (K76). A value that does not decode is raised by the read call in
                its place as `UndecodableMessage`; its partition waits until it is sought, the others go on.
            options: fields of `ConsumerOptions`.

        Raises:
            ConfigError, InvalidName: an option, a name or a combination that cannot work; says which.
        """
        _check_kind("poll", poll, PollOptions)
        _check_kind("start", start, Start)
        _check_kind("commit", commit, AutoCommit)
        _check_function("on_assigned", on_assigned)
        _check_function("on_revoked", on_revoked)
        polling = poll or PollOptions()
        committing = commit or AutoCommit.disabled()
        identity = _identity(name, group, member, committing)
        if group is None and (on_assigned or on_revoked):
            raise ConfigError("on_assigned= and on_revoked= belong to a group; pass group= or leave them out")
        reads = _reads(topics, partitions, identity, fill_count(start or Start.next(), polling.count))
        if group is not None and partitions is not None:
            reads = self._without_partitions(reads)
        return Consumer(
            reads,
            open_session=lambda: self._open_session(reads),
            start_soon=self._serve,
            poll=polling,
            commit=committing,
            options=ConsumerOptions(**options),
            decode_value=decoder_of(value_type),
            hooks=Hooks(on_assigned, on_revoked),
            instruments=self._instruments,
            random=random_share,
            opened=self._opened,
            closed=self._closed,
        )

    def _without_partitions(self, reads: Reads) -> Reads:
        """The assignment decides which partitions a member reads (C18)."""
        self._instruments.warn(
            "consumer",
            "partitions_ignored",
            f"partitions= is ignored in group {reads.identity.name!r}: the log assigns them; pass name= instead of "
            "group= to read chosen partitions",
            partitions=reads.partitions,
        )
        topics = dict.fromkeys(partition.topic for partition in reads.partitions)
        return Reads(tuple(topics), (), reads.identity, reads.start)

    async def _open_session(self, reads: Reads) -> abc.Session:
        return await self.broker.open_session(reads.identity, reads.topics, reads.partitions)

    def _opened(self, consumer: Consumer[Any]) -> None:
        self._consumers[consumer] = None
        if self._drain is not None:
            self._drain.add(consumer.shutdown)

    def _closed(self, consumer: Consumer[Any]) -> None:
        self._consumers.pop(consumer, None)
        if self._drain is not None:
            self._drain.remove(consumer.shutdown)


def _identity(name: str | None, group: str | None, member: str | None, commit: AutoCommit) -> abc.ConsumerIdentity:
    if name is not None and group is not None:
        raise ConfigError(
            f"name={name!r} and group={group!r} contradict each other: offsets are stored for a standalone consumer or "
            "for a group; leave one out (member= names a member of a group)"
        )
    if group is not None:
        static = None if member is None else check_name("member name", member)
        return abc.ConsumerIdentity(check_name("group name", group), "group", static)
    if member is not None:
        raise ConfigError(f"member={member!r} names a member of a group, but there is no group=")
    if name is None and commit.mode != "disabled":
        raise ConfigError(
            f"commit={commit} stores offsets, but the consumer has no name= or group= to store them under"
        )
    return abc.ConsumerIdentity(None if name is None else check_name("consumer name", name))


def _reads(
    topics: tuple[str, ...], partitions: Partitions | None, identity: abc.ConsumerIdentity, start: Start
) -> Reads:
    names = tuple(dict.fromkeys(_topic(topic) for topic in topics))
    if partitions is None:
        if not names:
            raise ConfigError("consumer() needs a topic, for example client.consumer('orders', name='billing')")
        return Reads(names, (), identity, start)
    if _is_no_list(partitions):
        raise ConfigTypeError(f"partitions={partitions!r}: it takes a list, not {type(partitions).__name__}")
    chosen = tuple(dict.fromkeys(named_partition(partition, names) for partition in partitions))
    if not chosen:
        raise ConfigError(f"partitions={partitions!r} names no partition; leave it out to read all of them")
    unread = [name for name in names if not any(partition.topic == name for partition in chosen)]
    if unread:
        raise ConfigError(
            f"partitions= names none of topic {', '.join(map(repr, unread))}; leave the topic out or name some"
        )
    return Reads((), chosen, identity, start)


def _is_no_list(given: object) -> bool:
    return isinstance(given, (str, bytes, TopicPartition)) or not isinstance(given, Iterable)


def _topic(name: Any) -> str:
    if isinstance(name, (list, tuple)):
        raise ConfigTypeError(f"consumer({name!r}): name the topics one by one, as in consumer(*topics)")
    return check_topic(name)


def _check_kind(option: str, given: object, kind: type[object]) -> None:
    if given is not None and not isinstance(given, kind):
        article = "an" if kind is AutoCommit else "a"
        raise ConfigTypeError(f"{option}={given!r}: it takes {article} {kind.__name__}, not {type(given).__name__}")


def _check_function(option: str, given: object) -> None:
    if given is not None and not callable(given):
        raise ConfigTypeError(f"{option}={given!r}: it takes a function, not {type(given).__name__}")
    check_runs(f"{option}={given!r}", given)


def _check_instruments(given: Sequence[abc.Instrument]) -> Sequence[abc.Instrument]:
    if not isinstance(given, (list, tuple)) or not all(map(callable, given)):
        raise ConfigTypeError(f"instruments={given!r}: it takes a list of functions f(event, fields)")
    return given


def _check_mapping(offsets: Mapping[TopicPartition, int | None]) -> Mapping[TopicPartition, int | None]:
    if not isinstance(offsets, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # users' input
        raise ConfigTypeError(
            f"reset_group takes a dict from TopicPartition to the last finished offset, not {type(offsets).__name__}"
        )
    return offsets


def _offset(at: TopicPartition, given: int | None) -> Offset | None:
    return None if given is None else check_offset(f"reset_group of {at}", given, "None")
