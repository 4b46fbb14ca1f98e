"""The direct producer: each send is durable when it returns its receipt (P1-P4, P6-P9, P11)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, cast

import anyio
import anyio.lowlevel

from tarry import abc
from tarry._core.batches import cut_batches
from tarry._runtime.bridge import Bound, Home
from tarry._runtime.retry import attempt
from tarry._wire.batch import encode_record, seal
from tarry.config import ProducerOptions
from tarry.errors import (
    ConfigError,
    ConfigTypeError,
    LogBusy,
    LogUnavailable,
    MessageTooLarge,
    NotOfType,
    NotStarted,
    OutcomeUnknown,
    ProducerClosed,
    SendFailed,
    TarryError,
    TopicNotFound,
    UnencodableValue,
    UsageError,
)
from tarry.producer.sharding import partition_of
from tarry.types import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    KEY_BYTES_MAX,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_MS_MIN,
    Header,
    HistoryId,
    Offset,
    ProducerStamp,
    Receipt,
    T,
    TopicInfo,
    TopicPartition,
    check_text,
)

CAUSE_TEXT = 200
"""So much of what an encoder said is shown in our error; the whole of it is its `__cause__`."""

PART_MESSAGES = 500
"""Most messages encoded in one turn: some milliseconds with pydantic."""
LOOK_S = 1.0
"""Seconds after which sends go by the partitions they know, when the log does not say how many there are."""


class Outgoing(NamedTuple, Generic[T]):
    """One message for `send_many`; a bare value stands for one without key."""

    value: T | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class _Encoded(NamedTuple):
    """A message that passed all checks: its place in the call, its partition, its bytes."""

    place: int
    partition: int
    record: bytes
    timestamp_ms: int


class Producer(Bound, Generic[T]):
    """Appends to one topic. Use it as `async with client.producer("orders") as producer`; sends may run concurrently.

    Everything that can be refused is refused before anything is written: values, types, sizes, partitions. With an
    idempotent log an unknown outcome is retried under the same sequence and never stored twice (K74); otherwise it is
    `OutcomeUnknown`.

    Cancellation: a cancelled `send` may still be applied once it was handed to the log's writer.
    """

    def __init__(
        self,
        broker: abc.Broker | None,
        topic: str,
        *,
        options: ProducerOptions,
        partitioner: abc.Partitioner | None,
        encode_value: Callable[[Any], bytes] | None,
        clock_ms: Callable[[], int],
        producer_id: bytes,
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._options = options
        self._partitioner = partitioner
        self._encode_value = encode_value
        self._clock_ms = clock_ms
        self._id = producer_id
        self._info: TopicInfo | None = None
        self._home: Home  # since it was entered
        self._looked_at = 0.0
        self._front = anyio.Lock()  # whoever holds it is not overtaken by sends that begin later
        self._sequences: dict[int, int] = {}
        self._turn = 0
        self._closed = False
        self._cause: TarryError | None = None

    def __repr__(self) -> str:
        state = "shut down" if self._closed else "not entered yet" if self._info is None else "open"
        return f"<tarry producer of {self._topic}, {state}>"

    async def __aenter__(self) -> Self:
        """Look the topic up.

        Raises:
            TopicNotFound: it does not exist (P1: producers create none).
            NotStarted: the client was not open when the producer was made.
            UsageError: it was entered, or shut down, before.
        """
        if self._info is not None or self._closed:
            raise UsageError(f"{self!r} cannot be entered again; make a new one with client.producer(...)")
        if self._broker is None:
            raise NotStarted("the client is not open; use `async with tarry.connect(...) as client:`")
        try:
            self._info = await self._broker.describe_topic(self._topic)
        except TarryError as error:
            self._cause = error
            raise
        self._home, self._looked_at = Home(), anyio.current_time()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    async def flush(self) -> None:
        """Nothing to do: each send is durable when it returns."""

    async def shutdown(self) -> None:
        """Refuse further sends; idempotent. Sends in progress go on."""
        self._closed = True

    async def send(
        self,
        value: T | None,
        *,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Receipt:
        """Append one message; returns once it is durable.

        Args:
            value: bytes, or what the producer's `value_type` says; None for a delete marker.
            key: equal keys go to one partition; None takes the next partition in turn. At most 64 KiB.
            headers: pairs of a text and bytes, kept in order with duplicates; at most 64, together 32 KiB.
            partition: overrides the choice by key.
            timestamp_ms: milliseconds since 1970 UTC; default now.

        Cancellation: it may still be applied, whole.

        Raises:
            ConfigError: something is of a wrong type, or out of its range; nothing was sent.
            NotStarted, ProducerClosed: the producer is not open.
            TopicNotFound: the topic, or the partition of it, is not there any more.
            UnencodableValue: it is none of `value_type`, or its encoder failed; nothing was sent.
            MessageTooLarge: above the topic's limit; names both sizes.
            OutcomeUnknown: it may or may not have been written.
            LogFull, LogBusy, LogUnavailable: it was not written.
        """
        outgoing = Outgoing(value, key, headers, partition, timestamp_ms)
        info, (message,) = await self._encode_now([outgoing])
        try:
            receipts = await self._append(message.partition, [message])
        except TopicNotFound as error:
            (message,) = await self._encode_again(info, [(0, outgoing)], error)
            receipts = await self._append(message.partition, [message])
        return receipts[0]

    async def send_many(self, messages: Sequence[T | Outgoing[T]]) -> list[Receipt]:
        """Append several messages; one receipt each, in the order given (P8, P9). An empty call does nothing (P3).

        They are split by partition and cut into batches of at most 1,000 records and 256 KiB, one after another. Many
        are encoded a part in each turn of the event loop, all of them before the first one is sent.

        Cancellation: while they are being encoded nothing was sent, but when that is done anew for a topic that was
        created again (K57).

        Args:
            messages: values, or `Outgoing` for those with a key, headers, a partition or a time.

        Raises:
            UnencodableValue, MessageTooLarge, ConfigError: one of them is refused; nothing was sent.
            NotStarted, ProducerClosed: the producer is not open.
            SendFailed: a batch failed; it holds the receipts so far and the messages that were not written (P11).
        """
        _check_messages(messages)
        outgoing = [_outgoing(message) for message in messages]
        info, encoded = await self._encode_now(outgoing)
        receipts: dict[int, Receipt] = {}
        try:
            try:
                await self._append_all(encoded, receipts)
            except TopicNotFound as error:
                left = [(index, message) for index, message in enumerate(outgoing) if index not in receipts]
                await self._append_all(await self._encode_again(info, left, error), receipts)
        except Exception as error:  # of a partitioner too, which is asked again for another topic
            unsent = [message for index, message in enumerate(outgoing) if index not in receipts]
            raise SendFailed(
                f"{len(unsent)} of {len(outgoing)} messages for {self._topic!r} were not confirmed: {error}",
                topic=self._topic,
                unsent=unsent,
                receipts=[receipts[index] for index in sorted(receipts)],
            ) from error
        return [receipts[index] for index in range(len(outgoing))]

    async def _append_all(self, encoded: Sequence[_Encoded], receipts: dict[int, Receipt]) -> None:
        """Append batch by batch; `receipts` gets those of each by the places of its messages."""
        for batch in self._batches(encoded):
            answers = await self._append(batch[0].partition, batch)
            receipts.update((message.place, answer) for message, answer in zip(batch, answers, strict=True))

    async def _encode_now(self, messages: Sequence[Outgoing[T]]) -> tuple[TopicInfo, list[_Encoded]]:
        """Encode all of a call for the topic as it was a short time ago; it may have grown since (K56).

        Sends that begin while one looks, or encodes, wait behind it, so that they reach the log in the order in which
        they began: whoever comes out of here is not interrupted before its first batch is handed over.
        """
        info, placed = self._open(), list(enumerate(messages))
        is_short = len(messages) <= PART_MESSAGES
        if is_short and not self._front.locked() and not self._is_to_look(info, messages):
            return info, await self._encode_all(info, placed)
        async with self._front:
            info = self._info or info
            if self._is_to_look(info, messages):
                info, silence = await self._ask(info)
                if silence is not None and any(_is_beyond(message.partition, info) for message in messages):
                    raise silence  # it may be there by now; what else is wrong the send that follows says
            return info, await self._encode_all(info, placed)

    async def _encode_again(
        self, info: TopicInfo, placed: Sequence[tuple[int, Outgoing[T]]], error: TopicNotFound
    ) -> list[_Encoded]:
        """Encode for the topic that took the place of the one that a send went by, what was not appended there (K57).

        Raises:
            TopicNotFound: `error`, since there is none.
        """
        async with self._front:
            now = self._info or info
            if _histories(now) == _histories(info):  # else somebody else has looked meanwhile
                now, _ = await self._ask(info)
            if _histories(now) == _histories(info):
                raise error
            return await self._encode_all(now, placed)

    async def _ask(self, info: TopicInfo) -> tuple[TopicInfo, TarryError | None]:
        """What the log says of the topic; `info`, which is known, and why, when it does not say."""
        assert self._broker is not None
        began = anyio.current_time()
        silence: TarryError | None = None
        try:
            with anyio.fail_after(LOOK_S):
                info = self._info = await self._broker.describe_topic(self._topic)
        except TimeoutError:
            silence = LogUnavailable(f"nobody says how many partitions {self._topic!r} has; nothing was sent")
        except TarryError as error:
            silence = error
        self._looked_at = began
        return info, silence

    def _is_to_look(self, info: TopicInfo, messages: Sequence[Outgoing[T]]) -> bool:
        if anyio.current_time() - self._looked_at >= self._options.refresh_interval:
            return True
        return any(_is_beyond(message.partition, info) for message in messages)

    def _open(self) -> TopicInfo:
        if self._closed:
            raise ProducerClosed(f"the producer of {self._topic!r} is shut down; make a new one with client.producer()")
        if self._info is None:
            raise NotStarted(
                f"the producer of {self._topic!r} is not started; use `async with client.producer(...)`"
            ) from self._cause
        self._home.check(self)
        return self._info

    async def _encode_all(self, info: TopicInfo, placed: Sequence[tuple[int, Outgoing[T]]]) -> list[_Encoded]:
        """Encode messages, each with its place in the call.

        An encoder of a user may be slow: what does not fit into one turn lets others have theirs (K91).
        """
        encoded: list[_Encoded] = []
        for place, message in placed:
            if encoded and len(encoded) % PART_MESSAGES == 0:
                await anyio.lowlevel.checkpoint()
            encoded.append(self._encode(info, place, message))
        return encoded

    def _encode(self, info: TopicInfo, index: int, given: Outgoing[T]) -> _Encoded:
        message = self._with_bytes(given, index)
        _check_message(message)
        count = len(info.partitions)
        timestamp_ms = self._clock_ms() if message.timestamp_ms is None else message.timestamp_ms
        record = encode_record(message.value, message.key, message.headers, timestamp_ms)
        if len(record) > info.max_record_bytes:
            raise MessageTooLarge(
                f"the message has {len(record)} bytes encoded, topic {info.name!r} allows {info.max_record_bytes}; "
                "send less, or create the topic with a larger max_record_bytes",
                size=len(record),
                limit=info.max_record_bytes,
            )
        return _Encoded(index, self._choose(message, count), record, timestamp_ms)

    def _with_bytes(self, message: Outgoing[Any], index: int) -> Outgoing:
        """The value encoded; a delete marker stays one (K76)."""
        encode, value = self._encode_value, message.value
        if encode is None or value is None:
            return message
        try:
            encoded = encode(value)
            if not isinstance(encoded, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]  # users' encoders
                raise TypeError(f"the encoder returned {type(encoded).__name__} instead of bytes")
        except NotOfType as error:
            raise self._unencodable(index, value, "is none of value_type", error.reason) from error.reason
        except Exception as error:
            raise self._unencodable(index, value, "was not encoded, since its encoder failed", error) from error
        return message._replace(value=encoded)

    def _unencodable(self, index: int, value: object, what: str, cause: Exception) -> UnencodableValue:
        said = " ".join(str(cause).split())
        return UnencodableValue(
            f"message {index} of this call, for topic {self._topic!r}: its value, of type "
            f"{type(value).__qualname__}, {what} ({type(cause).__name__}: {said[:CAUSE_TEXT]}); nothing was sent",
            topic=self._topic,
            value=value,
        )

    def _choose(self, message: Outgoing, count: int) -> int:
        """A custom partitioner wins over everything; then the call's partition, the key, the next in turn (P4)."""
        if self._partitioner is not None:
            return _check_partition(
                self._partitioner(message.key, message.value, count), count, "the partitioner chose "
            )
        if message.partition is not None:
            return _check_partition(message.partition, count, "partition=")
        if count == 1:
            return 0
        if message.key is not None:
            return partition_of(message.key, count)
        turn, self._turn = self._turn, self._turn + 1
        return turn % count

    def _batches(self, encoded: Sequence[_Encoded]) -> list[list[_Encoded]]:
        by_partition: dict[int, list[_Encoded]] = {}
        for message in encoded:
            by_partition.setdefault(message.partition, []).append(message)
        return [
            [messages[index] for index in cut]
            for messages in by_partition.values()
            for cut in cut_batches(
                [len(message.record) for message in messages], count_max=BATCH_RECORDS_MAX, bytes_max=BATCH_BYTES_MAX
            )
        ]

    async def _append(self, partition: int, messages: Sequence[_Encoded]) -> list[Receipt]:
        assert self._broker is not None
        broker, at = self._broker, TopicPartition(self._topic, partition)
        batch = seal([message.record for message in messages], [message.timestamp_ms for message in messages])
        stamp = self._stamp(partition) if broker.capabilities.idempotent_append else None
        lost: list[OutcomeUnknown] = []

        def is_tried_again(error: BaseException) -> bool:
            if stamp is not None and isinstance(error, OutcomeUnknown):
                lost.append(error)
                return True
            return isinstance(error, LogBusy)

        try:
            first = await attempt(
                lambda: broker.append(at, batch, producer=stamp),
                again=is_tried_again,
                retries=self._options.retries,
                spacing_s=self._options.retry_spacing,
            )
        except TarryError as error:
            if lost and error.applied == "no":  # that much is said of the last attempt only
                raise OutcomeUnknown(f"{lost[0]}; when it was tried again: {error}") from error
            raise
        if len(messages) == 1:
            return [first]
        return [
            Receipt(first.topic, first.partition, Offset(first.offset + index), first.duplicate)
            for index in range(len(messages))
        ]

    def _stamp(self, partition: int) -> ProducerStamp:
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + 1
        return ProducerStamp(self._id, sequence)


