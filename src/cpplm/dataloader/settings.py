"""Settings of the dataloader."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cpplm.core.errors import UserError


@dataclass(frozen=True)
class DataSettings:
    """Mixture, order and form of the training rows."""

    data_weights: tuple[float, ...] = ()
    """Share of the rows from each --data_dir (empty = in proportion to its bytes of training text)."""
    late_data_weights: tuple[float, ...] = ()
    """Shares that replace --data_weights at the end of the run (empty = no change)."""
    late_data_ratio: float = 0.1
    """Last part of the run that uses --late_data_weights, as a fraction of the run."""
    streaming_data: bool = False
    """Start before the corpus is complete: wait for new shards until its folder has the file `_COMPLETE`."""
    data_workers: int = 0
    """Processes that tokenize and pack ahead of the step (0 = a thread of this one)."""
    tokenizer_threads: int = 4
    """Threads that tokenize, where no processes do."""
    token_cache: Path | None = None
    """Keep tokenized shards in this folder, for the next run."""
    document_mask: bool = False
    """Attention stays inside a document where several share a row."""
    short_seq_len: int = -1
    """Begin with rows of this many tokens, a divisor of --max_seq_len (-1 = no)."""
    short_seq_ratio: float = 0.5
    """Share of the run with --short_seq_len."""

    def __post_init__(self) -> None:
        if self.tokenizer_threads < 1:
            raise UserError(f"--tokenizer_threads {self.tokenizer_threads} must be at least 1")
        if self.data_workers < 0:
            raise UserError(f"--data_workers {self.data_workers}", fix="Use a number from 0 up.")
        for name in ("late_data_ratio", "short_seq_ratio"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(
                    f"--{name} {getattr(self, name)}", fix="Use a share between 0 and 1, such as 0.2."
                )
        if not self.late_data_weights and self.late_data_ratio != type(self).late_data_ratio:
            raise UserError("--late_data_ratio does nothing without --late_data_weights")
        if self.short_seq_len == -1 and self.short_seq_ratio != type(self).short_seq_ratio:
            raise UserError("--short_seq_ratio does nothing without --short_seq_len")
        if self.short_seq_len != -1 and self.short_seq_len < 1:
            raise UserError(f"--short_seq_len {self.short_seq_len}", fix="Use a positive number of tokens.")

    def row_length(self, progress: float, max_seq_len: int) -> int:
        """Tokens of a row at this point of the run."""
        early = self.short_seq_len != -1 and progress < self.short_seq_ratio
        return self.short_seq_len if early else max_seq_len

    def row_lengths(self, max_seq_len: int) -> tuple[int, ...]:
        """All that a run goes through."""
        return (max_seq_len,) if self.short_seq_len == -1 else (self.short_seq_len, max_seq_len)
