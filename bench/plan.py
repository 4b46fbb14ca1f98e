"""Which parts there are, how much each case does, and the budgets that concern the embedded log."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.kafka import cluster
from bench.model import Case, Fixture, Judgement, Options, Part
from bench.runner import call


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done."""

    rounds: int
    messages: int
    small_rows: int
    append_s: float
    wakes: int
    consumers: int
    park_s: float
    partitions: int


FULL = Scale(
    rounds=3, messages=200_000, small_rows=20_000, append_s=1.2, wakes=400, consumers=1000, park_s=6.0, partitions=1000
)
QUICK = Scale(
    rounds=1, messages=40_000, small_rows=4000, append_s=0.2, wakes=50, consumers=50, park_s=0.5, partitions=50
)

FOLDER = "folder"


def parts(scale: Scale) -> list[Part]:
    """All of them."""
    return [_read(scale), _append(scale), _wake(scale), _park(scale), _group(scale), _leaders(scale)]


def _read(scale: Scale) -> Part:
    file = _file("log", scale.messages, senders=0)
    few, many = _file("few", scale.small_rows, senders=1), _file("many", scale.messages // 4, senders=64)
    memory = _place()
    kafka = cluster(scale.messages)
    cases = (  # what is compared stands together, so that a noisy moment hits both
        _reading("async for", file),
        Case("aiokafka async for", "kafka:aiokafka_iterate", {}, kafka),
        _reading("async for", file, "trio", backend="trio"),
        _reading("async for", memory, "resident", messages=scale.messages),
        _reading("poll, five fields", file),
        Case("confluent consume(500), five fields", "kafka:confluent_consume", {"fields": True}, kafka),
        _reading("poll, five fields", file, "trio", backend="trio"),
        _reading("poll, five fields", memory, "resident", messages=scale.messages),
        Case("aiokafka getmany, five fields", "kafka:aiokafka_getmany", {"fields": True}, kafka),
        _reading("poll, values", file),
        Case("confluent consume(500)", "kafka:confluent_consume", {}, kafka),
        _reading("poll, values", memory, "resident", messages=scale.messages),
        Case("aiokafka getmany", "kafka:aiokafka_getmany", {}, kafka),
        Case("confluent poll", "kafka:confluent_poll", {}, kafka),
        _reading("poll", file),
        _reading("async for, five fields", file),
        _reading("async for", many, "rows of 64 senders", passes=2),
        _reading("async for", few, "rows of one message", passes=4),
    )
    judgements = (
        Judgement("async for", ("async for", "rate"), at_least=1_500_000),
        Judgement("async for, trio", ("async for, trio", "rate"), at_least=1_500_000),
        Judgement("async for, resident", ("async for, resident", "rate"), at_least=1_500_000),
        _rates("async for", "aiokafka async for", 6),
        _rates("async for, trio", "aiokafka async for", 6),
        _rates("async for", "confluent poll"),
        Judgement("poll, values", ("poll, values", "rate"), at_least=2_000_000),
        Judgement("poll, values, resident", ("poll, values, resident", "rate"), at_least=2_000_000),
        _rates("poll, values", "confluent consume(500)"),
        _rates("poll, five fields", "confluent consume(500), five fields", 1),
        _rates("poll, five fields, trio", "confluent consume(500), five fields", 1),
        _rates("poll, five fields, resident", "confluent consume(500), five fields", 1),
        _rates("poll, five fields", "aiokafka getmany, five fields"),
        _costs("CPU: aiokafka async for / async for", "aiokafka async for", "async for"),
        _costs("CPU: confluent / poll, five fields", "confluent consume(500), five fields", "poll, five fields"),
    )
    about = (
        f"{scale.messages:,} messages: values of 200 bytes, keys of 10, batches of 1,000; from a warm file or resident"
    )
    return Part("read", about, scale.rounds, cases, judgements)


def _append(scale: Scale) -> Part:
    place = _place()
    cases = (
        Case("sqlite3, one commit per message", "appending:commit_each", {"seconds": scale.append_s}, place),
        *(
            Case(name, "appending:concurrent", {"senders": senders, "backend": loop, "seconds": scale.append_s}, place)
            for name, senders, loop in (
                ("1 sender", 1, "asyncio"),
                ("64 senders", 64, "asyncio"),
                ("256 senders", 256, "asyncio"),
                ("64 senders, trio", 64, "trio"),
            )
        ),
    )
    baseline = "sqlite3, one commit per message"
    judgements = (
        _rates("1 sender", baseline),
        _rates("64 senders", baseline, 15),
        _rates("64 senders, trio", baseline, 15),
        _rates("256 senders", baseline),
    )
    return Part("append", "one message of 200 bytes per send, durability full", scale.rounds, cases, judgements)


def _wake(scale: Scale) -> Part:
    place = _place()
    normal = {"durability": "normal", "messages": scale.wakes}
    waits = {"messages": scale.wakes // 5, "backend": "asyncio"}
    some = {**normal, **waits}
    cases = (
        Case("normal", "waking:deliver", {**normal, "backend": "asyncio"}, place),
        Case("normal, trio", "waking:deliver", {**normal, "backend": "trio"}, place),
        Case("full", "waking:deliver", {**normal, "durability": "full", "backend": "asyncio"}, place),
        Case("normal, one of 1,000 partitions", "waking:deliver", {**some, "partitions": 1000}, place),
        Case("readiness wait, one partition", "waking:answer", {**waits, "partitions": 1}, place),
        Case("readiness wait, 1,000 partitions", "waking:answer", {**waits, "partitions": 1000}, place),
    )
    judgements = (
        _delays("readiness wait, 1,000 partitions", "readiness wait, one partition", "answer_p50_us", at_most=2),
        _delays("normal, one of 1,000 partitions", "normal", "deliver_p50_us"),
    )
    return Part("wake", "from send to whoever waits, in one process", scale.rounds, cases, judgements)


def _park(scale: Scale) -> Part:
    options = {"consumers": scale.consumers, "seconds": scale.park_s, "backend": "asyncio"}
    count = f"{scale.consumers:,}"
    deadline, default = f"{count} parked, max_wait=30", f"{count} parked, max_wait=5"
    cases = (
        Case(deadline, "parking:wait", {**options, "max_wait": 30.0}, _place()),
        Case(default, "parking:wait", {**options, "max_wait": 5.0}, _place()),
    )
    judgements = (
        Judgement(f"CPU, {deadline}", (deadline, "cpu_percent"), at_most=1),
        Judgement(f"CPU, {default}", (default, "cpu_percent")),
        Judgement("memory per parked consumer, KiB", (deadline, "consumer_kib"), at_most=20),
        Judgement(
            "commit elsewhere, all parked / nobody", (deadline, "commit_parked_us"), (deadline, "commit_alone_us")
        ),
    )
    return Part("park", f"{count} consumers in poll(max_wait=...), nothing comes", 1, cases, judgements)


def _group(scale: Scale) -> Part:
    place = _place()
    modes = ("disabled, nothing stored", "disabled, each batch stored", "finished", "interval", "on_poll")
    cases = (
        *(
            Case(f"{how}, {mode}", "grouping:commit", {"mode": mode, "messages": scale.messages, "how": how}, place)
            for how in ("async for", "poll")
            for mode in modes
        ),
        *(
            Case(f"trickle, {mode}", "grouping:gather", {"mode": mode, "partitions": 100}, place)
            for mode in ("finished", "on_poll")
        ),
        Case("rebalance", "grouping:rebalance", {"partitions": scale.partitions, "members": 10}, place),
    )
    plain = "async for, disabled, nothing stored"
    judgements = (
        *(_rates(f"async for, {mode}", plain) for mode in modes[1:]),
        Judgement("requests for 100 messages over 100 partitions", ("trickle, finished", "requests"), at_most=12),
        Judgement("the same, commit-on-poll", ("trickle, on_poll", "requests")),
    )
    about = "a member of a group in each commit mode; a trickle over 100 partitions; the tenth member joins and leaves"
    return Part("group", about, scale.rounds, cases, judgements)


def _leaders(scale: Scale) -> Part:
    many = scale.partitions
    quiet, busy = [_minute(at, "0") for at in (1, 100, many)], [_minute(at, "1") for at in (1, 100, many)]
    trickle = [
        Case(f"trickle, {mode}, 3 leaders", "leading:gather", {"mode": mode, "partitions": 100, "leaders": 3})
        for mode in ("finished", "on_poll")
    ]
    others = [_minute(many, how, leaders) for leaders in (1, 12) for how in ("0", "1")]
    cases = (*quiet, *busy, _minute(many, "10"), *others, _minute(many, "gone"), *trickle)

    def grows(what: list[Case], metric: str, at_most: float | None = None) -> Judgement:
        text = f"{metric}: {what[2].name} / 100"
        return Judgement(text, (what[2].name, metric), (what[1].name, metric), at_most=at_most)

    judgements = (
        grows(quiet, "requests", at_most=1.1),
        grows(busy, "requests", at_most=1.1),
        grows(quiet, "cpu_ms", at_most=1.3),
        grows(busy, "cpu_ms", at_most=1.3),
        Judgement("requests for 100 messages over 100 partitions", (trickle[0].name, "requests"), at_most=12),
        Judgement("the same, commit-on-poll", (trickle[1].name, "requests")),
    )
    about = "a virtual minute of one consumer; a trickle over 100 partitions"
    return Part("leaders", about, scale.rounds, cases, judgements)


def _minute(partitions: int, busy: str, leaders: int = 3) -> Case:
    what = {"0": "quiet", "gone": "a leader gone"}.get(busy, f"{busy} busy")
    name = f"{partitions:,} partitions, {leaders} leader{'s' * (leaders > 1)}, {what}"
    return Case(name, "leading:minute", {"partitions": partitions, "leaders": leaders, "busy": busy})


def _reading(how: str, where: Fixture, remark: str = "", **options: int | str) -> Case:
    """From a file, or (in the folder) from the memory of a log that was just written."""
    measure = "reading:from_memory" if where.name == FOLDER else "reading:from_file"
    name = f"{how}, {remark}" if remark else how
    return Case(name, measure, {"how": how, "backend": "asyncio", **options}, where)


def _rates(ours: str, theirs: str, at_least: float | None = None) -> Judgement:
    return Judgement(f"{ours} / {theirs}", (ours, "rate"), (theirs, "rate"), at_least)


def _costs(text: str, theirs: str, ours: str) -> Judgement:
    """Says more than rates do while others use the machine."""
    return Judgement(text, (theirs, "cpu_us"), (ours, "cpu_us"))


def _delays(ours: str, theirs: str, metric: str, at_most: float | None = None) -> Judgement:
    return Judgement(f"{ours} / {theirs}", (ours, metric), (theirs, metric), at_most=at_most)


def _file(name: str, messages: int, senders: int) -> Fixture:
    """A log that was written and closed."""

    @contextmanager
    def opened(folder: Path) -> Generator[Options]:
        path = str(folder / f"{senders}.db")
        yield {"path": path, **call("reading:fill", {"path": path, "messages": messages, "senders": senders})}

    return Fixture(name, opened)


def _place() -> Fixture:
    """Just the folder."""

    @contextmanager
    def opened(folder: Path) -> Generator[Options]:
        yield {"folder": str(folder)}

    return Fixture(FOLDER, opened)
