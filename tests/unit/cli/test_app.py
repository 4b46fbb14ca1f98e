"""The command line in this process: help, exit codes, and one helpful line for each mistake that people make."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import tarry
from tarry.cli import main
from tarry.cli.failures import CommandError, Exit, code_of, one_line, root_of

COMMANDS = [
    "",
    "demo",
    "topic",
    "topic create",
    "topic list",
    "topic describe",
    "topic delete",
    "group",
    "group list",
    "group describe",
    "group reset",
    "produce",
    "consume",
]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, without a log in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("TARRY_URL", "TARRY_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run one command: exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(list(arguments))
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log of two topics, an empty one, and a file with two lines; mistakes leave it as it is."""
    folder = tmp_path_factory.mktemp("furnished")
    (folder / "lines.txt").write_bytes(b"a\nb\n")
    (folder / "empty.db").touch()
    assert main(["produce", "--db", str(folder / "t.db"), "lines", str(folder / "lines.txt")]) == 0
    assert main(["topic", "create", "--db", str(folder / "t.db"), "weather"]) == 0
    return folder


def lines_file(content: bytes = b"a\nb\n") -> str:
    Path("lines.txt").write_bytes(content)
    return "lines.txt"


# --- help ---


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal_and_has_two_examples(run: Run, command: str) -> None:
    code, out, err = run(*command.split(), "--help")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    examples = out.partition("Examples:\n")[2].splitlines()
    assert len(examples) == 2
    assert all("tarry " in example for example in examples)
    assert "\x1b" not in out
    assert "\b" not in out


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"tarry {tarry.__version__}\n", "")


def test_without_a_command_the_help_is_shown_as_an_error(run: Run) -> None:
    code, out, err = run()
    assert (code, out) == (2, "")
    assert "Commands:" in err


# --- mistakes ---


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("consum lines", 2, "tarry: no such command 'consum'. Did you mean 'consume'?; see tarry --help"),
        ("topic make x", 2, "tarry topic: no such command 'make'; see tarry topic --help"),
        ("--db t.db consume lines", 2, "write it behind the command, as in `tarry consume --db orders.db lines`"),
        ("consume --db t.db lines --form 3", 2, "tarry consume: no such option: --form"),
        ("consume --db t.db", 2, "tarry consume: missing argument 'TOPIC'; see tarry consume --help"),
        ("consume lines", 2, "which log? Add --db PATH (or --url URL), or set TARRY_URL; for example --db orders.db"),
        ("produce lines lines.txt", 2, "which log?"),
        ("topic list", 2, "which log?"),
        ("group list", 2, "which log?"),
        ("consume --db a.db --url b.db lines", 2, "--url b.db and --db a.db name two logs; give one of them"),
        ("consume --url memory: lines", 2, "a memory: log is private to one process"),
        ("consume --url kafka://h:9092 lines", 2, "kafka:// is not there yet"),
        ("consume --url http://h lines", 2, "unknown URL 'http://h'"),
        ("consume --url tarry://me:secret@h lines", 2, "credentials do not belong into a URL"),
        ("consume --db missing.db lines", 5, "there is no log at missing.db; `tarry topic create` and"),
        ("consume --db tt.db lines", 5, "there is no log at tt.db; did you mean t.db?"),
        ("topic list --db no/where.db", 5, "the directory no does not exist either"),
        ("topic create --db no/where.db x", 3, "does not exist; create it, or choose another path"),
        ("consume --db . lines", 3, "is a directory; name a file, for example"),
        ("consume --db t.db linse", 5, "there is no topic 'linse' in t.db; did you mean 'lines'?"),
        ("consume --db t.db zebra", 5, "there is no topic 'zebra' in t.db; there is lines"),
        ("topic describe --db t.db linse", 5, "did you mean 'lines'?"),
        ("topic delete --db t.db linse --yes", 5, "did you mean 'lines'?"),
        ("consume --db empty.db lines", 5, "it has none yet: create one with `tarry topic create lines`"),
        ("topic delete --db t.db lines", 2, "topic 'lines' with 2 messages was not deleted; add --yes"),
        ("topic create --db t.db lines", 2, "'lines' exists already"),
        ("topic create --db t.db a/b/c", 2, "at most one (stream/topic) is allowed"),
        ("topic create --db t.db x -p 0", 2, "TopicOptions.partitions=0"),
        ("topic create --db t.db x --max-record-bytes 1GiB", 2, "TopicOptions.max_record_bytes=1073741824"),
        ("topic create --db t.db x --retention-age soon", 2, "'soon' is no duration; write 1500ms, 30s, 2m or 1h"),
        ("topic create --db t.db x --retention-bytes many", 2, "'many' is no size; write 65536, 64KiB or 1MiB"),
        ("consume --db t.db lines -n 0", 2, "'--count' / '-n'"),
        ("consume --db t.db lines -n", 2, "'-n' requires an argument"),
        ("consume --db t.db lines -n 5 --min-count 10", 2, "--min-count 10 is above -n 5"),
        ("consume --db t.db lines -e --max-wait 1s", 2, "--exit-at-end does not wait"),
        ("consume --db t.db lines --max-wait 0", 2, "ask again and again without a pause"),
        ("consume --db t.db lines --max-wait -1s", 2, "'-1s' is no duration"),
        ("consume --db t.db lines --max-wait 11m", 2, "max_wait=660.0: input should be less than or equal to 600"),
        ("consume --db t.db lines --max-bytes 2GiB", 2, "max_bytes=2147483648"),
        ("consume --db t.db lines --from somewhere", 2, "'somewhere' is no place to start; write start, end"),
        ("consume --db t.db lines --from 99", 2, "use an offset from 0 to 2"),
        ("consume --db t.db lines -o xml", 2, "'--output' / '-o'"),
        ("consume --db t.db lines --name a\tb", 2, "control characters are not allowed"),
        ("produce --db t.db lines missing.txt", 2, "cannot read missing.txt: No such file or directory"),
        ("produce --db t.db lines .", 2, ". is a directory; name a file with one message a line"),
        ("produce --db t.db lines lines.txt -f xml", 2, "'--format' / '-f'"),
        ("demo --data missing.csv", 2, "cannot read missing.csv: No such file or directory"),
        ("demo --db t.db", 2, "topic 'weather' exists already in t.db"),
    ],
)
def test_a_mistake_is_answered_with_one_line_and_a_code(
    run: Run, furnished: Path, arguments: str, code: int, says: str
) -> None:
    os.chdir(furnished)
    got, out, err = run(*arguments.split(" "))
    assert (got, out) == (code, "")
    assert says in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_mistyped_log_is_not_created(run: Run) -> None:
    for command in ("consume x", "topic list", "topic describe x", "topic delete x --yes", "group list"):
        assert run(*command.split(), "--db", "typo.db")[0] == 5
    assert list(Path().iterdir()) == []


