"""A task for SkyPilot, which those who have it can launch: a managed job on spot TPUs.

SkyPilot makes and replaces the machine then, and this package's watcher is not used. JSON strings are YAML.
"""

from __future__ import annotations

import json
import shlex

from cpplm.cloud.catalog import slice_type
from cpplm.cloud.node import train_command
from cpplm.cloud.spec import RunSpec
from cpplm.core.storage import is_bucket
from cpplm.tokenizer.tokenizer import PUBLISHED


def sky_task(spec: RunSpec) -> str:
    """The task as YAML."""
    kind = slice_type(spec.type)
    zones = spec.zones or kind.generation.zones
    corpus, tokenizer = spec.corpus, spec.tokenizer
    mounts = []
    if is_bucket(corpus):
        mounts.append(f"  /data/corpus: {json.dumps(corpus)}")
        corpus = "/data/corpus"
    if tokenizer not in PUBLISHED:
        mounts.append(f"  /data/tokenizer.json: {json.dumps(tokenizer)}")
        tokenizer = "/data/tokenizer.json"
    command = train_command(spec, corpus, tokenizer, "run")
    lines = [
        "# sky jobs launch FILE. Not tried on any cloud.",
        f"name: {json.dumps(spec.key)}",
        "resources:",
        f"  accelerators: {json.dumps(f'tpu-{kind.accelerator_type}')}",
        "  accelerator_args:",
        f"    runtime_version: {json.dumps(spec.runtime or kind.generation.runtime)}",
        f"  use_spot: {json.dumps(spec.spot)}",
        "  any_of:",
        *(f"    - {{infra: {json.dumps(f'gcp/{zone[:-2]}/{zone}')}}}" for zone in zones),
        "workdir: .",
        *(["file_mounts:", *mounts] if mounts else []),
        "setup: |",
        "  pip install uv",
        "  uv venv --python 3.12 ~/venv",
        "  uv pip install --python ~/venv/bin/python -c constraints.txt '.[tpu]'",
        "run: |",
        f"  ~/venv/bin/{shlex.join(['cpplm', *command[3:]])}",
    ]
    return "\n".join(lines) + "\n"
