"""Settings of the server: the flags of `cpplm serve`."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument, group
from cpplm.core.storage import require_path, split_step
from cpplm.generate.settings import (
    DraftSettings,
    ModelSource,
    ProjectSettings,
    SamplingSettings,
    SchedulerLimits,
    ToolLimits,
    require_at_least,
)
from cpplm.train.checkpoint.format import check_run

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class NetworkSettings:
    """Addresses that the server listens on, and clients that it answers."""

    host: str = "127.0.0.1"
    """Address to listen on; the loopback is reached from this machine alone."""
    port: int = 8000
    """Port to listen on (0 = any that is free; the URL is printed)."""
    api_key_env: str = ""
    """Environment variable with the key that clients have to send (empty = none is asked for)."""
    api_key_file: Path | None = None
    """File with such keys, one a line."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may use the server, such as https://example.com; none but its own otherwise."""
    host_names: tuple[str, ...] = ()
    """Names under which clients reach it beside those of the loopback, when it listens there for a proxy."""
    max_connections: int = 4096
    """Connections at the same time; what comes beyond is refused with 503."""
    max_request_bytes: int = 4 << 20
    """Bytes of a request's body; a longer one is refused with 413."""
    idle_timeout: float = 30.0
    """Seconds that a client may take to send its request, and that an idle connection stays open."""
    access_log: bool = False
    """Say on stderr what was requested and with which status it was answered; never texts or keys."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise UserError(f"--port {self.port}", fix="Use a number from 0 to 65535.")
        require_at_least(self, max_connections=1, max_request_bytes=1)
        _refuse_no_time("idle_timeout", self.idle_timeout)
        if not self.host:
            raise UserError("--host is empty", fix="Use 127.0.0.1, or 0.0.0.0 for all of this machine's.")
        if self.host_names and self.host not in LOOPBACK:
            raise UserError("--host_names is looked at on the loopback only", fix="Leave it out.")

    def keys(self) -> tuple[bytes, ...]:
        """The keys that clients may send; none where no key is asked for.

        Raises:
            UserError: the variable or the file holds none, or one that no request could carry.
        """
        keys: dict[str, str] = {}  # by where it stands
        if self.api_key_env:
            where = f"the environment variable {self.api_key_env} (--api_key_env)"
            if not os.environ.get(self.api_key_env, "").strip():
                raise UserError(f"{where} is not set")
            keys[where] = os.environ[self.api_key_env]
        if self.api_key_file is not None:
            try:
                lines = self.api_key_file.expanduser().read_text(encoding="utf-8-sig").split("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"cannot read --api_key_file {self.api_key_file}: {error}") from error
            if not any(line.strip() for line in lines):
                raise UserError(f"--api_key_file {self.api_key_file} holds no key", fix="Write one a line.")
            keys |= {f"--api_key_file {self.api_key_file} line {n}": line for n, line in enumerate(lines, 1)}
        for where, key in keys.items():
            if not (key.strip().isascii() and key.strip().isprintable()):
                raise UserError(
                    f"{where}: the key has characters that an HTTP header cannot carry",
                    fix="Use printable ASCII characters.",
                )
        return tuple(dict.fromkeys(key.strip().encode() for key in keys.values() if key.strip()))


@dataclass(frozen=True)
class BatchSettings:
    """Requests that are answered at a time, and memory for them."""

    max_batch: int = 32
    """Completions that are written at the same time; others wait."""
    max_waiting: int = 128
    """Requests that may wait for their first token; one more is refused with 429."""
    cache_tokens: int = 0
    """Size of the KV cache in tokens, over all requests (0 = enough for --max_batch full contexts)."""
    prefix_cache_tokens: int = 32_768
    """Prefix caching: tokens of finished requests kept in the KV cache, for requests with the same prefix."""
    prefill_chunk: int = 512
    """Chunked prefill: prompt tokens processed between two decoding steps."""
    draft: Literal["off", "lookup", "heads"] = "off"
    """Speculative decoding: lookup = propose what followed the same tokens earlier; heads = use the heads of
    a model trained with --mtp. The output is the same."""

    def __post_init__(self) -> None:
        require_at_least(self, max_waiting=1)
        self.limits()  # has the other minimums

    def limits(self) -> SchedulerLimits:
        """Return the limits of the scheduler."""
        return SchedulerLimits(
            max_batch=self.max_batch,
            cache_tokens=self.cache_tokens,
            prefill_chunk=self.prefill_chunk,
            prefix_cache_tokens=self.prefix_cache_tokens,
            draft=DraftSettings(self.draft),
        )


@dataclass(frozen=True)
class RequestSettings:
    """Defaults and limits of requests."""

    default_new_tokens: int = 256
    """Tokens to write where a request names no limit."""
    max_new_tokens: int = 0
    """Tokens to write at most, whatever a request asks for (0 = as the context allows)."""
    max_choices: int = 16
    """Completions of one request: its prompts times its `n`."""
    temperature: float = 0.8
    """Default where a request names none."""
    top_p: float = 1.0
    """Default where a request names none."""
    top_k: int = 0
    """Default where a request names none (0 = all tokens)."""
    fim_order: Literal["psm", "spm"] = "spm"
    """Order of the text around a hole in the model's input: psm = prefix first; spm = suffix first, so that
    an editor's next request can reuse the KV cache of the last one."""
    request_timeout: float = 600.0
    """Seconds until a request is given up."""
    first_token_timeout: float = 120.0
    """Seconds until a request is given up of which nothing was written yet."""
    grace: float = 20.0
    """Seconds that running requests have when the server is told to stop."""

    def __post_init__(self) -> None:
        require_at_least(self, default_new_tokens=1, max_new_tokens=0, max_choices=1)
        SamplingSettings(temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)  # checks these
        for name in ("request_timeout", "first_token_timeout"):
            _refuse_no_time(name, getattr(self, name))
        if not 0 <= self.grace < math.inf:
            raise UserError(f"--grace {self.grace}", fix="Use 0 or a positive number of seconds.")