def _check_messages(messages: object) -> None:
    if _is_no_list(messages, Iterable):
        raise ConfigTypeError(f"send_many takes a list of messages, not {type(messages).__name__}; for one use send")


def _is_no_list(given: object, kind: type[object]) -> bool:
    """It has no items, or others than one would think."""
    return not isinstance(given, kind) or isinstance(given, (str, bytes, bytearray, Outgoing, Mapping))


def _outgoing(message: T | Outgoing[T]) -> Outgoing[T]:
    return cast("Outgoing[T]", message) if isinstance(message, Outgoing) else Outgoing(message)


def _histories(info: TopicInfo) -> list[HistoryId]:
    return [part.history for part in info.partitions]


def _is_beyond(partition: int | None, info: TopicInfo) -> bool:
    return _is_int(partition) and partition is not None and partition >= len(info.partitions)


def _check_message(message: Outgoing) -> None:
    _check_bytes("value", message.value)
    _check_bytes("key", message.key)
    if message.key is not None and len(message.key) > KEY_BYTES_MAX:
        raise MessageTooLarge(
            f"the key has {len(message.key)} bytes; at most {KEY_BYTES_MAX} are allowed",
            size=len(message.key),
            limit=KEY_BYTES_MAX,
        )
    if message.headers != ():
        _check_headers(message.headers)
    time = message.timestamp_ms
    if time is not None and not _is_int(time):
        raise ConfigTypeError(f"timestamp_ms={time!r} is not an int of milliseconds since 1970 UTC")
    if time is not None and not TIMESTAMP_MS_MIN <= time <= TIMESTAMP_MS_MAX:
        raise ConfigError(
            f"timestamp_ms={time} lies outside of the years 1 to 9999 ({TIMESTAMP_MS_MIN} to {TIMESTAMP_MS_MAX}); "
            "it counts milliseconds since 1970 UTC"
        )


