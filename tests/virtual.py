"""`@virtual`: one async test on both loops, under virtual time, with several seeds."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from tarry.testing import Backend, run_virtual

Test = Callable[..., Coroutine[Any, Any, None]]


def virtual(*, seeds: int = 1) -> Callable[[Test], Callable[..., None]]:
    """Turn an async test into one for pytest that runs it under virtual time on trio and on asyncio.

    On trio it runs once per seed. On asyncio too if the test asks for `seed`, else once: there the seed decides
    nothing. Fixtures come as usual; a test may also ask for `backend` and `seed`. Not for async fixtures.
    """

    def decorate(test: Test) -> Callable[..., None]:
        wanted = inspect.signature(test).parameters
        seeds_of: dict[Backend, int] = {"trio": seeds, "asyncio": seeds if "seed" in wanted else 1}
        runs = [(backend, seed) for backend, count in seeds_of.items() for seed in range(count)]

        @functools.wraps(test)
        def run(*args: Any, virtual_run: tuple[Backend, int], **fixtures: Any) -> None:
            backend, seed = virtual_run
            own = {"backend": backend, "seed": seed}
            call = functools.partial(test, *args, **fixtures, **{name: own[name] for name in own if name in wanted})
            try:
                run_virtual(call, backend=backend, seed=seed)
            except (Exception, pytest.fail.Exception) as error:
                error.add_note(f"under virtual time on {backend}, seed {seed}; again with: {_command()}")
                raise

        kept = [parameter for name, parameter in wanted.items() if name not in {"backend", "seed"}]
        extra = inspect.Parameter("virtual_run", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = inspect.Signature([*kept, extra])  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # pytest reads it
        every = pytest.mark.parametrize("virtual_run", runs, ids=[f"{backend}-{seed}" for backend, seed in runs])
        return cast("Callable[..., None]", every(run))

    return decorate


def _command() -> str:
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return f'python -m pytest "{test}"'
