"""`celedger` and `python -m celedger`."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130  # celedger.base.errors.Status, of which nothing may be imported yet


def main() -> None:
    status = INTERRUPTED  # while the verbs are imported
    try:
        from celedger.cli import unix

        unix.prepare()
        from celedger.cli.app import run

        status = run(sys.argv[1:])
        unix.deaf()
    except KeyboardInterrupt:
        pass
    if status == INTERRUPTED:
        # Everything is unwound and written. Python itself would now and then end by SIGINT: an
        # interrupt inside exec() of a text, as dataclasses do, counts as unhandled though it
        # was handled (CPython, run_eval_code_obj).
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