def test_a_file_that_is_no_log_is_left_as_it_is(run: Run) -> None:
    Path("notes.txt").write_text("not a database, but long enough to have a header of a hundred bytes" * 3)
    with sqlite3.connect("other.db") as other:
        other.execute("CREATE TABLE customers (name TEXT)")
    other.close()
    before = {name: Path(name).read_bytes() for name in ("notes.txt", "other.db")}
    for name, says in (("notes.txt", "is not an SQLite database"), ("other.db", "is another SQLite database")):
        code, _, err = run("topic", "list", "--db", name)
        assert code == Exit.UNEXPECTED
        assert says in err
        assert "choose another path" in err
    assert {name: Path(name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    ("content", "says", "sent"),
    [
        (b'{"value": "a"}\n{"value": 5}\n{"value": "c"}\n', "lines.txt line 2: 'value' must be a string", 1),
        (b'{"value": "a"}\nplain\n', "lines.txt line 2: this is no JSON", 1),
        (b'{"value": "a"}\n{"value": "b", "partition": 7}\n', "lines.txt line 2: partition=7; the topic has 1", 1),
        (b'{"value": "a"}\n{"value": "%s"}\n' % (b"x" * 2000), "lines.txt line 2: the message has 20", 1),
        (b'{"value": "a", "timestamp_ms": 9223372036854775808}', "lines.txt line 1: 'timestamp_ms' 92", 0),
        (b'{"value": "%s' % (b"x" * 20_000), "lines.txt line 1 has no end within 8192 bytes", 0),
    ],
)
def test_a_bad_line_is_named_and_the_lines_in_front_of_it_are_sent(
    run: Run, content: bytes, says: str, sent: int
) -> None:
    assert run("topic", "create", "--db", "t.db", "x", "--max-record-bytes", "1KiB")[0] == 0
    code, _, err = run("produce", "--db", "t.db", "-f", "jsonl", "x", lines_file(content))
    first, second = err.splitlines()
    assert code == Exit.USAGE
    assert first.startswith(f"tarry: sent {sent} message")
    assert says in second
    assert run("consume", "--db", "t.db", "x", "-e") == (0, "a\n" * sent, "")


def test_a_long_text_line_is_named(run: Run) -> None:
    assert run("topic", "create", "--db", "t.db", "x", "--max-record-bytes", "1KiB")[0] == 0
    code, _, err = run("produce", "--db", "t.db", "x", lines_file(b"a\n" + b"x" * 2000 + b"\nc\n"))
    assert code == Exit.USAGE
    assert "lines.txt line 2: the message has 2" in err
    assert "topic 'x' allows 1024" in err


def test_debug_shows_where(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARRY_DEBUG", "1")
    code, _, err = run("consume", "lines")
    assert code == Exit.USAGE
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("tarry: which log?")


# --- what works ---


def test_the_log_may_be_named_in_three_ways(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("produce", "--db", "t.db", "lines", lines_file())[0] == 0
    assert run("consume", "-u", "sqlite:///t.db", "lines", "-e") == (0, "a\nb\n", "")
    monkeypatch.setenv("TARRY_URL", "t.db")
    assert run("consume", "lines", "-e") == (0, "a\nb\n", "")
    assert run("consume", "--db", "t.db", "lines", "-e") == (0, "a\nb\n", "")


def test_topics_are_created_listed_described_deleted(run: Run) -> None:
    at = ("--db", "t.db")
    assert run("topic", "list", *at)[0] == 5
    assert run("topic", "create", *at, "shop/orders", "-p", "2", "--retention-age", "7d")[0] == 0
    assert (
        run("topic", "create", *at, "shop/orders", "--exist-ok")[2] == "tarry: topic 'shop/orders' has 2 partitions\n"
    )
    assert run("produce", *at, "lines", lines_file())[0] == 0
    code, out, err = run("topic", "list", *at)
    assert (code, err) == (0, "")
    assert [line.split()[:3] for line in out.splitlines()] == [
        ["topic", "partitions", "messages"],
        ["lines", "1", "2"],
        ["shop/orders", "2", "0"],
    ]
    out = run("topic", "list", *at, "-o", "jsonl")[1]
    assert out.splitlines()[1] == '{"topic": "shop/orders", "partitions": 2, "messages": 0, "bytes": 0}'
    out = run("topic", "describe", *at, "shop/orders")[1]
    assert re.search(r"retention age +604800 s\n", out)
    assert re.search(r"partition +log_start +log_end +messages +bytes\n +0 +0 +0 +0 +0\n +1 +0 +0 +0 +0\n$", out)
    out = run("topic", "describe", *at, "lines", "-o", "jsonl")[1]
    assert re.fullmatch(r'\{"partition": 0, "log_start": 0, "log_end": 2, "messages": 2, "bytes": \d+\}\n', out)
    assert run("topic", "delete", *at, "lines", "--yes")[2] == "tarry: deleted topic 'lines' with 2 messages\n"
    assert "lines" not in run("topic", "list", *at)[1]


def test_a_log_without_topics_says_so(run: Run) -> None:
    Path("t.db").touch()
    assert run("topic", "list", "--db", "t.db") == (
        0,
        "",
        "tarry: no topics yet in t.db; create one with `tarry topic create NAME`\n",
    )


def test_produce_makes_a_missing_topic_and_hints_at_a_similar_one(run: Run) -> None:
    err = run("produce", "--db", "t.db", "lines", lines_file())[2]
    assert err == "tarry: created topic 'lines' with 1 partition\ntarry: sent 2 messages to 'lines'\n"
    err = run("produce", "--db", "t.db", "line", lines_file(b"one"))[2]
    assert err.startswith("tarry: created topic 'line' with 1 partition (there is also 'lines')\n")
    assert err.endswith("tarry: sent 1 message to 'line'\n")


def test_an_empty_file_sends_nothing(run: Run) -> None:
    assert run("produce", "--db", "t.db", "lines", lines_file(b""))[2].endswith("sent 0 messages to 'lines'\n")


@pytest.mark.parametrize(
    ("where", "values"),
    [
        ("start", "0123456789"),
        ("end", ""),
        ("7", "789"),
        ("10", ""),
        ("-3", "789"),
        ("-10000", "0123456789"),
        ("@1970-01-01T00:00:00.005Z", "56789"),
        ("@1970-01-01T01:00:00.008+01:00", "89"),
        ("@2970-01-01T00:00Z", ""),
    ],
)
def test_where_to_start(run: Run, where: str, values: str) -> None:
    lines = b"".join(b'{"value": "%d", "timestamp_ms": %d}\n' % (number, number) for number in range(10))
    assert run("produce", "--db", "t.db", "-f", "jsonl", "lines", lines_file(lines))[0] == 0
    assert run("consume", "--db", "t.db", "lines", "-e", "--from", where) == (
        0,
        "".join(f"{value}\n" for value in values),
        "",
    )


def test_a_name_goes_on_where_it_stopped_and_from_overrides_it(run: Run) -> None:
    at = ("--db", "t.db", "lines")
    assert run("produce", *at, lines_file(b"1\n2\n3\n4\n"))[0] == 0
    assert run("consume", *at, "--name", "audit", "-n", "1") == (0, "1\n", "")
    assert run("consume", *at, "--name", "audit", "-n", "2") == (0, "2\n3\n", "")
    assert run("consume", *at, "-n", "1") == (0, "1\n", "")
    assert run("consume", *at, "--name", "audit", "-e", "--from", "0") == (0, "1\n2\n3\n4\n", "")
    assert run("consume", *at, "--name", "audit", "-e") == (0, "", "")


def test_count_reaches_over_many_polls_and_stores_exactly_that(run: Run) -> None:
    at = ("--db", "t.db", "lines")
    assert run("produce", *at, lines_file(b"".join(b"%d\n" % number for number in range(3000))))[0] == 0
    out = run("consume", *at, "--name", "audit", "-n", "2500")[1]
    assert out.split() == [str(number) for number in range(2500)]
    out = run("consume", *at, "--name", "audit", "-e")[1]
    assert out.split() == [str(number) for number in range(2500, 3000)]


def test_min_count_and_max_wait_reach_the_poll(run: Run) -> None:
    at = ("--db", "t.db", "lines")
    assert run("produce", *at, lines_file(b"1\n2\n3\n"))[0] == 0
    assert run("consume", *at, "-n", "3", "--min-count", "3", "--max-bytes", "1KiB") == (0, "1\n2\n3\n", "")
    assert run("consume", *at, "-n", "3", "--min-count", "2", "--max-wait", "10ms") == (0, "1\n2\n3\n", "")


def test_several_topics_and_keys(run: Run) -> None:
    assert run("topic", "create", "--db", "t.db", "a", "-p", "3")[0] == 0
    assert run("produce", "--db", "t.db", "a", lines_file(b"1\n2\n"), "--key", "k")[0] == 0
    assert run("produce", "--db", "t.db", "b", lines_file(b"3\n"))[0] == 0
    out = run("consume", "--db", "t.db", "a", "b", "-e", "-o", "jsonl")[1]
    assert sorted(re.findall(r'"topic": "(.)".*"key": (null|"k"), "value": "(.)"', out)) == [
        ("a", '"k"', "1"),
        ("a", '"k"', "2"),
        ("b", "null", "3"),
    ]
    assert len(set(re.findall(r'"topic": "a", "partition": (\d)', out))) == 1


def test_json_lines_survive_a_round_trip(run: Run) -> None:
    headers = '[{"key": "h", "value": ""}, {"key": "h", "value_base64": "gA=="}]'
    content = (
        '{"value": "text \\u00fc \\n", "key": "k", "timestamp_ms": 1}\n'
        '{"value": null, "key": "", "timestamp_ms": 2}\n'
        '{"value": "", "key": null, "timestamp_ms": 3, "headers": {"a": "1"}}\n'
        f'{{"value_base64": "/wA=", "key_base64": "/g==", "timestamp_ms": 4, "headers": {headers}}}\n'
    )
    assert run("produce", "--db", "t.db", "-f", "jsonl", "one", lines_file(content.encode()))[0] == 0
    first = run("consume", "--db", "t.db", "one", "-e", "-o", "jsonl")[1]
    assert first.count("\n") == 4
    assert '"key": "", "value": null' in first
    assert '"key_base64": "/g==", "value_base64": "/wA="' in first
    assert run("produce", "--db", "t.db", "-f", "jsonl", "two", lines_file(first.encode()))[0] == 0
    second = run("consume", "--db", "t.db", "two", "-e", "-o", "jsonl")[1]
    assert second == first.replace('"one"', '"two"')


# --- codes ---


def test_a_failed_send_has_the_code_of_its_cause() -> None:
    failed = tarry.SendFailed("no", topic="t", unsent=[], receipts=[])
    assert code_of(failed) is Exit.UNEXPECTED
    failed.__cause__ = tarry.LogBusy("locked")
    assert code_of(failed) is Exit.UNREACHABLE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (tarry.TopicNotFound("x"), 5),
        (tarry.GroupNotFound("x"), 5),
        (tarry.NotAccepted("x"), 3),
        (tarry.TopicExists("x"), 2),
        (tarry.ConfigError("x"), 2),
        (tarry.FeatureUnavailable("x"), 2),
        (tarry.LogUnavailable("x"), 3),
        (tarry.LogInUse("x", pid=1), 3),
        (tarry.OutcomeUnknown("x"), 3),
        (tarry.LogFull("x"), 1),
        (tarry.ConsumerFailed("x"), 1),
        (CommandError("x", Exit.NOT_FOUND), 5),
        (ZeroDivisionError("x"), 1),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    assert code_of(error) == code


def test_an_error_is_one_line_and_comes_out_of_its_groups() -> None:
    inner = ValueError("two\nlines")
    group = ExceptionGroup("outer", [ExceptionGroup("inner", [inner])])
    assert root_of(group) is inner
    assert one_line(inner) == "ValueError: two lines (TARRY_DEBUG=1 shows where)"
    assert one_line(tarry.ConfigError("two\nlines")) == "two lines"
