"""POST /collective_rpc, vLLM's way to load new weights into a running server, for reinforcement learning."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from fastapi import APIRouter

from cpplm.core.errors import UserError
from cpplm.export.hf import load_exported
from cpplm.generate.load import prepare_for_inference
from cpplm.model.transformer import Transformer
from cpplm.serve.async_engine import AsyncEngine
from cpplm.serve.errors import ApiError, to_api_error
from cpplm.serve.request_models import Strict


class ReloadRequest(Strict):
    """The one method that is done; `kwargs` names the folder of an export as `weights_path`."""

    method: Literal["reload_weights"]
    kwargs: dict[Literal["weights_path"], str]


def add_reload(routes: APIRouter, engine: AsyncEngine, folder: Path) -> None:
    """Add the route; only exports in `folder` are loaded."""

    @routes.post("/collective_rpc", summary="Load new weights")
    async def collective_rpc(params: ReloadRequest) -> dict[str, list[None]]:
        """Load the weights of an export of the same model; what is under way ends with an error."""
        path = Path(params.kwargs.get("weights_path", "")).resolve()
        if not path.is_relative_to(folder.expanduser().resolve()):
            raise ApiError(403, f"{path} is not in --weights_dir", code="invalid_value", param="kwargs")

        def load() -> Transformer:
            model = load_exported(path, engine.engine.model)
            prepare_for_inference(model)
            return model

        try:
            await engine.replace_model(await asyncio.to_thread(load))
        except UserError as error:
            raise to_api_error(error, begun=False) from error
        return {"results": [None]}