def _check_bytes(what: str, given: object) -> None:
    if given is None or isinstance(given, bytes):
        return
    if isinstance(given, str):
        raise ConfigTypeError(f"{what} must be bytes, not str ({given[:40]!r}); use text.encode()")
    kind = type(given).__name__
    hint = "give it to send_many" if isinstance(given, Outgoing) else "encode it first"
    raise ConfigTypeError(f"{what} must be bytes or None, not {kind}; {hint}")


def _check_headers(headers: Collection[Header]) -> None:
    """What is no list would be written as it is, and nobody could read the message."""
    if _is_no_list(headers, Collection):
        raise ConfigTypeError(
            f"headers={headers!r} must be a list of pairs (str, bytes), not {type(headers).__name__}; "
            "leave it out for none, and pass list(headers.items()) for a dict"
        )
    if len(headers) > HEADERS_MAX:
        raise ConfigError(f"{len(headers)} headers; at most {HEADERS_MAX} are allowed")
    size = sum(_header_size(header) for header in headers)
    if size > HEADERS_BYTES_MAX:
        raise MessageTooLarge(
            f"the headers have {size} bytes together; at most {HEADERS_BYTES_MAX} are allowed",
            size=size,
            limit=HEADERS_BYTES_MAX,
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _header_size(header: Header) -> int:
    if not _is_pair(header):
        raise ConfigTypeError(f"a header must be a pair (str, bytes), not {header!r}")
    name, value = header
    check_text("the name of a header", name)
    if value is None:  # pyright: ignore[reportUnnecessaryComparison]  # users' input
        raise ConfigTypeError(f"the value of header {name!r} must be bytes, not None")
    _check_bytes(f"the value of header {name!r}", value)
    return len(name.encode()) + len(value)


def _is_pair(header: object) -> bool:
    if not isinstance(header, tuple):
        return False
    parts = cast("tuple[object, ...]", header)
    return len(parts) == 2 and isinstance(parts[0], str)


def _check_partition(partition: int, count: int, who: str) -> int:
    if not _is_int(partition):
        raise ConfigTypeError(f"{who}{partition!r}, which is not an int")
    if not 0 <= partition < count:
        raise ConfigError(f"{who}{partition}; the topic has {count} partitions, numbered 0 to {count - 1}")
    return partition
