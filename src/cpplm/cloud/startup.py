"""Request for a machine: a start-up script without values, and attributes for it.

cpplm itself is an archive in the run's folder whose hash is an attribute: the script compares it before it
unpacks or runs anything.
"""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from dataclasses import replace
from importlib import resources
from pathlib import Path

import cpplm
from cpplm.cloud.backend import NodeRequest
from cpplm.cloud.catalog import slice_type
from cpplm.cloud.spec import RunSpec
from cpplm.cloud.watch_state import Create
from cpplm.core.errors import UserError
from cpplm.core.storage import Storage, is_bucket, sha256

_BESIDE = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE")


def node_request(spec: RunSpec, name: str, action: Create) -> NodeRequest:
    """The request for the machine of an attempt."""
    metadata = {"cpplm-run": spec.run, "cpplm-attempt": str(action.attempt)}
    if spec.backend != "cloud":
        return NodeRequest(name, action.zone, run=spec.key, attempt=action.attempt, metadata=metadata)
    kind = slice_type(spec.type)
    return NodeRequest(
        name=name,
        zone=action.zone,
        type=kind.accelerator_type,
        runtime=spec.runtime or kind.generation.runtime,
        spot=spec.spot,
        run=spec.key,
        attempt=action.attempt,
        metadata={
            **metadata,
            "cpplm-package": _as_machines_see_it(spec.package),
            "cpplm-package-sha256": spec.package_sha256,
            "cpplm-python": spec.python or "install",
            "startup-script": resources.files("cpplm.cloud").joinpath("startup.sh").read_text(),
        },
    )


def _as_machines_see_it(package: str) -> str:
    """Its URL for curl: gs:// as it is, s3:// of an endpoint of one's own by HTTP.

    Raises:
        UserError: a machine could not fetch it.
    """
    endpoint = os.environ.get("AWS_ENDPOINT", "")
    if package.startswith("s3://") and endpoint:
        return f"{endpoint.rstrip('/')}/{package.removeprefix('s3://')}"
    if package.startswith(("gs://", "https://")):
        return package
    raise UserError(f"{package}: machines fetch packages from gs:// and https://", fix="Put it there.")


def add_package(spec: RunSpec, run: Storage) -> RunSpec:
    """Put cpplm into the run's folder, for machines to fetch it.

    Raises:
        UserError: there is no source to pack, or a URL has no hash.
    """
    if spec.backend != "cloud":
        return spec
    if is_bucket(spec.package):
        if len(spec.package_sha256) != 64:
            raise UserError(f"{spec.package} has no hash", fix='Add package_sha256 = "...".')
        return spec
    name, data = _read_package(Path(spec.package)) if spec.package else _pack_source()
    digest = sha256(data)
    stored = f"packages/{digest[:16]}/{name}"
    if not run.exists(stored):
        run.write(stored, data)
    return replace(spec, package=run.path(stored), package_sha256=digest)


def _read_package(path: Path) -> tuple[str, bytes]:
    try:
        return path.name, path.expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the package {path}: {error}") from error


def _pack_source() -> tuple[str, bytes]:
    """An archive of the source that runs here; the same source gives the same bytes."""
    root = Path(cpplm.__file__).parents[2]
    if not (root / "pyproject.toml").exists():
        raise UserError(
            "cpplm was not installed from its source, so there is nothing to pack",
            fix='Name a wheel: package = "cpplm-....whl".',
        )
    files = [root / name for name in _BESIDE if (root / name).exists()]
    files += [
        path
        for path in sorted((root / "src" / "cpplm").rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".so")
    ]
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in files:
            entry = tarfile.TarInfo(f"cpplm/{path.relative_to(root).as_posix()}")
            entry.size = path.stat().st_size
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    return f"cpplm-{cpplm.__version__}.tar.gz", buffer.getvalue()
