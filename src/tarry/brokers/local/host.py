"""Where an embedded log runs: in the caller's loop (`memory:`), or in one thread with its own loop per file.

A host is shared by every client of its file in this process and closes with the last one (design 5). A handler that
blocks the caller's loop therefore stalls nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from tarry import abc
from tarry._runtime.bridge import Port, Post, inline, loop_post
from tarry._runtime.clock import SystemClock
from tarry._runtime.driver import Driver
from tarry._runtime.threads import Errand
from tarry.brokers.local.broker import LocalBroker
from tarry.brokers.local.pump import Pump
from tarry.brokers.local.store_memory import MemoryStore
from tarry.config import LogOptions
from tarry.errors import ConfigError, LogUnavailable

_logger = logging.getLogger("tarry.log")

StartSoon = Callable[[Callable[[], Awaitable[None]]], None]


async def open_memory(start_soon: StartSoon, options: LogOptions) -> LocalBroker:
    """A private log in memory, in this loop; its timer runs through `start_soon`."""
    clock = SystemClock()
    store = MemoryStore(clock)
    return await open_store(start_soon, store, options, clock)


async def open_store(start_soon: StartSoon, store: abc.LogStore, options: LogOptions, clock: abc.Clock) -> LocalBroker:
    """A log over any store, in this loop (simulations open several over one store)."""
    pump, driver = _driven_pump(store, options, clock)
    pump.open()
    start_soon(driver.run)

    async def close() -> None:
        pump.close()
        await store.aclose()

    return LocalBroker(pump, Port(inline, inline, pump.cancel), close)


async def open_file(path: str, options: LogOptions) -> LocalBroker:
    """The log in a file, through this process's host for it.

    Cancellation: a host that was being started is closed again.
    """
    home = loop_post()
    entering = Errand("tarry-open", _hosts.enter, path, options)
    try:
        host = await entering.wait()
    except asyncio.CancelledError:
        await Errand("tarry-close", _leave_entered, entering).wait()
        raise

    async def close() -> None:
        await Errand("tarry-close", _hosts.leave, host).wait()

    return LocalBroker(host.pump, Port(host.post, home, host.pump.cancel), close)


def make_pump(store: abc.LogStore, options: LogOptions, clock: abc.Clock) -> Pump:
    """A pump as the options say, not open yet; whoever makes it runs its deadlines."""
    return Pump(
        store,
        clock,
        max_wait=options.max_wait,
        retention_interval=options.retention_interval,
        session_timeout=options.session_timeout,
        rebalance_timeout=options.rebalance_timeout,
    )


def _driven_pump(store: abc.LogStore, options: LogOptions, clock: abc.Clock) -> tuple[Pump, Driver]:
    pump = make_pump(store, options, clock)
    driver = Driver(pump)
    pump.alarm = driver.alarm
    return pump, driver


@dataclass(slots=True)
class _Started:
    """What the host's thread hands over once it is open, or why it is not."""

    done: threading.Event = field(default_factory=threading.Event)
    post: Post | None = None
    pump: Pump | None = None
    error: BaseException | None = None


class Host:
    """One thread with its own asyncio loop that owns the store and the pump of one file."""

    def __init__(self, path: Path, options: LogOptions) -> None:
        self.path = path
        self.options = options
        self.clients = 0
        self._started = _Started()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name=f"tarry-host-{path.name}", daemon=True)

    @property
    def pump(self) -> Pump:
        """The pump; only to be called through `post`."""
        assert self._started.pump is not None
        return self._started.pump

    @property
    def is_over(self) -> bool:
        """It has died, or its store has failed for good: it serves nobody any more."""
        return self.pump.view.failure is not None

    @property
    def post(self) -> Post:
        """Run something in the host's loop."""
        assert self._started.post is not None
        return self._started.post

    def start(self) -> None:
        """Start and wait until the file is open; raises what opening raised. Blocks."""
        self._thread.start()
        self._started.done.wait()
        if self._started.error is not None:
            self._thread.join()
            raise self._started.error

    def stop(self) -> None:
        """Write what is queued, close the file, end the thread. Blocks."""
        with suppress(RuntimeError):  # when it died its loop is gone
            self.post(self._stop.set if self._stop else inline)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # the thread's end must reach whoever waits for its start
            if self._started.done.is_set():
                _logger.critical("the log %s is closed, since its thread died", self.path, exc_info=error)
            self._started.error = error
        finally:
            self._started.done.set()

    async def _main(self) -> None:
        from tarry.brokers.local.store_sqlite import SqliteStore

        clock = SystemClock()
        post = loop_post()
        store = SqliteStore(self.path, self.options, clock, post)
        pump, driver = _driven_pump(store, self.options, clock)
        try:
            pump.open()
            pump.groups.bury()  # sessions live in this process only, so those of the last one are gone
        except BaseException:
            await store.aclose()  # what it holds may be of no use to the pump
            raise
        self._stop = asyncio.Event()
        self._started.post, self._started.pump = post, pump
        self._started.done.set()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(driver.run)
                await self._stop.wait()
                tasks.cancel_scope.cancel()
        except BaseException:
            pump.failed(LogUnavailable(f"the log {self.path} is closed, since its thread died; connect again"))
            raise
        finally:
            try:
                pump.close()
            finally:
                await store.aclose()  # also when the pump is what died: another host is to have the file


class _Hosts:
    """The hosts of this process, one per file. Called from worker threads; a start or stop blocks the next caller."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosts: dict[Path, Host] = {}

    def enter(self, path: str, options: LogOptions) -> Host:
        """The running host of a file, or a new one."""
        real = _identify(path)
        with self._lock:
            host = self._hosts.get(real)
            if host is not None and host.is_over:
                host.stop()
                host = None
            if host is None:
                host = Host(real, options)
                host.start()
                self._hosts[real] = host
            elif host.options != options:
                raise ConfigError(
                    f"{real} is open in this process with other options: {_difference(host.options, options)}"
                )
            host.clients += 1
            return host

    def leave(self, host: Host) -> None:
        """One client less; the last one closes the host."""
        with self._lock:
            host.clients -= 1
            if not host.clients:
                if self._hosts.get(host.path) is host:
                    del self._hosts[host.path]
                host.stop()


def _leave_entered(entering: Errand[Host]) -> None:
    """Leave a host that nobody waits for any more, once it was entered. Blocks."""
    if entering.error() is None:  # else the cancel goes before the reason why it could not be entered
        _hosts.leave(entering.result())


def _identify(path: str) -> Path:
    """The file itself, whatever links lead to it (K75: also when it does not exist yet)."""
    real = Path(os.path.realpath(path))
    if real.is_dir():
        raise LogUnavailable(f"{real} is a directory; name a file, for example {real / 'log.db'}")
    return real


def _difference(ours: LogOptions, theirs: LogOptions) -> str:
    names = [name for name in LogOptions.model_fields if getattr(ours, name) != getattr(theirs, name)]
    return ", ".join(f"{name}={getattr(ours, name)!r} and not {getattr(theirs, name)!r}" for name in names)


_hosts = _Hosts()
__all__ = ["Host", "open_file", "open_memory", "open_store"]
