"""`celedger` and `python -m celedger`."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130  # celedger.base.errors.Status, of which nothing may be imported yet


def _end(*_: object) -> None:
    """End at once, with a line. A KeyboardInterrupt would be lost where the import system calls
    back, and there is nothing yet to unwind."""
    try:
        os.write(2, b"celedger: interrupted\n")
    finally:
        os._exit(INTERRUPTED)


def main() -> None:
    status = INTERRUPTED
    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _end)
        from celedger.cli import unix
        from celedger.cli.app import run

        unix.prepare()
        status = run(sys.argv[1:])
        unix.deaf()
    except KeyboardInterrupt:
        _end()
    if status == INTERRUPTED:
        # Everything is unwound and written. Python itself would now and then end by SIGINT: an
        # interrupt inside exec() of a text, as dataclasses do, counts as unhandled though it
        # was handled (CPython, run_eval_code_obj).
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
