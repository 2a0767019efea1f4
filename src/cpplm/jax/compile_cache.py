"""JAX's cache of compiled programs, kept in the bucket of a run: the next machine compiles nothing again.

    RUN/compile_cache/tpu/jit_step-<key>-cache.<sha256 of the content>

Entries are downloaded into an empty folder before the first compilation, and new ones uploaded after it. What
is not as its name says is deleted, and compiled again. The cache is a help and no more: without the bucket,
training goes on. Whoever may write to the bucket can have code run here, as JAX says of any such cache.
"""

from __future__ import annotations

import re
import tempfile
import threading
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from cpplm.core.errors import UserError
from cpplm.core.hardware import processor_features
from cpplm.core.progress import log_info
from cpplm.core.storage import Storage, sha256

FOLDER = "compile_cache"
_DIR = "jax_compilation_cache_dir"
_XLA_CACHES = (
    "jax_persistent_cache_enable_xla_caches"  # GPUs': with them the keys depend on the folder's path
)
_ENTRY = re.compile(r"([\w.-]+-cache)\.([0-9a-f]{64})")
_LAST_SECONDS = 10.0  # that the end of a session waits for uploads


class CompileCache:
    """The programs of this process and of its run's bucket. Use as a context manager.

    Args:
        storage: of the run.
        writes: this process is the one that uploads; in a multi-host run JAX writes entries on the first.
    """

    def __init__(self, storage: Storage, *, writes: bool = True) -> None:
        self._storage, self._writes = storage, writes
        self._remote = f"{FOLDER}/{_machine()}"
        self._uploads: list[threading.Thread] = []

    def __enter__(self) -> CompileCache:
        """Download; from now on JAX keeps its programs in a folder of this process."""
        self._folder = tempfile.TemporaryDirectory(prefix="cpplm-programs-")
        self._local = Path(self._folder.name)
        self._before = {name: jax.config.values[name] for name in (_DIR, _XLA_CACHES)}
        try:
            self._known = self._download()
        except UserError as error:
            self._known = set()
            log_info(f"no compiled programs from the bucket: {error}")
        self._use({_DIR: self._folder.name, _XLA_CACHES: "none"})
        return self

    def __exit__(self, *error: object) -> None:
        """Upload what is left, unless that takes too long."""
        self.upload()
        for thread in self._uploads:
            thread.join(_LAST_SECONDS)
        self._use(self._before)
        self._folder.cleanup()

    def upload(self) -> None:
        """Upload new programs in a thread; nothing may be compiling now, as JAX writes files in place."""
        new = {path.name: path.read_bytes() for path in self._local.glob("*-cache")}
        new = {name: data for name, data in new.items() if name not in self._known}
        self._known |= new.keys()
        if new and self._writes:
            self._uploads.append(threading.Thread(target=self._write, args=(new,), daemon=True))
            self._uploads[-1].start()

    def _download(self) -> set[str]:
        """Names of the sound entries, which are here now."""
        known = set[str]()
        for path in self._storage.list_names(self._remote):
            match = _ENTRY.fullmatch(path.removeprefix(f"{self._remote}/"))
            if match is None or match[1] in known:
                continue
            data = self._storage.read(path)
            if sha256(data) == match[2]:
                (self._local / match[1]).write_bytes(data)
                known.add(match[1])
                continue
            log_info(f"{self._storage.path(path)} is damaged, and is compiled again")
            if self._writes:
                self._storage.delete([path])
        if known:
            log_info(f"{len(known)} compiled programs from {self._storage.path(self._remote)}")
        return known

    def _write(self, new: dict[str, bytes]) -> None:
        try:
            for name, data in new.items():
                self._storage.create(f"{self._remote}/{name}.{sha256(data)}", data)
        except UserError as error:
            log_info(f"compiled programs stay here: {error}")

    @staticmethod
    def _use(config: dict[str, str | None]) -> None:
        for name, value in config.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _machine() -> str:
    """Platform of the programs: a CPU's are of its own instructions, which JAX's keys do not tell apart."""
    platform = jax.devices()[0].platform
    return f"cpu_{sha256(processor_features().encode())[:12]}" if platform == "cpu" else platform
