"""`cpplm tasks audit`: gold answers are worth everything, cheats nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from cpplm.tasks.grader import Grader
from cpplm.tasks.item import TaskItem
from cpplm.tasks.kind import PARSES, Answer
from cpplm.tasks.kinds import KINDS


@dataclass
class AuditReport:
    """What gold answers and cheats were worth.

    Attributes:
        items: by kind.
        worst: by kind and cheat the highest reward.
        faults: what a grader judges wrongly; empty when the tasks are sound.
    """

    items: dict[str, int] = field(default_factory=dict)
    worst: dict[str, dict[str, float]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def table(self) -> str:
        """For people."""
        lines = [f"{'kind':8} {'items':>6} {'cheats':>7} {'highest reward of a cheat':>26}"]
        for kind, count in self.items.items():
            cheats = self.worst[kind]
            name = max(cheats, key=lambda cheat: cheats[cheat])
            lines.append(f"{kind:8} {count:6} {len(cheats):7} {cheats[name]:>12.2f}  ({name})")
        return "\n".join([*lines, *self.faults])


def audit(items: Iterable[TaskItem], grader: Grader) -> AuditReport:
    """Grade the gold answer of each task, and every cheat."""
    report = AuditReport()
    by_kind: dict[str, list[TaskItem]] = defaultdict(list)
    for item in items:
        by_kind[item.kind].append(item)
    for name, group in by_kind.items():
        kind = KINDS[name]
        report.items[name] = len(group)
        worst = report.worst.setdefault(name, {})
        gold = [(item, kind.gold(item)) for item in group]
        for (item, _), grade in zip(gold, kind.grade(gold, grader), strict=True):
            if not grade.solved:
                report.faults.append(
                    f"{name} {item.key}: the gold answer is worth {grade.reward} ({grade.outcome})"
                )
        cheats = [
            (item, cheat, kind.cut(text)) for item in group for cheat, text in kind.cheats(item).items()
        ]
        grades = kind.grade([(item, Answer(text)) for item, _, text in cheats], grader)
        for (item, cheat, _), grade in zip(cheats, grades, strict=True):
            worst[cheat] = max(worst.get(cheat, 0.0), grade.reward)
            if grade.reward > PARSES:
                report.faults.append(f"{name} {item.key}: the cheat {cheat!r} is worth {grade.reward}")
    return report
