"""Runs trainings under a probe, each in a fork of this process, which has imported torch and what
else its arguments name: the import is most of what a training of a second costs. A job is a line of
JSON on stdin; its exit status is the line that comes back."""

import atexit
import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

import torch
import torch._dynamo  # what making an optimiser imports

sys.path.insert(0, sys.argv[1])  # the child side of celedger


def run(job):
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(job["tree"])
    os.environ.update(job["environment"])
    sys.argv = job["argv"]
    sys.path.insert(0, str(Path(sys.argv[0]).absolute().parent))
    from celedger.child import attach

    attach.install()
    script = Path(sys.argv[0]).absolute()
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = str(script)
    exec(compile(script.read_bytes(), script, "exec", dont_inherit=True), vars(main))


def main():
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        importlib.import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 0
            try:
                run(json.loads(line))
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
                status = 1
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


main()