@dataclass(frozen=True)
class PageSettings:
    """Compilations for the web page."""

    compiles_at_once: int = 2
    """Programs that the page's users compile and run at the same time, in the sandbox; 0 = none at all."""
    max_source_bytes: int = 262_144
    """Bytes of a program that is to be compiled."""
    cpp_standard: Literal["c++17", "c++20", "c++23"] = "c++20"
    """Standard of the programs that are compiled."""

    def __post_init__(self) -> None:
        if self.compiles_at_once < 0:
            raise UserError(f"--compiles_at_once {self.compiles_at_once}", fix="Use 0 for none, or a number.")
        require_at_least(self, max_source_bytes=1)


@dataclass(frozen=True)
class ServeSettings:
    """Settings of `cpplm serve`."""

    model: ModelSource
    """The model."""
    served_name: str = ""
    """Name of the model for clients (empty = the run's folder and step)."""
    adapter: Annotated[tuple[str, ...], Argument("NAME=RUN")] = ()
    """LoRA adapters of the model that are served beside it, each by its name."""
    weights_dir: Path | None = None
    """Folder of exports of which POST /collective_rpc may load the weights, for `cpplm rl --rollout_urls`."""
    tools: Path | None = None
    """Folder in which the model may search, read and compile by itself during a chat, in the sandbox."""
    tool_limits: Annotated[ToolLimits, group("tool")] = field(default_factory=ToolLimits)
    """Limits of these tools, and of the calculator, which is always there."""
    project: Annotated[ProjectSettings, group("project")] = field(default_factory=ProjectSettings)
    """Project that POST /infill is for."""
    page: Annotated[PageSettings, group("web page")] = field(default_factory=PageSettings)
    """Compilations for the web page."""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    """Network."""
    batch: BatchSettings = field(default_factory=BatchSettings)
    """Batching."""
    requests: Annotated[RequestSettings, group("request")] = field(default_factory=RequestSettings)
    """Defaults and limits of requests."""

    def __post_init__(self) -> None:
        if self.weights_dir is not None and (self.adapters() or self.batch.draft == "heads"):
            raise UserError(
                "--weights_dir replaces the model, not its adapters or heads", fix="Leave them out."
            )
        self.adapters()

    def adapters(self) -> dict[str, str]:
        """The runs of adapters, by name.

        Raises:
            UserError: not of the form NAME=RUN, or a name twice.
        """
        runs: dict[str, str] = {}
        for entry in ",".join(self.adapter).split(",") if self.adapter else ():
            name, _, run = entry.partition("=")
            if not name or not run or name in (*runs, self.served_name):
                raise UserError(f"--adapter {entry}", fix="Write NAME=RUN, each name once.")
            runs[name] = run
        return runs

    def check_paths(self) -> None:
        """Refuse a project or a run that is not there."""
        if self.tools is not None:
            require_path(self.tools)
        for run in self.adapters().values():
            check_run(*split_step(run))


def _refuse_no_time(name: str, seconds: float) -> None:
    if not 0 < seconds < math.inf:
        raise UserError(f"--{name} {seconds}", fix="Use a positive number of seconds.")
