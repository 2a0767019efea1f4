"""torch.compile for the loss, before the first step and in spite of what an earlier run left in its cache.

A later run of the same model takes the compiled graphs from torch's cache on disk: it starts in seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.compiler.config
from filelock import FileLock, Timeout
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.distributed.fsdp import FSDPModule

import cpplm.model
from cpplm.core.progress import log_info
from cpplm.model.transformer import Losses, Transformer
from cpplm.train.sharding import compile_blocks

LossFunction = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], Losses]
"""`Transformer.training_losses`: ids, targets, weight of further tokens, documents, shares of targets."""


def compiled_losses(
    model: Transformer, shapes: Sequence[tuple[int, int]], *, documents: bool = False
) -> LossFunction:
    """The training losses, compiled where that works.

    Args:
        model: whose losses they are; its gradients are None afterwards.
        shapes: batch and time of all batches that will come.
        documents: whether they come with documents.
    """
    if not can_compile(model.device):
        log_info(f"training without torch.compile, which is slower: no g++ found, or {model.device.type}")
        return model.training_losses
    log_info("compiling the model, which takes a minute at first and some seconds later on")
    torch.compiler.config.cache_key_tag = code_tag()
    losses = _compiled(model)
    remove_damaged_libraries()
    try:
        _run_once(losses, model, shapes, documents)
    except BackendCompilerFailed as error:
        if not isinstance(error.inner_exception, ImportError):
            raise
        remove_damaged_libraries()  # of a run that was killed just now
        torch.compiler.reset()
        _run_once(losses, model, shapes, documents)
    return losses


def code_tag(folder: Path = Path(cpplm.model.__file__).parent) -> str:
    """Changes with the code in `folder`.

    torch's cache knows our operators by their names. What a graph got from their code, such as how they are
    differentiated, must not outlive that code.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return f"cpplm-{digest.hexdigest()[:16]}"


def _compiled(model: Transformer) -> LossFunction:
    if isinstance(model, FSDPModule):
        compile_blocks(model)
        return model.training_losses
    compiled = torch.compile(model.training_losses, dynamic=False, fullgraph=True)

    def losses(
        ids_BT: Tensor,
        targets_BT: Tensor,
        multi_token_weight: Tensor,
        documents_BT: Tensor | None,
        target_shares: Tensor | None,
    ) -> Losses:
        return compiled(
            ids_BT,
            targets_BT,
            multi_token_weight,
            documents_BT,
            target_shares,
            ngram_embeddings=model.embed_ngrams(ids_BT, None, documents_BT),
        )

    return losses


def can_compile(device: torch.device) -> bool:
    """True if torch.compile works for this device here."""
    return device.type == "cuda" or (device.type == "cpu" and shutil.which("g++") is not None)


def _run_once(
    losses: LossFunction, model: Transformer, shapes: Sequence[tuple[int, int]], documents: bool
) -> None:
    """Compile now, so that no step's time contains it: for each mode that the run will be in."""
    weight = torch.zeros((), device=model.device)
    shares = torch.ones(1 + len(model.multi_token), device=model.device)
    for shape in shapes:
        # Separate tensors: a graph compiled for one that is all of them would not do for a batch.
        ids_BT, targets_BT, documents_BT = torch.zeros(
            3, *shape, dtype=torch.int64, device=model.device
        ).unbind()
        for dense in (True, True, False, False) if model.config.dsa else (False, False):
            model.dense_attention = dense  # twice: kernels inside the loss are compiled at their second call
            losses(ids_BT, targets_BT, weight, documents_BT if documents else None, shares).total.backward()
            model.zero_grad(set_to_none=True)


def remove_damaged_libraries() -> None:
    """Clear torch's cache of what a killed compiler left: loading half a library ends the process.

    What another process is just writing stays: it holds torch's lock of that name.
    """
    for path in Path(cache_dir()).rglob("*.so"):
        if _is_whole(path):
            continue
        lock = FileLock(Path(cache_dir()) / "locks" / f"{path.name.partition('.')[0]}.lock", timeout=0)
        with contextlib.suppress(Timeout), lock:
            if not _is_whole(path):
                log_info(f"{path} was cut short; it will be compiled again")
                path.unlink(missing_ok=True)


def _is_whole(path: Path) -> bool:
    """True if an ELF file of 64 bits is as long as its header says; other files are taken for whole.

    The section headers come last: e_shoff, e_shentsize and e_shnum (System V ABI, ELF-64 object files, 1.5).
    """
    try:
        with path.open("rb") as file:
            head = file.read(64)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return True
    if len(head) < 64 or not head.strip(b"\0"):
        return False
    if head[:6] != b"\x7fELF\x02\x01":
        return True
    (offset,) = struct.unpack_from("<Q", head, 0x28)
    entry_size, count = struct.unpack_from("<HH", head, 0x3A)
    return bool(offset) and size >= offset + entry_size * count
