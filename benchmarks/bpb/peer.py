"""The peer of `time_to_bpb.py`: a Llama of transformers by the usual recipe.

`LlamaForCausalLM`, a byte-level BPE as GPT-2's, files in random order joined by an end-of-text token and cut
into blocks, AdamW (betas 0.9 and 0.95, weight decay 0.1 on matrices), gradients clipped to norm 1, linear
warm-up over 5 % of the time, then a cosine to 0. With and without torch.compile, the faster one is taken.

On the clock is what a step takes. Building, compiling and measuring are not; neither is tokenising, which is
done before the first step, while ours tokenises as it trains.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from measuring import make_llama, progress
from torch import Tensor, nn

from bpb.data import END_OF_TEXT, Data
from bpb.scoring import Curve, HeldOut, Score
from cpplm.core.errors import UserError
from cpplm.core.hardware import choose_device, choose_dtype
from cpplm.core.settings import Precision
from cpplm.tokenizer.special_tokens import IGNORE_INDEX
from cpplm.train.compile import can_compile

BETAS, WEIGHT_DECAY, MAX_NORM, WARMUP = (0.9, 0.95), 0.1, 1.0, 0.05
_TRIAL_PASSES = 5
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Peer:
    """What is tried of the peer."""

    depth: int
    """Layers."""
    dim: int
    """Width."""
    head_dim: int
    """Width of a head."""
    learning_rate: float
    """At the peak."""
    batch_tokens: int
    """Tokens per optimizer step."""
    rows: int
    """Blocks per forward pass."""
    seq_len: int
    """Context length."""
    device: str
    """As of `cpplm train`."""
    precision: Precision
    """As of `cpplm train`."""
    seed: int
    """Of the weights and the order of files and blocks."""

    def __post_init__(self) -> None:
        if self.dim % self.head_dim:
            raise UserError(f"--peer_dim {self.dim} is not a multiple of its heads' {self.head_dim}")
        if self.batch_tokens % (self.rows * self.seq_len):
            raise UserError(
                f"--peer_batch_tokens {self.batch_tokens} is not a multiple of {self.rows} x {self.seq_len}"
            )


class Llama:
    """The model, and its loss under the number format that ours has on the same device."""

    def __init__(self, peer: Peer, vocab_size: int) -> None:
        """Random weights."""
        torch.manual_seed(peer.seed)
        self.device = choose_device(peer.device)
        self._bfloat16 = choose_dtype(peer.precision, self.device) == torch.bfloat16
        model = make_llama(
            vocab_size, peer.depth, peer.dim, peer.dim // peer.head_dim,
            max_position_embeddings=peer.seq_len, use_cache=False,
        )  # fmt: skip
        self.model: nn.Module = model.train().to(self.device)

    def losses(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Nats, shape BT, 0 where the target is `IGNORE_INDEX`."""
        return self._cross_entropy(inputs_BT, targets_BT, "none").view_as(targets_BT)

    def mean_loss(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Nats per token: what training minimises."""
        return self._cross_entropy(inputs_BT, targets_BT, "mean")

    def _cross_entropy(self, inputs_BT: Tensor, targets_BT: Tensor, reduction: str) -> Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            logits_BTV = self.model(input_ids=inputs_BT).logits
        logits = logits_BTV.float().flatten(0, 1)
        return F.cross_entropy(logits, targets_BT.flatten(), ignore_index=IGNORE_INDEX, reduction=reduction)


def train_peer(peer: Peer, work: Path, minutes: float, points: int) -> dict[str, Any]:
    """Train a Llama for so many minutes."""
    wall, budget = time.perf_counter(), 60 * minutes
    data = Data(work)
    tokenizer = tokenizers.Tokenizer.from_file(str(data.peer_tokenizer))
    llama = Llama(peer, tokenizer.get_vocab_size())
    loss_function, compiled = faster(llama, peer, tokenizer.get_vocab_size())
    optimizer = adamw(llama.model)
    batches = blocks(data.texts("train"), tokenizer, peer)
    held_out = held_out_of(data, tokenizer, peer)
    clock, steps = 0.0, 0

    def measure() -> Score:
        found = held_out.score(llama.losses, llama.device)
        progress(f"    {clock:6.1f} s: {found.code:.4f} bits per byte")
        return found

    curve = Curve(budget, points, measure)
    while clock < budget:
        begin = time.perf_counter()
        optimizer_step(peer, llama, optimizer, loss_function, batches, clock / budget)
        clock += time.perf_counter() - begin
        steps += 1
        curve.reached(clock)
    return {
        **curve.figures(),
        "steps": steps,
        "tokens": steps * peer.batch_tokens,
        "seconds": clock,
        "wall_seconds": time.perf_counter() - wall,
        "parameters": sum(parameter.numel() for parameter in llama.model.parameters()),
        "compiled": compiled,
        "peer": asdict(peer),
    }


def optimizer_step(
    peer: Peer,
    llama: Llama,
    optimizer: torch.optim.Optimizer,
    loss_function: Loss,
    batches: Iterator[tuple[Tensor, Tensor]],
    share: float,
) -> float:
    """One step at this share of the run; returns the last loss, for which the device must have finished."""
    for group in optimizer.param_groups:
        group["lr"] = peer.learning_rate * warmup_and_cosine(share)
    accumulation = peer.batch_tokens // (peer.rows * peer.seq_len)
    for _ in range(accumulation):
        inputs_BT, targets_BT = next(batches)
        loss = loss_function(inputs_BT.to(llama.device), targets_BT.to(llama.device))
        (loss / accumulation).backward()
    nn.utils.clip_grad_norm_(llama.model.parameters(), MAX_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Vectors (the norms' weights) are not decayed; every step sets the rate."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=BETAS, fused=True)


def warmup_and_cosine(share: float) -> float:
    """The learning rate over its peak: linear from 0, then half a cosine to 0."""
    if share < WARMUP:
        return share / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (share - WARMUP) / (1 - WARMUP)))


def blocks(texts: list[str], tokenizer: tokenizers.Tokenizer, peer: Peer) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches (inputs, targets), shape BT: files joined, cut into blocks, shuffled every epoch.

    What does not fill a block, or a batch at an epoch's end, is left out.
    """
    generator = torch.Generator().manual_seed(peer.seed)
    end = torch.tensor([tokenizer.token_to_id(END_OF_TEXT)])
    encoded = [torch.tensor(encoding.ids) for encoding in tokenizer.encode_batch(texts)]
    order = torch.randperm(len(encoded), generator=generator).tolist()
    stream = torch.cat([end, *(part for number in order for part in (encoded[number], end))])
    count = (len(stream) - 1) // peer.seq_len
    if count < peer.rows:
        raise UserError(
            f"the training files fill only {count} blocks of {peer.seq_len} tokens", fix="Give more."
        )
    inputs = stream[: count * peer.seq_len].view(count, peer.seq_len)
    targets = stream[1 : count * peer.seq_len + 1].view(count, peer.seq_len)
    # A function of its own: tokenising must be over when this one returns, not when the clock runs.
    return _shuffled(inputs, targets, peer.rows, generator)


def _shuffled(
    inputs: Tensor, targets: Tensor, rows: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        for chosen in torch.randperm(len(inputs), generator=generator).split(rows):
            if len(chosen) == rows:
                yield inputs[chosen], targets[chosen]


def faster(llama: Llama, peer: Peer, vocab_size: int) -> tuple[Loss, bool]:
    """The loss as it is or compiled, whichever takes less time forward and backward; and which it is."""
    ways: dict[bool, Loss] = {False: llama.mean_loss}
    if can_compile(llama.device):
        ways[True] = torch.compile(llama.mean_loss, dynamic=False)
    seconds = {compiled: _trial(llama, way, peer, vocab_size) for compiled, way in ways.items()}
    for compiled, median in seconds.items():
        progress(f"    forward and backward{', compiled' * compiled}: {median:.3f} s")
    best = min(seconds, key=lambda compiled: seconds[compiled])
    return ways[best], best


def _trial(llama: Llama, loss_function: Loss, peer: Peer, vocab_size: int) -> float:
    """Seconds of one forward and backward pass: the median of some, after two that compile."""
    times = []
    for _ in range(2 + _TRIAL_PASSES):
        ids = torch.randint(vocab_size, (2, peer.rows, peer.seq_len), device=llama.device)
        begin = time.perf_counter()
        loss_function(ids[0].clone(), ids[1].clone()).backward()
        if llama.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        llama.model.zero_grad(set_to_none=True)
    return statistics.median(times[2:])


def held_out_of(data: Data, tokenizer: tokenizers.Tokenizer, peer: Peer) -> HeldOut:
    """The held-out files in the peer's tokens.

    Raises:
        UserError: tokens that do not give back the text: its bytes could not be compared.
    """
    texts = data.texts("held_out")
    encoded = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    for text, ids in zip(texts, encoded, strict=True):
        if tokenizer.decode(ids, skip_special_tokens=False) != text:
            raise UserError("the byte-level BPE changes a held-out file", fix="Leave its project out.")
    start = tokenizer.token_to_id(END_OF_TEXT)
    # Byte-level: each character of a token's name stands for one byte.
    names = (tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size()))
    return HeldOut.of(
        texts,
        encoded,
        token_bytes=np.array([len(name) for name in names]),
        start_id=start,
        seq_len=peer.seq_len,
        rows=peer.rows,
    )
