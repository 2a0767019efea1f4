"""A machine's request: a script without values, attributes without credentials, a package with a hash."""

import http.server
import io
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cpplm.cloud.inputs import add_inputs, fetch_corpus, fetch_tokenizer
from cpplm.cloud.node import train_command
from cpplm.cloud.spec import RunSpec, read_spec, write_spec
from cpplm.cloud.startup import _pack_source, add_package, node_request
from cpplm.cloud.watch_state import Create
from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.core.storage import Storage, sha256
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.metadata_server import MetadataServer, metadata_server
from tests.moto_bucket import moto_bucket

SECRETS = {"AWS_SECRET_ACCESS_KEY": "hush-aws", "GOOGLE_APPLICATION_CREDENTIALS": "/hush/google.json",
           "WANDB_API_KEY": "hush-wandb"}  # fmt: skip
NODE = """
import os, pathlib
pathlib.Path("ran").write_text(os.environ["CPPLM_RUN"] + "|" + os.environ["CPPLM_ATTEMPT"])
"""


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with moto_bucket(monkeypatch) as url:
        yield f"{url}/mine"


@pytest.fixture
def metadata() -> Iterator[MetadataServer]:
    with metadata_server() as server:
        yield server


# ---- what a machine is given ------------------------------------------------------------------------------


def test_no_value_is_in_the_script_and_no_credential_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    spec = RunSpec(
        "gs://my-bucket/my-run", "gs://my-bucket/corpus", "cpp-32k", spot=True,
        package="gs://my-bucket/my-run/packages/cpplm.tar.gz", package_sha256="0123" * 16,
    )  # fmt: skip
    request = node_request(spec, "a-name", Create(7, "us-east5-b"))
    script = request.metadata.pop("startup-script")
    assert request.metadata == {
        "cpplm-run": "gs://my-bucket/my-run", "cpplm-attempt": "7", "cpplm-python": "install",
        "cpplm-package": "gs://my-bucket/my-run/packages/cpplm.tar.gz", "cpplm-package-sha256": "0123" * 16,
    }  # fmt: skip
    assert not [value for value in request.metadata.values() if value != "7" and value in script and
                value != "install"]  # fmt: skip
    assert "hush" not in repr(request) + script
    assert (request.type, request.runtime, request.spot) == ("v6e-4", "v2-alpha-tpuv6e", True)
    again = node_request(spec, "a-name", Create(7, "us-east5-b"))
    other = node_request(spec, "another-name", Create(7, "us-east5-b"))
    assert request.request_id == again.request_id != other.request_id


