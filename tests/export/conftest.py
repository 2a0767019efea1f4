"""`transformers` copies modeling code before it imports it: into a folder of the test session."""

from pathlib import Path

import pytest
from transformers import dynamic_module_utils


@pytest.fixture(scope="session", autouse=True)
def modules_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hf_modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
        yield folder
