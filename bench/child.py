"""Entry of a child process: `python -m bench.child module:function '{"option": ...}'` prints the answer as JSON."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module


def main() -> None:
    """Call the function and print what it answers. What libraries do at their end is not waited for."""
    module, _, function = sys.argv[1].partition(":")
    answer = getattr(import_module(f"bench.{module}"), function)(**json.loads(sys.argv[2]))
    print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
