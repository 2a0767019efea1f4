"""Models that tests of this folder share."""

from pathlib import Path

import pytest

from cpplm.evaluate.models.hf_model import HfModel
from cpplm.evaluate.models.hf_tokens import HfTokens
from tests.certificates import certificates_are_read_once  # noqa: F401  (a fixture)
from tests.evaluate.models.hf_dirs import write_hf_dir
from tests.evaluate.models.loopback import Loopback, serve


@pytest.fixture(scope="session")
def hf_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_dir(tmp_path_factory.mktemp("hf") / "tiny")


@pytest.fixture(scope="session")
def hf_model(hf_dir: Path) -> HfModel:
    return HfModel.load(hf_dir, device_type="cpu", precision="fp32")


@pytest.fixture(scope="session")
def hf_tokens(hf_dir: Path) -> HfTokens:
    return HfTokens(hf_dir)


@pytest.fixture
def loopback(hf_model: HfModel, hf_tokens: HfTokens, monkeypatch: pytest.MonkeyPatch) -> Loopback:
    """A server with that model; second attempts come soon, and no proxy of the machine stands between."""
    monkeypatch.setattr("cpplm.evaluate.models.server.FIRST_WAIT", 0.001)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return serve(Loopback(hf_model, hf_tokens))
