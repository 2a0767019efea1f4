"""The model as clients see it: its name, its context, and whether it fills in."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import PurePosixPath

from cpplm.generate.engine import Engine
from cpplm.generate.sequence import GenerationRequest
from cpplm.serve.settings import ServeSettings
from cpplm.train.checkpoint.format import Checkpoint, Stage


@dataclass(frozen=True)
class ServedModel:
    """An engine under a name. It lives in memory whole: what happens to its files meanwhile is no matter."""

    engine: Engine
    name: str
    supports_fim: bool
    """Whether it was trained on rearranged documents."""
    stage: Stage
    """Training stage; `base` has seen no conversation."""
    path: str
    """Location it was loaded from, as given on the command line."""
    created: int
    """When it was loaded, in seconds since 1970."""

    @classmethod
    def of(cls, engine: Engine, checkpoint: Checkpoint, settings: ServeSettings) -> ServedModel:
        """A checkpoint of ours."""
        folder = "/".join(PurePosixPath(settings.model.run).parts[-2:])
        name = settings.served_name or f"{folder}:{checkpoint.step}"
        return cls(
            engine, name, checkpoint.supports_fim, checkpoint.stage, settings.model.run, int(time.time())
        )

    @property
    def context(self) -> int:
        """Tokens that it can have in view, the prompt and what it writes."""
        return self.engine.model.config.max_seq_len

    def prompt_tokens(self, request: GenerationRequest) -> int:
        """Tokens of a prompt as it was sent, <BOS> too: also those of its end, which is spelt anew."""
        return len(request.ids) + len(self.engine.tokenizer.encode(request.prefix))
