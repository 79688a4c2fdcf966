"""`python -m celedger.child.notebook NOTEBOOK` runs the code cells of a Jupyter notebook in order.
Lines for IPython (`%…`, `!…`, `name?`) and cells of other languages (`%%bash`) are left out, and
figures are not shown. Standard library only.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import sys
from pathlib import Path

_MAGIC = re.compile(r"(?m)^([ \t]*)(?:%[A-Za-z]|!|[\w.]+\?+[ \t]*$).*$")  # no operator: `% (a, b)`
_OF_PYTHON = {"%%time", "%%timeit", "%%capture", "%%prun"}


def source(text: str) -> str:
    """Return the cells of a notebook as one script."""
    cells = []
    for cell in json.loads(text)["cells"]:
        code = "".join(cell["source"])
        first, _, rest = code.partition("\n")
        if first.startswith("%%"):
            code = rest if first.split()[0] in _OF_PYTHON else ""
        if cell["cell_type"] == "code":
            cells.append(_MAGIC.sub(r"\1pass", code))
    return "\n".join(cells) + "\n"


def run(path: str) -> None:
    """Run a notebook as `__main__`, where what it pickles is looked for."""
    code = source(Path(path).read_text(encoding="utf-8"))
    linecache.cache[path] = (len(code), None, code.splitlines(keepends=True), path)
    os.environ.setdefault("MPLBACKEND", "Agg")
    names = vars(sys.modules["__main__"])
    names["display"] = print
    exec(compile(code, path, "exec", dont_inherit=True), names)


if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).absolute().parent)
    run(sys.argv[0])
