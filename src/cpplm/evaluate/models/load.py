"""Which model is measured: one way to name it on the command line, whatever kind it is of."""

from __future__ import annotations

from cpplm.evaluate.models.checkpoint_model import CheckpointModel
from cpplm.evaluate.models.code_model import CodeModel
from cpplm.evaluate.models.hf_model import HfModel
from cpplm.evaluate.models.url_model import UrlModel
from cpplm.evaluate.settings import EvaluatedModel
from cpplm.generate.settings import ModelSource


def load_model(named: EvaluatedModel) -> CodeModel:
    """The model, ready to be asked.

    Raises:
        UserError: there is none, it cannot be loaded, or the server does not answer.
    """
    if named.url:
        return UrlModel.connect(
            named.url, named.model_name, api_key_env=named.api_key_env, supports_fim=named.supports_fim,
            timeout=named.timeout, at_once=named.eval_batch_size,
        )  # fmt: skip
    if named.hf_dir is not None:
        return HfModel.load(
            named.hf_dir, device_type=named.device_type, precision=named.precision, rows=named.eval_batch_size
        )
    source = ModelSource(named.run, named.step, named.device_type, named.precision)
    return CheckpointModel.load(source, rows=named.eval_batch_size)
