"""All kinds of tasks by name."""

from __future__ import annotations

from cpplm.tasks.ask import AskKind
from cpplm.tasks.commit import CommitKind
from cpplm.tasks.doc import DocKind
from cpplm.tasks.fill import FillKind
from cpplm.tasks.fix import DenoiseKind, FixKind
from cpplm.tasks.kind import TaskKind
from cpplm.tasks.own import OwnKind
from cpplm.tasks.tiny import TinyKind

_ALL = (TinyKind(), FixKind(), DenoiseKind(), FillKind(), DocKind(), OwnKind(), AskKind(), CommitKind())
KINDS: dict[str, TaskKind] = {kind.name: kind for kind in _ALL}