def package(folder: Path) -> tuple[str, str]:
    """An archive in which `cpplm.cloud.node` writes a file: its name and hash."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in {"__init__.py": "", "cloud/__init__.py": "", "cloud/node.py": NODE}.items():
            entry = tarfile.TarInfo(f"cpplm/src/cpplm/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    (folder / "cpplm.tar.gz").write_bytes(buffer.getvalue())
    return "cpplm.tar.gz", sha256(buffer.getvalue())


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address at which it is served."""
    folder = tmp_path / "files"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def boot(
    metadata: MetadataServer, work: Path, programs: Path | None = None, **attributes: str
) -> subprocess.CompletedProcess[str]:
    for name, value in attributes.items():
        metadata.set(f"instance/attributes/cpplm-{name.replace('_', '-')}", value)
    script = Path(node_request.__code__.co_filename).with_name("startup.sh")
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}", "GCE_METADATA_HOST": metadata.host,
        "CPPLM_WORK": str(work), "no_proxy": "127.0.0.1",
    }  # fmt: skip
    return subprocess.run(
        ["bash", str(script)], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


HOSTILE = ("gs://b/$(touch pwned)", "gs://b/`touch pwned`", "gs://b/;touch pwned",
           "gs://b/' \"touch pwned\" '", "gs://b/a\ntouch pwned")  # fmt: skip


@pytest.mark.parametrize("run", HOSTILE)
def test_values_of_attributes_are_data(
    run: str, metadata: MetadataServer, files: tuple[Path, str], tmp_path: Path
) -> None:
    name, digest = package(files[0])
    work = tmp_path / "a folder"
    done = boot(metadata, work, run=run, attempt="7", package=f"{files[1]}/{name}", package_sha256=digest,
                python=sys.executable)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (work / "ran").read_text() == f"{run}|7"
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("digest", ["0" * 64, "", "x", "--help"])
def test_a_package_with_another_hash_is_not_opened(
    digest: str, metadata: MetadataServer, files: tuple[Path, str], tmp_path: Path
) -> None:
    name, _ = package(files[0])
    work = tmp_path / "work"
    done = boot(metadata, work, run="gs://b/r", attempt="7", package=f"{files[1]}/{name}",
                package_sha256=digest, python=sys.executable)  # fmt: skip
    assert done.returncode != 0
    assert [path.name for path in work.iterdir()] == [name]


PYTHON = """#!/bin/bash
if [[ $* == "-m venv venv" ]]; then
  mkdir -p venv/bin
  cp "$0" venv/bin/python
  cp "$0" venv/bin/pip
else
  echo "${0##*/} $*" >> calls
fi
"""


def test_an_image_without_the_dependencies_gets_them(
    metadata: MetadataServer, files: tuple[Path, str], tmp_path: Path
) -> None:
    """With programs in place of Python and pip that write down how they are called."""
    programs, work = tmp_path / "programs", tmp_path / "work"
    programs.mkdir()
    (programs / "python3.12").write_text(PYTHON)
    (programs / "python3.12").chmod(0o700)
    name, digest = package(files[0])
    done = boot(metadata, work, programs, run="gs://b/r", attempt="7", package=f"{files[1]}/{name}",
                package_sha256=digest, python="install")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (work / "calls").read_text().splitlines() == [
        "pip install --quiet -c cpplm/constraints.txt ./cpplm[tpu]", "python -m cpplm.cloud.node",
    ]  # fmt: skip


def test_a_missing_attribute_stops_the_script(metadata: MetadataServer, tmp_path: Path) -> None:
    done = boot(metadata, tmp_path / "work", run="gs://b/r")
    assert done.returncode != 0
    assert "404" in done.stderr


def test_the_source_that_runs_here_is_packed(bucket: str) -> None:
    run = Storage(bucket)
    spec = add_package(RunSpec(bucket, "c", "t"), run)
    name, data = _pack_source()  # once more, to the same bytes
    assert spec.package.endswith(f"/{name}")
    assert run.read(spec.package.removeprefix(f"{bucket}/")) == data
    assert spec.package_sha256 == sha256(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
    assert {"cpplm/pyproject.toml", "cpplm/constraints.txt", "cpplm/src/cpplm/cloud/startup.sh"} < set(names)
    assert not [each for each in names if each.endswith(".pyc") or ".." in each]
    assert node_request(spec, "n", Create(1, "z")).metadata["cpplm-package"].startswith("http://127.0.0.1:")
    with pytest.raises(UserError, match="has no hash"):
        add_package(RunSpec(bucket, "c", "t", package="gs://b/cpplm.whl"), run)
    with pytest.raises(UserError, match="machines fetch packages from gs"):
        node_request(RunSpec(bucket, "c", "t", package="az://b/cpplm.whl"), "n", Create(1, "z"))


# ---- corpus and tokenizer ---------------------------------------------------------------------------------


def test_inputs_travel_through_the_bucket_and_are_compared(
    bucket: str, corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    run = Storage(bucket)
    spec = write_spec(run, add_inputs(RunSpec(bucket, str(corpus), str(tokenizer_path)), run))
    assert spec.corpus.startswith(bucket)
    assert read_spec(run) == spec
    here = fetch_corpus(spec, tmp_path / "corpus")
    assert ShardReader(here).fingerprint() == ShardReader(corpus).fingerprint()
    fetched = fetch_tokenizer(spec, tmp_path / "tokenizer")
    assert Tokenizer.load(Path(fetched)).hash == Tokenizer.load(tokenizer_path).hash
    shard = tmp_path / "corpus" / "train_00000.parquet"
    shard.write_bytes(b"half")  # of a machine that was taken away
    fetch_corpus(spec, tmp_path / "corpus")
    assert shard.stat().st_size > 4


@pytest.mark.parametrize("damaged", ["manifest.json", "train_00000.parquet", "tokenizer"])
def test_inputs_that_changed_are_refused(
    damaged: str, bucket: str, corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    run = Storage(bucket)
    spec = add_inputs(RunSpec(bucket, str(corpus), str(tokenizer_path)), run)
    name = spec.tokenizer if damaged == "tokenizer" else f"{spec.corpus}/{damaged}"
    inside = name.removeprefix(f"{bucket}/")
    run.write(inside, run.read(inside)[:-1] + b" ")
    with pytest.raises(UserError, match=r"is not the one that the run was started with|is damaged"):
        fetch_corpus(spec, tmp_path / "corpus")
        fetch_tokenizer(spec, tmp_path / "tokenizer")


def test_the_command_that_trains() -> None:
    train = {
        "depth": 4,
        "document_mask": True,
        "no_compile": False,
        "mesh": "data=4",
        "engram_layers": [1, 2],
    }
    spec = RunSpec("gs://b/r", "c", "t", train, type="v6e-4")
    command = train_command(spec, "corpus", "tok", "run")
    assert command[3:] == [
        "train", "corpus", "--tokenizer", "tok", "--out", "run", "--backend", "jax",
        "--upload_dir", "gs://b/r/checkpoints", "--heartbeat_seconds=10.0", "--depth=4", "--document_mask",
        "--mesh=data=4", "--engram_layers", "1", "2",
    ]  # fmt: skip
    several = train_command(RunSpec("gs://b/r", "c", "t", type="v6e-16"), "corpus", "tok", "run")
    assert "--multi_host" in several
    assert "--checkpoint_dir" in several
