"""Every code block of README.md and the documentation runs, and prints what the page says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.docs.blocks import Kind, WrongBlock, blocks, pages, run_page
from tests.tools.rules import ROOT

ELSEWHERE = {"docs/reference/format.md": "tests/unit/wire/test_format_page.py"}
"""Pages whose blocks are all proven by a test of their own."""
PAGES = {name: page for page in pages(ROOT) if (name := page.relative_to(ROOT).as_posix()) not in ELSEWHERE}

LEFT_ALONE = {"README.md": 2, "docs/quickstart.md": 1}
"""Blocks that do not run, by page. Each says why in its title; one more is a decision, and shows here."""
DRAWINGS = {"docs/concepts.md": 10, "docs/design.md": 2, "docs/groups.md": 1, "docs/guarantees.md": 7}
"""Drawings, by page; so that no program is passed off as one."""


@pytest.mark.slow
@pytest.mark.timeout(60)  # A page starts up to a dozen programs, one after another; on a busy machine that takes time.
@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_blocks_do_what_their_page_says(page: Path, tmp_path: Path):
    run_page(page, tmp_path)


@pytest.mark.parametrize(("page", "module"), ELSEWHERE.items(), ids=ELSEWHERE)
def test_a_page_that_is_proven_elsewhere_is(page: str, module: str):
    source = (ROOT / module).read_text(encoding="utf-8")
    assert page in source
    for language in {block.language for block in blocks(ROOT / page)}:
        assert f"```{language}" in source


def test_blocks_that_do_not_run_are_counted():
    kinds = {name: blocks(page) for name, page in PAGES.items()}
    left_alone = Counter(name for name, found in kinds.items() for block in found if block.kind is Kind.LEFT_ALONE)
    drawings = Counter(
        name
        for name, found in kinds.items()
        for block in found
        if block.kind is Kind.DRAWING and not block.title.endswith(" --help")
    )
    assert left_alone == LEFT_ALONE
    assert drawings == DRAWINGS


# What the runner must notice; otherwise all of the above proves nothing.


def run(text: str, folder: Path) -> None:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    work = folder / "work"
    work.mkdir()
    run_page(page, work)


def python(source: str, output: str | None = None) -> str:
    shown = "" if output is None else f'\n```text title="output"\n{output}\n```\n'
    return f"# Page\n\n```python\n{source}\n```\n{shown}"


def console(source: str) -> str:
    return f"# Page\n\n```console\n{source}\n```\n"


def test_what_a_page_shows_is_what_comes_out(tmp_path: Path):
    run(
        python("import asyncio\nawait asyncio.sleep(0)\nx = 1\nprint('a b')\nprint('c')", "a ...\n...")
        + python("print(x + 1)", "2")
        + '```python title="two.py"\nprint("from a file")\n```\n'
        + console("$ echo a \\\n  b; python two.py\na b\nfrom a file\n$ false\n$ echo $?\n1"),
        tmp_path,
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (python("print(1)", "2"), "page.md:8: expected:\n2\nfound:\n1"),
        (python("print(1)"), "page.md:4: the block above printed what the page does not show"),
        (python("x = 1", "1"), "page.md:8: expected"),
        ('```text title="output"\n1\n```\n', "page.md:2: there is no Python block above"),
        (console("$ echo 1\n2"), "page.md:4: expected:\n2\nfound:\n1"),
        (console("$ echo 1"), "found:\n1"),
        (console("$ false"), "ended with 1"),
        (console("$ false\n$ true"), "ended with 1"),
        (console("$ true\n$ echo $?\n1"), "page.md:5: expected:\n1\nfound:\n0"),
        (console("echo 1"), "page.md:4: a console block begins with a command"),
        (console("$ echo 1\n2\n^C"), "did not get as far as ^C"),
        ("```\nx\n```\n", "cannot read the fence"),
        ("```ruby\nx\n```\n", "nothing is known about a block 'ruby'"),
        ("```python\nx\n", "not closed"),
        ('```python title="a.py"\nx = 1\n```\n', "no command runs a.py"),
        ("Text\n\n    x = 1\n", "never run"),
    ],
)
def test_a_page_that_is_wrong_is_noticed(text: str, problem: str, tmp_path: Path):
    with pytest.raises(WrongBlock) as caught:
        run(text, tmp_path)
    assert problem in str(caught.value)


def test_an_error_in_a_block_names_the_line_of_the_page(tmp_path: Path):
    with pytest.raises(ZeroDivisionError) as caught:
        run(python("x = 0\n1 / x"), tmp_path)
    assert caught.traceback[-1].lineno == 4


@pytest.mark.slow
def test_a_program_that_waits_is_interrupted_and_must_end_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.docs.blocks.LIMIT_S", 2.0)
    waits = "import time\ntry:\n    print('begin')\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('end')"
    run(f'```python title="a.py"\n{waits}\n```\n' + console("$ python a.py\nbegin\n^C\nend"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("shown", ["$ sleep 60", "$ trap '' INT; echo begin; sleep 60\nbegin\n^C"])
def test_a_program_that_does_not_end_is_noticed_and_killed(shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.docs.blocks.LIMIT_S", 0.6)
    with pytest.raises(WrongBlock, match="did not end by itself"):
        run(console(shown), tmp_path)
