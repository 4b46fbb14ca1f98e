"""The commands put together: help, options before the command, errors as one line. Not here: what a command does."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Protocol, TextIO, runtime_checkable

import typer

import tarry
from tarry.cli import consume, demo, group, produce, topic
from tarry.cli.failures import Exit, code_of, one_line, root_of
from tarry.cli.options import examples
from tarry.cli.pipes import guard_standard_streams

app = typer.Typer(
    name="tarry",
    epilog=examples("printf 'a\\nb\\n' | tarry produce --db t.db lines", "tarry consume --db t.db lines -n 2"),
    rich_markup_mode=None,  # Plain help: the same on a terminal and in a pipe.
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 79},
)
app.command("demo", epilog=demo.EXAMPLES)(demo.demo)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.command("produce", epilog=produce.EXAMPLES)(produce.produce)
app.command("consume", epilog=consume.EXAMPLES)(consume.consume)


@runtime_checkable
class _Refusal(Protocol):
    """What the command line parser raises; its base class has another name in each release."""

    exit_code: int

    def format_message(self) -> str:
        """Say what is wrong."""
        ...


def _version(asked: bool) -> None:  # noqa: FBT001  # typer passes it by position
    if asked:
        print(f"tarry {tarry.__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    _: Annotated[  # Its callback has done the work.
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Consumers that wait at the log instead of asking it again and again."""


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; every error is one line on stderr."""
    guard_standard_streams()
    _show_everything(sys.stdout)
    try:
        with _warnings_shown():
            code = app(arguments, standalone_mode=False, prog_name="tarry")
            if sys.stdout is not None:  # None when it is closed.
                sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        return Exit.OK
    except (KeyboardInterrupt, typer.Abort):
        print(file=sys.stderr)  # Behind the ^C that the terminal shows.
        return 130
    except Exception as error:  # noqa: BLE001  # whatever it is, it ends in one line and a code
        return _report(root_of(error))
    return code if isinstance(code, int) else Exit.OK


@contextmanager
def _warnings_shown() -> Generator[None]:
    """Let the library's warnings reach stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("tarry: warning: %(message)s"))
    logger = logging.getLogger("tarry")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _show_everything(stream: TextIO | None) -> None:
    """A name or a sign that the terminal cannot show is no error."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _report(error: Exception) -> int:
    if os.environ.get("TARRY_DEBUG", "") not in {"", "0"}:
        traceback.print_exception(error)
    if isinstance(error, _Refusal):
        print(_refusal(error), file=sys.stderr)
        return error.exit_code
    print(f"tarry: {one_line(error)}", file=sys.stderr)
    return code_of(error)


def _refusal(error: _Refusal) -> str:
    """What the parser says, in one line; its help when no command was given."""
    text = error.format_message()
    if text.startswith("Usage:"):
        return text
    context: typer.Context | None = getattr(error, "ctx", None)
    command = "tarry" if context is None else context.command_path
    if command == "tarry" and any(f"option: {name}" in text for name in ("--db", "--url", "-u")):
        hint = "write it behind the command, as in `tarry consume --db orders.db lines`"
    else:
        hint = f"see {command} --help"
    line = " ".join(text.replace("Value error, ", "").split()).rstrip(".")
    return f"{command}: {line[:1].lower()}{line[1:]}; {hint}"


def _forget_stdout() -> None:
    """Nobody reads stdout any more; what is still buffered must not complain at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
