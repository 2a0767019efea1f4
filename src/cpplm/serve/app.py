"""The application: all routes, behind the middleware."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from cpplm import __version__
from cpplm.core.progress import log_info
from cpplm.generate.project.context import project_context
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.serve.api.chat import add_chat
from cpplm.serve.api.completions import add_completions
from cpplm.serve.api.infill import add_infill
from cpplm.serve.api.llama_cpp import add_llama_cpp
from cpplm.serve.api.weights import add_reload
from cpplm.serve.async_engine import AsyncEngine
from cpplm.serve.errors import ApiError, add_error_handlers, response_docs
from cpplm.serve.metrics import CONTENT_TYPE, Metrics
from cpplm.serve.middleware import RequestGate
from cpplm.serve.page_routes import add_page
from cpplm.serve.request_builder import ServedModel
from cpplm.serve.response_models import Health, ModelEntry, ModelList
from cpplm.serve.server import run_server
from cpplm.serve.service import Service
from cpplm.serve.settings import LOOPBACK, ServeSettings


@dataclass(frozen=True)
class Application:
    """The ASGI application, and the parts that its server needs."""

    asgi: ASGIApp
    gate: RequestGate
    services: tuple[Service, ...]
    """Of the model, then of each of its adapters."""

    def abort_all(self) -> None:
        """End all that is under way with `ShutdownError`."""
        for service in self.services:
            service.abort_all()


def build(model: ServedModel, settings: ServeSettings, adapters: Sequence[ServedModel] = ()) -> Application:
    """Put everything together; nothing runs before the server starts.

    Args:
        model: answers where a request names none.
        settings: how.
        adapters: other models of the same tokenizer and context.

    Raises:
        UserError: keys that are not there, tools that cannot work here, a model that cannot be driven so.
    """
    project = project_context(model.engine.tokenizer, settings.project)
    batch, models = settings.batch, (model, *adapters)
    engines = [AsyncEngine(each.engine, batch.limits(), max_waiting=batch.max_waiting) for each in models]
    metrics = Metrics(engines)
    services = tuple(
        Service(each, settings.requests, engine, metrics)
        for each, engine in zip(models, engines, strict=True)
    )
    box = ToolBox(settings.tools, settings.tool_limits)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for engine in engines:
            engine.start()
        try:
            yield
        finally:
            for engine in engines:
                await engine.stop()

    app = FastAPI(
        title="cpplm", version=__version__, summary="A C++ code model behind OpenAI's API.",
        docs_url=None, redoc_url=None, lifespan=lifespan,
    )  # fmt: skip
    routes = APIRouter()
    _add_model_routes(routes, services, stopping=lambda: gate.stopping)
    add_completions(routes, services)
    add_chat(routes, services, box)
    add_infill(routes, services[0], project)
    add_llama_cpp(routes, services[0].builder, slots=settings.batch.max_batch)
    if settings.weights_dir is not None:
        add_reload(routes, engines[0], settings.weights_dir)
    add_page(routes, settings.page)
    app.include_router(routes)
    add_error_handlers(app)
    for methods in app.openapi()["paths"].values():
        for operation in methods.values():  # the framework's own status of a wrong body: never sent here
            operation["responses"].pop("422", None)
    gate = RequestGate(app, settings.network, metrics)
    return Application(_with_cors(gate, settings.network.cors_origins), gate, services)


def serve_until_stopped(
    model: ServedModel,
    settings: ServeSettings,
    bound: socket.socket,
    url: str,
    *,
    ready: Callable[[], None],
    adapters: Sequence[ServedModel] = (),
) -> dict[str, Any]:
    """Serve in this thread until a signal comes; returns how much was written.

    Args:
        model: what is served.
        settings: how.
        bound: see `listen`.
        url: its address.
        ready: called as soon as connections are taken.
        adapters: of the model, served beside it.

    Raises:
        UserError: it cannot start.
    """
    network = settings.network
    application = build(model, settings, adapters)
    if network.host not in LOOPBACK and not network.keys():
        log_info(f"--host {network.host} lets everybody in who reaches it: --api_key_file asks for a key")
    what = f"{model.name}, {model.stage} model, context {model.context}"
    what += "".join(f", adapter {adapter.name}" for adapter in adapters)
    what += f", at {url} (page), {url}/v1 (OpenAI's API)"
    run_server(application, network, bound, grace=settings.requests.grace, what=what, ready=ready)
    services = application.services
    return {
        "url": url,
        "prompt_tokens": int(services[0].metrics.registry.get_sample_value("cpplm_prompt_tokens_total") or 0),
        "generated_tokens": sum(service.engine.num_generated for service in services),
    }


def _with_cors(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Let pages of these origins in; the browser keeps all others out by itself."""
    if not origins:
        return app
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=("GET", "POST"),
        allow_headers=("Authorization", "Content-Type"), expose_headers=("Retry-After",),
    )  # fmt: skip


def _add_model_routes(routes: APIRouter, services: Sequence[Service], stopping: Callable[[], bool]) -> None:
    entries = {
        model.name: ModelEntry(
            id=model.name, object="model", created=model.created, owned_by="cpplm",
            max_model_len=model.context, supports_fim=model.supports_fim, stage=model.stage,
            parent=model.parent,
        )
        for model in (service.model for service in services)
    }  # fmt: skip

    @routes.get("/v1/models", responses=response_docs(ModelList), summary="The models that are served")
    async def models() -> ModelList:
        """The model and its adapters, by their names for requests."""
        return ModelList(object="list", data=list(entries.values()))

    @routes.get("/v1/models/{name:path}", responses=response_docs(ModelEntry), summary="One model")
    async def model(name: str) -> ModelEntry:
        """One that is served."""
        if name not in entries:
            raise ApiError(404, f"there is no model {name!r} here", code="model_not_found", param="model")
        return entries[name]

    @routes.get("/health", responses={503: {"model": Health}}, summary="Whether requests are taken")
    async def health() -> JSONResponse:
        """For load balancers and editors; needs no key."""
        alive = all(service.engine.alive for service in services)
        status = "stopping" if stopping() else "ok" if alive else "failed"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    @routes.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(services[0].metrics.text(), media_type=CONTENT_TYPE)
