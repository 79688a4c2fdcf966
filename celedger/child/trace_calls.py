"""Where in the user's code something is called, what random numbers are drawn, and every call of
torch's Python functions and methods of a traced training (by a torch function mode). Needs torch.
"""

from __future__ import annotations

import random
import sys
import zlib
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Callable  # noqa: UP035

from celedger.child.trace_tensors import content

if TYPE_CHECKING:
    Frame = tuple[str, int, str]  # file, line, function
    from torch.overrides import TorchFunctionMode

__all__ = ["Sites", "generators", "literals", "mode", "name_of", "torch_generators"]

_DEPTH = 5  # frames of the user's that are kept


class Sites:
    """Call sites: the innermost frames that are neither torch's nor ours, each site with a number.
    `write` is called for a site that was not met before."""

    def __init__(self, write: Callable[[int, list[Frame]], None]) -> None:
        self._write = write
        self._numbers: dict[tuple[Frame, ...], int] = {}
        self._foreign: dict[str, bool] = {}
        self._files: dict[str, str] = {}
        self._homes = [str(Path(__file__).parent)]

    def here(self, skip: int = 1, without: object | None = None) -> int:
        """The site of the call `skip` frames up. `without`: leave out the frames of the methods of
        this object that call it first (the constructor of what is being constructed)."""
        found: list[Frame] = []
        frame: Any = sys._getframe(skip + 1)
        leading = without is not None
        while frame is not None and len(found) < _DEPTH:
            code: CodeType = frame.f_code
            if not self._is_foreign(code.co_filename):
                own = leading and code.co_argcount and (
                    frame.f_locals.get(code.co_varnames[0]) is without
                )  # fmt: skip
                if not own:
                    leading = False
                    found.append((self._files[code.co_filename], frame.f_lineno, code.co_name))
            frame = frame.f_back
        return self.number(tuple(found))

    def number(self, frames: tuple[Frame, ...]) -> int:
        if frames not in self._numbers:
            self._numbers[frames] = len(self._numbers)
            self._write(self._numbers[frames], list(frames))
        return self._numbers[frames]

    def _is_foreign(self, name: str) -> bool:
        if name not in self._foreign:
            if "torch" in sys.modules and len(self._homes) == 1:
                self._homes.append(str(Path(sys.modules["torch"].__file__ or "").parent))
            self._files[name] = str(Path.cwd() / name)  # a script's own may be relative
            self._foreign[name] = name.startswith("<") or any(
                name.startswith(home) for home in self._homes
            )
        return self._foreign[name]


def torch_generators() -> str:
    """A checksum of the states of torch's default generators."""
    import torch

    mark = zlib.crc32(content(torch.default_generator.get_state()))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for number in range(torch.cuda.device_count()):
            state = torch.cuda.get_rng_state(number)
            mark = zlib.crc32(content(state), mark)
    return f"{mark:08x}"


def generators() -> dict[str, str]:
    """Checksums of every default generator a training may draw from."""
    states = {
        "torch": torch_generators(),
        "python": f"{zlib.crc32(repr(random.getstate()).encode()):08x}",
    }
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        mark = zlib.crc32(keys.tobytes(), zlib.crc32(repr((kind, rest)).encode()))
        states["numpy"] = f"{mark:08x}"
    return states


def name_of(function: Any) -> str:
    """`add` for Tensor.__add__, __radd__ and add alike, `add_` for __iadd__."""
    name = str(getattr(function, "__name__", type(function).__name__))
    if name.startswith("__") and name.endswith("__"):
        bare = name[2:-2]
        if bare in ("getitem", "setitem", "get", "set", "init"):
            return name
        if bare[:1] == "r" and bare[1:] in _REFLECTED:
            return bare[1:]
        if bare[:1] == "i" and bare[1:] in _REFLECTED:
            return bare[1:] + "_"
        return bare
    return name


_REFLECTED = {
    "add",
    "sub",
    "mul",
    "div",
    "truediv",
    "floordiv",
    "matmul",
    "pow",
    "mod",
    "and",
    "or",
}


def literals(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What a function was given, tensors shown as `_`: `_, dim=1`."""
    said = [_literal(item) for item in args]
    said += [
        f"{name}={_literal(item)}"
        for name, item in kwargs.items()
        if item is not None and name != "_stacklevel"  # what nobody asked for
    ]
    return ", ".join(said)[:160]


def _literal(item: Any) -> str:
    import torch

    if isinstance(item, torch.Tensor):
        return "_"
    if isinstance(item, (tuple, list)):
        inner = ", ".join(_literal(one) for one in item[:8])
        return f"({inner}{', …' if len(item) > 8 else ''})"
    if isinstance(item, float):
        return f"{item:.9g}"
    if item is None or isinstance(item, (bool, int, str, slice, torch.dtype, torch.device)):
        return repr(item)
    if item is Ellipsis:
        return "..."
    return str(getattr(item, "__name__", type(item).__name__))


def mode(called: Callable[..., Any]) -> TorchFunctionMode:
    """A torch function mode that hands every call to `called(function, args, kwargs)`, which has to
    run it. Inside of it the mode is off: only what the training itself calls is seen."""
    from torch.overrides import TorchFunctionMode

    class Calls(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return called(func, args, kwargs or {})

    return Calls()


def operators(dispatched: Callable[..., None]) -> Any:
    """A torch dispatch mode that tells `dispatched(function, args, kwargs, output)` of every
    operator that reaches a device."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            done = func(*args, **(kwargs or {}))
            dispatched(func, args, kwargs or {}, done)
            return done

    return Operators()  # type: ignore[no-untyped-call]
