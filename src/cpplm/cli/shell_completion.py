"""`cpplm completion`: a script that completes commands and flags in a shell. tyro writes it.

tyro's script offers nothing for a word without a flag, such as the path of a run; shells then complete files.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import importlib
import io
import operator
import re
import zlib
from typing import Annotated, Any, Literal

import tyro

from cpplm.cli.commands import COMMANDS
from cpplm.cli.report import Report
from cpplm.core.settings import TYRO_CONFIG, Argument, group, tyro_registry, with_shared_flags

# Behind tyro's script, whose function is _tyro_cpplm. bash completes files itself where nothing is offered.
_FILES = {
    "bash": """
_cpplm() {
  _tyro_cpplm "$@"
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} offer offers=()
  for offer in "${COMPREPLY[@]}"; do
    if [[ -z $offer || ( $before == -* && -e $offer ) || ( $offer == -* && $word != -* ) ]]; then continue; fi
    offers+=("$offer")
  done
  COMPREPLY=("${offers[@]}")
}
complete -o default -F _cpplm cpplm
""",
    "zsh": """
(( compstate[nmatches] )) || _files
""",
    "fish": """
complete --command cpplm --force-files --condition 'not string match --quiet -- "-*" (commandline -ct)'
""",
}

_SPECIFICATION = re.compile(r"^COMPLETION_SPEC = (.*)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class CompletionSettings:
    """Settings of `cpplm completion`."""

    shell: Annotated[Literal["bash", "zsh", "fish"], Argument("SHELL", positional=True)]
    """bash, zsh or fish."""


def completion(settings: CompletionSettings) -> Report:
    """The script; commands whose packages are not installed are left out."""
    groups: dict[str, Any] = {}
    for name, command in COMMANDS.items():
        module, _, cls = command.settings.partition(":")
        with contextlib.suppress(ModuleNotFoundError):
            settings_class = getattr(importlib.import_module(f"cpplm.{module}"), cls)
            group_of_name = functools.reduce(
                lambda verbs, word: verbs.setdefault(word, {}), name.split(), groups
            )
            group_of_name[""] = with_shared_flags(settings_class)
    everything = _one_of({first: _of_group(verbs) for first, verbs in groups.items()})
    script = io.StringIO()
    with contextlib.redirect_stdout(script), contextlib.suppress(SystemExit):
        tyro.cli(
            dataclasses.make_dataclass("Everything", [("command", everything)]),
            prog="cpplm",
            args=["--tyro-write-completion", settings.shell, "-"],
            use_underscores=True,
            config=TYRO_CONFIG,
            registry=tyro_registry(completion=True),
        )
    text = _SPECIFICATION.sub(_compressed, script.getvalue(), count=1) + _FILES[settings.shell]
    return Report(text, {"script": text})


def _compressed(specification: re.Match[str]) -> str:
    """The table of all flags, a literal of Python: written out it is longer than fish can take."""
    packed = base64.b64encode(zlib.compress(specification[1].encode(), 9)).decode()
    return (
        "import ast, base64, zlib\n"
        f'COMPLETION_SPEC = ast.literal_eval(zlib.decompress(base64.b64decode("{packed}")).decode())'
    )


def _of_group(verbs: dict[str, Any]) -> type:
    """The flags of the command that is the group's name alone, if there is one, and the group's verbs."""
    fields: list[tuple[str, Any]] = []
    alone = verbs.pop("", None)
    if alone is not None:
        fields.append(("alone", Annotated[alone, group("")]))
    if verbs:
        fields.append(("verb", _one_of({verb: _of_group(below) for verb, below in verbs.items()})))
    return dataclasses.make_dataclass("Group", fields)


def _one_of(options: dict[str, type]) -> Any:
    """A union of classes, which tyro reads as sub-commands."""
    return functools.reduce(
        operator.or_, [Annotated[cls, tyro.conf.subcommand(name)] for name, cls in options.items()]
    )
