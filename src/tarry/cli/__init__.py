"""The command `tarry`: data on stdout, all else on stderr, exit codes of `failures.Exit`.

Here is the way in, which also speaks when typer and rich are missing. The commands are in one file per verb family
(`topic`, `produce`, `consume`, `demo`); what they share: `app` (help and errors), `options` (what people type),
`failures` (exit codes), `draining` (signals, the event loop), `pipes` (stdin and stdout), `records` (messages as text).
Not here: anything that a program could not do through `tarry.connect`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `arguments` default to those of the process."""
    try:
        from tarry.cli.app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"typer", "rich"}:
            raise
        print(f"tarry: the command line needs {error.name}; pip install 'tarry[cli]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return run(sys.argv[1:] if arguments is None else list(arguments))
