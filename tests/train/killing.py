"""Checkpoint writers in processes of their own, to be killed."""

import multiprocessing
import multiprocessing.process
from pathlib import Path

from cpplm.core.storage import Storage
from cpplm.train.checkpoint.async_writer import CheckpointWriter
from cpplm.train.checkpoint.format import committed_steps
from cpplm.train.checkpoint.save import RetentionPolicy
from cpplm.train.checkpoint.upload import Uploader, missing_steps
from tests.train.checkpoints import FILES, tensors

_CONTEXT = multiprocessing.get_context("forkserver")  # what it preloads is imported once
_CONTEXT.set_forkserver_preload(["tests.train.killing"])


def start_saving(local: Path, remote: Path) -> multiprocessing.process.BaseProcess:
    """Save and upload one checkpoint after the other, from the newest on, until killed."""
    process = _CONTEXT.Process(target=_save_for_ever, args=(local, remote))
    process.start()
    return process


def _save_for_ever(local_path: Path, remote_path: Path) -> None:
    local, remote = Storage(local_path), Storage(remote_path)
    keep = RetentionPolicy(2, every=10)
    step = max(committed_steps(local), default=0)
    uploader = Uploader(local, remote, keep, missing=missing_steps(local, remote, keep))
    with CheckpointWriter(local, keep, uploader=uploader, max_file_bytes=300) as writer:
        while True:
            step += 1
            writer.save(step, tensors(step, size=200), FILES)
