"""One simulated history: a log behind a bad network, three members, a producer, and everything that happens to them.

A seed decides what a history is about (`Plan`) and then, step by step, what happens. It ends in peace: faults stop,
everybody goes on for a while or stops at once, and a last consumer of the same identity reads what is left. Nothing is
judged here (`checkers`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio
import anyio.abc

from tarry._core.autocommit import AFTER_HANDLER, AT_HAND_OVER
from tarry._wire.batch import decode
from tarry._wire.groups import decode_group
from tarry.abc import GrowTopic, Leader, Query, SaveGroup, StoreOffset, TopicState
from tarry.abc import Stored as Answer
from tarry.client import Client
from tarry.config import LogOptions, TopicOptions
from tarry.consumer.consumer import Consumer
from tarry.errors import TarryError
from tarry.producer.producer import Outgoing, Producer
from tarry.testing import (
    Backend,
    Call,
    Damage,
    FaultKind,
    FaultLayer,
    Faults,
    FaultyLog,
    Operation,
    delay,
    hook,
    run_virtual,
)
from tarry.testing.faults import ABOUT_PARTITIONS
from tarry.testing.leaders import Leaders
from tarry.testing.scripted import SessionOperation
from tarry.types import HistoryId, Offset, Origin, Ownership, Position, Segment, TopicPartition
from tests.simulation.history import (
    Acted,
    Broken,
    Fault,
    Grown,
    History,
    Led,
    Mode,
    Quiet,
    Shared,
    Span,
    Stalled,
    Stored,
)
from tests.simulation.members import BAD, NAME, TOPIC, Member
from tests.simulation.watched import watched
from tests.unit.consumer.rig import count_tasks

PARTITIONS = 8
MEMBERS = 3
GRACE = 1.0
"""Seconds after which a sender gives up; 10 in earnest (C4)."""
PATIENCE = 40.0
"""No stall: so many seconds after the last fault, and after the last message that was finished, all is done."""
AGE_MAX = 300.0
"""No history lasts longer, in virtual seconds."""
MODES: dict[Mode, int] = {
    "disabled": 3,
    "finished": 3,
    "interval": 2,
    "on_poll": 20,
    "each_message": 2,
    "each_batch": 1,
    "every_nth": 1,
    "after_each": 3,
    "after_nth": 2,
    "after_head": 2,
}
AT_LEAST_ONCE: frozenset[Mode] = frozenset(("disabled", "finished", "after_each", "after_nth", "after_head"))
"""Modes that lose nothing, whatever happens; with a timer beside them they do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a history is about."""

    seed: int
    mode: Mode
    is_group: bool
    is_static: bool
    faults: Faults
    bursts: int
    actions: int
    runs_on: bool
    leaders: int
    has_timer: bool
    spoils: bool
    grows: int
    is_typed: bool

    @property
    def follows(self) -> bool:
        """One member without a group reads the whole topic, with whatever partitions that gains."""
        return bool(self.grows) and not self.is_group

    @property
    def loses_nothing(self) -> bool:
        """See `AT_LEAST_ONCE`."""
        return self.mode in AT_LEAST_ONCE and not self.has_timer

    @classmethod
    def of(cls, seed: int) -> Plan:
        """Draw one. What was thought of later is drawn apart, so that most seeds mean what they meant before."""
        chance, apart = random.Random(seed), random.Random(f"{seed} has more")
        share = chance.choice
        faults = Faults(
            delay=share([0.0, 0.0, 0.1, 0.4]),
            latency=share([0.02, 0.2]),
            sync_latency=share([0.0, 0.0, 0.05]),
            lose_request=share([0.0, 0.0, 0.02, 0.1]),
            lose_reply=share([0.0, 0.0, 0.02, 0.1]),
            not_accepted=share([0.0, 0.02, 0.1]),
            capacity=share([0.0, 0.02, 0.1]),
            grace=GRACE,
        )
        is_group = chance.random() < 0.7
        (mode,) = chance.choices(list(MODES), list(MODES.values()))
        return cls(
            seed=seed,
            mode=mode,
            is_group=is_group,
            is_static=is_group and chance.random() < 0.2,
            faults=faults,
            bursts=chance.randint(8, 16),
            actions=chance.randint(2, 6),
            runs_on=chance.random() < 0.4,
            leaders=share([1, 1, 1, 2, 3, 4]),
            has_timer=mode in AT_HAND_OVER | AFTER_HANDLER and chance.random() < 0.3,
            spoils=apart.random() < 0.25,
            grows=apart.choice([1, 2, 5]) if apart.random() < 0.2 else 0,
            is_typed=apart.random() < 0.2,
        )

    def partitions_of(self, member: int) -> list[int]:
        """Standalone members share the partitions out among themselves; one that follows the topic has all."""
        if self.follows:
            return list(range(PARTITIONS))
        return list(range(member, PARTITIONS, MEMBERS))


class World:
    """See the module."""

    def __init__(self, plan: Plan, log: FaultyLog, history: History) -> None:
        self.plan = plan
        self.log = log
        self.history = history
        self.is_over = False
        self.chance = random.Random(plan.seed * 10 + 9)
        self._apart = random.Random(f"{plan.seed} goes on")
        self._finished: list[set[int]] = [set() for _ in range(PARTITIONS + plan.grows)]
        self._over = anyio.Event()
        self._writer = FaultLayer(log)
        self.members = [Member(self, number) for number in range(1 if plan.follows else MEMBERS)]
        self.shared: Shared | None = None
        self._grown = anyio.Event()
        store: Any = log.store
        self._store_for_real: Callable[[StoreOffset], Answer] = store._store
        store._store = self._watch_store
        self._save_for_real: Callable[[SaveGroup], None] = store._save
        store._save = self._watch_save
        self._grow_for_real: Callable[[GrowTopic], TopicState] = store._grow
        store._grow = self._watch_grow

    # -------------------------------------------------------------------------------------------- the story

    async def run(self) -> None:
        """Tell it from the beginning to the end."""
        tasks_before = count_tasks()
        await self._writer.create_topic(TOPIC, TopicOptions(partitions=PARTITIONS), exist_ok=False)
        async with (
            self._writer.client() as client,
            client.producer(TOPIC, retries=4, retry_spacing=0.2) as producer,
            anyio.create_task_group() as lives,
        ):
            if self.plan.grows:
                await self._begin_everywhere(producer)
            self.log.faults = self.plan.faults
            for member in self.members:
                lives.start_soon(member.live)
            async with anyio.create_task_group() as stories:
                stories.start_soon(self._write, producer)
                stories.start_soon(self._act, stories)
                if self.plan.spoils:
                    stories.start_soon(self._spoil)
                if self.plan.grows:
                    stories.start_soon(self._grow, client, producer, stories)
            self._make_peace()
            if self.plan.runs_on:
                await self._until(self._is_done)
            self.is_over = True
            self._over.set()
            for member in self.members:
                await member.stop("the world is over")
        if self._missing() or not self.plan.runs_on:
            await self._read_the_rest()
        self.history.add(
            Quiet(
                anyio.current_time(),
                self.log.pump.parked,
                count_tasks() - tasks_before,
                self.shared.members if self.shared else [],
                self._ends(),
                self._values(),
            )
        )

    def _make_peace(self) -> None:
        """No more faults."""
        self.history.add(Acted(anyio.current_time(), "peace"))
        self.log.faults = Faults(grace=GRACE)
        self.log.restart()
        if self.log.leaders is not None:
            for number in range(self.plan.leaders):
                self.log.leaders.come(number)
            self._led()
        for member in self.members:
            member.layer.heal()

    async def _begin_everywhere(self, producer: Producer) -> None:
        """Something is stored for each partition: the start rule decides about none but those that come later."""
        await producer.send_many([Outgoing(b"first of %d" % at, partition=at) for at in range(PARTITIONS)])
        await self._read_the_rest(MEMBERS + 1)

    async def _read_the_rest(self, number: int = MEMBERS) -> None:
        """A member alone and without faults: what was not finished comes, and that is all."""
        last = Member(self, number)
        last.partitions = self.partitions
        await last.read_the_rest()

    # -------------------------------------------------------------------------------------------- waiting

    async def pause(self, seconds: float) -> None:
        """Sleep, but no longer than the world lasts."""
        with anyio.move_on_after(seconds):
            await self._over.wait()

    def finished(self, spans: Sequence[Span]) -> None:
        """Somebody has finished messages, or said so."""
        for span in spans:
            self._finished[span.partition].update(span.offsets)

    def is_read(self, consumer: Consumer) -> bool:
        """The consumer has been given everything there is."""
        return len(consumer.assignment) == len(self.partitions) and all(
            consumer.position(number) == end for number, end in enumerate(self._ends())
        )

    async def _until(self, is_true: Callable[[], bool]) -> None:
        """Wait as long as messages are finished; slow bodies and handlers that fail may take their time."""
        finished, since = 0, anyio.current_time()
        while not is_true():
            await anyio.sleep(0.2)  # what is waited for is what a user can see
            now, before, finished = anyio.current_time(), finished, sum(map(len, self._finished))
            since = now if finished > before else since
            if now - since >= PATIENCE:
                self.history.add(Stalled(now, self._missing()))
                return

    def _is_done(self, but: Collection[int] = ()) -> bool:
        """All messages are finished, or, where a mode may lose some, stored or delivered with nothing in hand."""
        if self.plan.is_group and not self._is_balanced():
            return False
        if self.plan.loses_nothing:
            return all(span.partition in but for span in self._missing())
        if any(member.run is not None and member.run.hand for member in self.members):
            return False
        if self.plan.mode in AT_HAND_OVER | AFTER_HANDLER or self.plan.mode == "on_poll":
            return self._is_read_by_all(but)  # what a pause brought back is stored with the next fetch, or at the end
        stored = [self.stored(number) for number in self.partitions]
        ends = enumerate(self._ends())
        return all(stored[number] == end - 1 for number, end in ends if end and number not in but)

    def _is_read_by_all(self, but: Collection[int]) -> bool:
        """Whoever reads a partition has come to its end."""
        ends = self._ends()
        consumers = [member.consumer for member in self.members if member.run and not member.run.is_closed]
        held = [(each, at) for each in consumers if each for at in each.assignment if at.partition not in but]
        return len(held) == len(ends) - len(but) and all(ends[at.partition] == each.position(at) for each, at in held)

    def _is_balanced(self) -> bool:
        """Each partition is owned once, and everybody knows what is his."""
        consumers = [member.consumer for member in self.members if member.run and not member.run.is_closed]
        held = sorted(at.partition for consumer in consumers if consumer for at in consumer.assignment)
        shared = self.shared
        return (
            held == self.partitions
            and shared is not None
            and not shared.revoking
            and len(shared.members) == len(consumers)
            and all(len(consumer.assignment) >= len(held) // len(consumers) for consumer in consumers if consumer)
        )

    def _missing(self) -> list[Span]:
        """The first message of each partition that nobody has finished, and the last one there is."""
        first = [next((o for o in range(end) if o not in self._finished[n]), end) for n, end in enumerate(self._ends())]
        return [
            Span(n, begin, end - 1)
            for n, (begin, end) in enumerate(zip(first, self._ends(), strict=True))
            if begin < end
        ]

    # -------------------------------------------------------------------------------------------- who acts

    async def _write(self, producer: Producer) -> None:
        """Messages come in bursts, most of them small, with pauses in between."""
        number = 0
        for _ in range(self.plan.bursts):
            await anyio.sleep(self.chance.choice([0.0, 0.0, 0.05, 0.2]))
            at, count = self.chance.randrange(PARTITIONS), self.chance.choice([1, 1, 2, 5, 9])
            values = [Outgoing(self._value(value), partition=at) for value in range(number, number + count)]
            number += count
            try:
                await producer.send_many(values)
            except TarryError as error:
                self.history.add(Acted(anyio.current_time(), f"failed to write: {error}"))

    def _value(self, number: int) -> bytes:
        """Where members read typed values, a few are none."""
        is_bad = self.plan.is_typed and self._apart.random() < 0.05
        return BAD + b"%d" % number if is_bad else b"%d" % number

    async def _act(self, tasks: anyio.abc.TaskGroup) -> None:
        """Stops, cancels, failures, kills, cuts, crashes and storms; many of them while a request is out."""
        for _ in range(self.plan.actions):
            await anyio.sleep(self.chance.choice([0.02, 0.2, 0.4]))
            member = self.chance.choice(self.members)
            actions = ACTIONS | (ACTIONS_OF_LEADERS if self.log.leaders is not None else {})
            actions |= ACTIONS_OF_GROUPS if self.plan.is_group else {}
            (action,) = self.chance.choices(list(actions), list(actions.values()))
            if self.chance.random() < 0.8:
                await self._opportunity(member, action)
            self.history.add(Acted(anyio.current_time(), action, member.name))
            tasks.start_soon(getattr(self, f"_{action}"), member)

    async def _opportunity(self, member: Member, action: str) -> None:
        """Wait until a member has work in hand, or until it asks for something, which then takes its time."""
        aims: dict[Operation | Literal["work", "hook"], int] = {"poll": 5, "work": 2, "store_offset": 2}
        if action in ACTIONS_OF_LEADERS:
            aims |= {"wait_ready": 5}
        elif self.plan.is_group:
            aims |= {"release": 5, "open_session": 3}
        if action in ACTIONS_OF_GROUPS:
            aims = {"poll": 5, "store_offset": 4, "release": 6, "hook": 6, "work": 2}
        (aim,) = self.chance.choices(list(aims), list(aims.values()))
        with anyio.move_on_after(0.6):
            if aim == "work":
                await member.took.wait()
            elif aim == "hook":
                await member.hooked.wait()
            else:
                await self._slowly(member, aim)

    async def _slowly(self, member: Member, operation: Operation) -> None:
        """Wait for a request, and hold it, or its reply, up for a while; with a join also what the others read."""
        begun = anyio.Event()
        rules = [(member, member.layer.script.on(operation, do=hook(lambda _: begun.set())))]
        slowed: list[tuple[Member, Operation]] = [(member, operation)]
        if operation == "open_session":
            slowed.extend((other, "poll") for other in self.members if other is not member)
        for each, what in slowed:
            late = delay(self.chance.choice([0.01, 0.1, 0.3]), reply=self.chance.random() < 0.6)
            rules.append((each, each.layer.script.every(what, do=late)))
        scripts = [(each.layer.script, rule) for each, rule in rules]
        try:
            await begun.wait()
        finally:
            for script, rule in scripts:
                script.remove(rule)

    async def _stop(self, member: Member) -> None:
        await member.stop("stopped")

    async def _cancel(self, member: Member) -> None:
        member.cancel()

    async def _fail(self, member: Member) -> None:
        member.fails_next = True

    async def _kill(self, member: Member) -> None:
        member.kill()

    async def _split(self, member: Member) -> None:
        layer, is_slow = member.layer, member.run is not None and member.run.is_slow
        layer.split()
        await anyio.sleep(3.0 if is_slow else self.chance.choice([0.1, 0.5, 2.0]))
        layer.heal()
        self.history.add(Acted(anyio.current_time(), "heal", member.name))

    async def _crash(self, _: Member) -> None:
        self.log.crash()
        await anyio.sleep(self.chance.choice([0.0, 0.1, 1.0]))
        self.log.restart()

    async def _storm(self, _: Member) -> None:
        stormy = replace(self.plan.faults, lose_request=0.0, lose_reply=0.0, not_accepted=0.3, capacity=0.3)
        self.log.faults = replace(stormy, damage=self.log.faults.damage)
        await anyio.sleep(self.chance.choice([0.3, 1.0]))
        self.log.faults = replace(self.plan.faults, damage=self.log.faults.damage)

    async def _spoil(self) -> None:
        """Some partitions are damaged for a while, or until all others are read: nobody waits for them (C111)."""
        await anyio.sleep(self._apart.choice([0.0, 0.2, 0.5]))
        numbers = self._apart.sample(range(PARTITIONS), self._apart.choice([1, 1, 3, PARTITIONS]))
        damage = Damage(
            self._apart.choice([0.5, 1.0, 1.0]),
            frozenset(TopicPartition(TOPIC, number) for number in numbers),
            self._apart.choice(DAMAGED),
        )
        self.log.faults = replace(self.log.faults, damage=damage)
        self.history.add(Acted(anyio.current_time(), "spoil"))
        if self._apart.random() < 0.5:
            await anyio.sleep(self._apart.choice([0.3, 1.5, 6.0]))
        else:
            await self._until(lambda: self._is_done(but=numbers))
        self.log.faults = replace(self.log.faults, damage=None)

    async def _pause(self, member: Member) -> None:
        """It pauses some of its partitions, or all."""
        chosen = member.stop_some()
        await anyio.sleep(self.chance.choice([0.1, 1.0]))
        member.go_on(chosen)

    async def _crash_soon(self) -> None:
        """Before or after a growth becomes durable, or just then."""
        if self._apart.random() < 0.8:
            await self._grown.wait()
        else:
            await anyio.sleep(self._apart.uniform(0.0, 0.1))
        self.history.add(Acted(anyio.current_time(), "crash"))
        self.log.crash()
        await anyio.sleep(self._apart.choice([0.0, 0.1]))
        self.log.restart()

    async def _grow(self, client: Client, producer: Producer, tasks: anyio.abc.TaskGroup) -> None:
        """The topic gains partitions while members read, and is written to at once: nothing there is skipped (K56)."""
        await anyio.sleep(self._apart.choice([0.1, 0.3, 0.6]))
        wanted = PARTITIONS + self.plan.grows
        if self._apart.random() < 0.5:
            tasks.start_soon(self._crash_soon)
        while len(self.partitions) < wanted:
            try:
                await client.grow_topic(TOPIC, wanted)
            except TarryError as error:
                self.history.add(Acted(anyio.current_time(), f"failed to grow: {error}"))
                await anyio.sleep(0.05)
        for burst in range(self.plan.grows * 2):
            at = PARTITIONS + burst % self.plan.grows
            values = [Outgoing(b"%d of %d in %d" % (number, burst, at), partition=at) for number in range(3)]
            try:
                await producer.send_many(values)
            except TarryError as error:
                self.history.add(Acted(anyio.current_time(), f"failed to write to new partitions: {error}"))
            await anyio.sleep(self._apart.choice([0.0, 0.05, 0.3]))

    # -- sessions

    async def _forget(self, member: Member) -> None:
        """The log takes a member that lives for dead, perhaps several times in a row."""
        for _ in range(self.chance.choice([1, 1, 3])):
            groups: Any = self.log.pump.groups
            for entry in groups._entries.values() if self.log.is_up else ():
                for session in member.layer.sessions:
                    seat = entry.seats.get(getattr(session.wrapped, "id", ""))
                    if seat is not None and seat.id in entry.group._members:
                        seat.touched = entry.group._members[seat.id].touched = entry.group._look_at = -1e9
            groups.tick(anyio.current_time())
            await anyio.sleep(self.chance.choice([0.05, 0.3]))

    async def _faint(self, member: Member) -> None:
        """A member gives no sign of life for a while, though all else that it asks is answered."""
        member.faint(wakes=False)
        await anyio.sleep(self.chance.choice([1.0, 2.0]))
        member.faint(wakes=True)

    # -- leaders

    @property
    def _leaders(self) -> Leaders:
        assert self.log.leaders is not None
        return self.log.leaders

    async def _move(self, _: Member) -> None:
        """Some partitions move, each to anybody."""
        self._move_to_others({*self.chance.sample(range(PARTITIONS), self.chance.choice([1, 3])), *self._fetched()})

    async def _shuffle(self, _: Member) -> None:
        """All leaders lose all they lead, as at a restart of the whole cluster."""
        self._move_to_others(range(PARTITIONS))

    async def _silence(self, _: Member) -> None:
        """A leader does not answer for a while; meanwhile the others may take over, and it comes back as a replica."""
        busy = [self._leaders.names.index(self._leader_of(partition)) for partition in self._fetched()]
        number = self.chance.choice(busy or range(self.plan.leaders))
        self._leaders.go(number)
        self._led()
        await anyio.sleep(self.chance.choice([0.1, 0.6, 1.5]))
        if self.chance.random() < 0.7:
            self._move_to_others(at for at in range(PARTITIONS) if self._leader_of(at) == self._leaders.names[number])
            await anyio.sleep(self.chance.choice([0.0, 0.5]))
        self._leaders.come(number)
        self._led()

    def _move_to_others(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            at = TopicPartition(TOPIC, partition)
            others = [n for n, name in enumerate(self._leaders.names) if name != self._leader_of(partition)]
            self._leaders.move(at, self.chance.choice(others))
        self._led()

    def _fetched(self) -> list[int]:
        """What committing fetches are out for."""
        calls = [call for _, call in self.history.out.values() if call.arguments.get("commit")]
        return [target.partition.partition for call in calls for target in call.arguments["targets"]]

    def _led(self) -> None:
        leaders: list[str] = [self._leader_of(number) for number in range(PARTITIONS + self.plan.grows)]
        silent: set[str] = {name for number, name in enumerate(self._leaders.names) if self._leaders.is_away(number)}
        self.history.add(Led(anyio.current_time(), leaders, silent))

    def _leader_of(self, partition: int) -> Leader:
        return self._leaders.of(TopicPartition(TOPIC, partition))

    # -------------------------------------------------------------------------------------------- looking

    def _watch_store(self, job: StoreOffset) -> Answer:
        """The truth about stored offsets, at the moment at which they are durable."""
        part = self.log.pump.view.by_id(job.partition)
        assert part is not None
        at = part.at.partition
        state: Any = self.log.store._partitions[job.partition]
        before = state.stored.get(job.identity)
        answer = self._store_for_real(job)
        if answer.offset != before:
            self.history.add(Stored(anyio.current_time(), at, before, answer.offset, job))
        return answer

    def _watch_save(self, job: SaveGroup) -> None:
        """The truth about who owns what, likewise."""
        self._save_for_real(job)
        if job.state is None:
            return
        members = decode_group(job.state).members
        numbers = {part.id: part.number for part in self._parts()}
        owners = {numbers[key]: (member.id, int(own)) for member in members for key, own in member.owned.items()}
        revoking = {numbers[key] for member in members for key in member.revoking}
        self.shared = Shared(anyio.current_time(), owners, revoking, [member.id for member in members])
        self.history.add(self.shared)

    def _watch_grow(self, job: GrowTopic) -> TopicState:
        """The truth about the partitions there are, likewise."""
        before = len(self.partitions)
        state = self._grow_for_real(job)
        self._grown.set()
        self.history.add(Grown(anyio.current_time(), range(before, len(self.partitions))))
        return state

    @property
    def partitions(self) -> list[int]:
        """Those that the topic has."""
        return list(range(len(self._parts())))

    def stored(self, partition: int) -> int | None:
        """What is stored durably."""
        offset: int | None = self._parts()[partition].stored.get(f"{'group' if self.plan.is_group else 'name'}:{NAME}")
        return offset

    def _parts(self) -> list[Any]:
        store: Any = self.log.store
        return list(store._topics[TOPIC][1])

    def _ends(self) -> list[int]:
        return [part.log_end for part in self._parts()]

    def _values(self) -> list[list[bytes | None]]:
        found: list[list[bytes | None]] = []
        for part in self._parts():
            origin = Origin(TopicPartition(TOPIC, part.number), Offset(0), Ownership(0), HistoryId(0))
            selection = self.log.store.read(Query(part.id, Position(0), 10_000, 1 << 30))
            runs = selection.runs if selection else ()
            found.append([message.value for message in decode(Segment(origin, runs))] if runs else [])
        return found


ACTIONS = {"stop": 4, "cancel": 4, "fail": 1, "kill": 7, "split": 5, "crash": 6, "storm": 1, "pause": 2}
"""What the world does, and how often."""
ACTIONS_OF_LEADERS = {"move": 5, "shuffle": 3, "silence": 7}
"""The same, where there are several."""
ACTIONS_OF_GROUPS = {"forget": 8, "faint": 2}
DAMAGED: list[frozenset[SessionOperation]] = [
    ABOUT_PARTITIONS,
    ABOUT_PARTITIONS,
    frozenset(("poll", "wait_ready")),
    frozenset(("wait_ready",)),
    frozenset(("poll",)),
    frozenset(("route", "resolve", "stored_offset")),
    frozenset(("store_offset",)),
]
"""What damage may keep from its work, each as often as it is named."""


async def tell(seed: int, history: History) -> None:
    """The history of a seed; to be run under virtual time."""

    def observe(kind: FaultKind, call: Call | None) -> None:
        history.add(Fault(anyio.current_time(), kind, call))

    options = LogOptions(max_wait=5.0, session_timeout=1.2, rebalance_timeout=1.5)
    with anyio.fail_after(AGE_MAX):
        plan = Plan.of(seed)
        async with FaultyLog(seed=seed, options=options, observe=observe, leaders=plan.leaders) as log:
            await World(plan, log, history).run()


def simulate(seed: int, backend: Backend, history: History | None = None) -> History:
    """The same, from outside; an error that nobody should have met is part of the history."""
    history = history or History()

    def broken(error: Exception) -> None:
        history.events.append(Broken(history.events[-1].at if history.events else 0.0, error))

    try:
        with watched(lambda wrong: broken(AssertionError(wrong))):
            run_virtual(tell, seed, history, backend=backend, seed=seed)
    except Exception as error:  # noqa: BLE001  # it is judged like the rest
        broken(error)
    return history
