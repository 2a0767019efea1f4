"""Choice of an operation's implementation, from facts that do not change while a model trains.

A backend declares what it needs, a request what a call needs. `KernelTable.select` takes the first of an
ordered preference that can serve the request; all others have a reason in words, which `cpplm doctor` prints.
All of it is plain Python on devices, dtypes and sizes, so torch.compile folds a choice away.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from cpplm.core.errors import UserError

Capability = tuple[int, int]
HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class KernelRequest:
    """The facts about a call by which every operation is chosen.

    Attributes:
        device: type of the device: cpu, cuda, mps.
        dtype: of the inputs.
        gradient: whether a gradient will be asked for.
        compiling: whether torch.compile is tracing the call.
        capability: compute capability of the GPU, (0, 0) without one.
    """

    device: str
    dtype: torch.dtype
    gradient: bool
    compiling: bool
    capability: Capability


RequestT = TypeVar("RequestT", bound=KernelRequest)


@dataclass(frozen=True)
class OptionalImport:
    """One function of an optional library. `function` is None where it is not; `reason` says why."""

    function: Callable[..., Any] | None
    reason: str

    @classmethod
    def load(cls, module: str, function: str) -> OptionalImport:
        """Import it now, outside any traced function; not without a GPU, where it could do nothing."""
        if not torch.cuda.is_available():
            return cls(None, "needs a cuda device")
        try:
            return cls(getattr(importlib.import_module(module), function), "")
        except ModuleNotFoundError as error:
            return cls(None, f"needs {(error.name or module).partition('.')[0]}, which is not installed")
        except Exception as error:  # a build for another torch or driver may raise anything
            return cls(None, f"needs {module}, which does not load: {type(error).__name__}: {error}")

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function."""
        assert self.function is not None, self.reason  # noqa: S101  (`KernelTable.select` has looked)
        return self.function(*arguments, **options)


@dataclass(frozen=True)
class KernelBackend(Generic[RequestT]):
    """One implementation of an operation.

    Attributes:
        name: as on the command line.
        run: computes it; the arguments are the operation's own.
        devices, dtypes: those that it works on; empty for any.
        capability: the least of the GPU.
        library: what has to be installed.
        refusal: why it cannot serve a request beyond all this, or an empty string.

    Reasons are verb phrases that continue its name: "needs ...", "computes in ...".
    """

    name: str
    run: Callable[..., Tensor]
    devices: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    capability: Capability = (0, 0)
    library: OptionalImport | None = None
    refusal: Callable[[RequestT], str] | None = None

    def why_not(self, request: RequestT) -> str:
        """The reason why it cannot serve the request, or an empty string."""
        if self.devices and request.device not in self.devices:
            return f"needs a {' or '.join(self.devices)} device, this is {request.device}"
        if self.library is not None and self.library.function is None:
            return self.library.reason
        if request.device == "cuda" and request.capability < self.capability:
            needed, here = (f"{major}.{minor}" for major, minor in (self.capability, request.capability))
            return f"needs compute capability {needed} or newer, this GPU has {here}"
        if self.dtypes and request.dtype not in self.dtypes:
            return f"computes in {' or '.join(map(_short, self.dtypes))}, not {_short(request.dtype)}"
        return "" if self.refusal is None else self.refusal(request)


@dataclass(frozen=True)
class KernelTable(Generic[RequestT]):
    """The backends of one operation.

    Attributes:
        operation: its name, for messages.
        backends: by name.
        preference: their names for a request, the fastest first; others run when they are asked for.
    """

    operation: str
    backends: Mapping[str, KernelBackend[RequestT]]
    preference: Callable[[RequestT], Sequence[str]]

    def select(self, request: RequestT, name: str = "auto") -> KernelBackend[RequestT]:
        """The backend of that name, or for "auto" the preferred one of those that can serve the request.

        Raises:
            UserError: the named one does not exist or cannot serve the request; it says why, and what can.
                Under torch.compile the error arrives wrapped, so check a person's choice before compiling.
        """
        for candidate in self.preference(request) if name == "auto" else (name,):
            if candidate in self.backends and not self.backends[candidate].why_not(request):
                return self.backends[candidate]
        reasons = {other: backend.why_not(request) for other, backend in self.backends.items()}
        able = [other for other, reason in reasons.items() if not reason]
        wrong = "finds nothing that can do this" if name == "auto" else "does not exist"
        raise UserError(
            f"the {self.operation} kernel {name!r} {reasons.get(name, wrong)}",
            fix=f"What works here: {', '.join(['auto', *able] if able else ['nothing'])}.",
        )

    def describe(self, request: RequestT) -> str:
        """The backend of "auto" for a request, and why not the others, in one line.

        Such as `auto -> X; also works: ...; not here: ...`.
        """
        reasons = {name: backend.why_not(request) for name, backend in self.backends.items()}
        chosen = next((name for name in self.preference(request) if not reasons[name]), "none")
        able = [name for name, reason in reasons.items() if not reason and name != chosen]
        unable = [f"{name} ({reason})" for name, reason in reasons.items() if reason]
        text = f"auto -> {chosen}"
        if able:
            text += f"; also works: {', '.join(able)}"
        return text + (f"; not here: {', '.join(unable)}" if unable else "")


def compute_capability(device: torch.device) -> Capability:
    """The capability of a GPU; (0, 0) of any other device."""
    return CAPABILITIES[device.index or 0] if device.type == "cuda" else (0, 0)


def _capabilities() -> tuple[Capability, ...]:
    if not torch.cuda.is_available():
        return ()
    return tuple(torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count()))


CAPABILITIES = _capabilities()  # of all GPUs, asked once: torch.compile cannot trace the question


def accum_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums: float32 or better."""
    return torch.promote_types(dtype, torch.float32)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
