"""The application: all routes, behind the middleware."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from cpplm import __version__
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.serve import page_routes
from cpplm.serve.api.chat import ChatEndpoint, add_chat
from cpplm.serve.api.completions import add_completions
from cpplm.serve.api.infill import add_infill
from cpplm.serve.api.llama_cpp import add_llama_cpp
from cpplm.serve.api.weights import add_reload
from cpplm.serve.async_engine import AsyncEngine
from cpplm.serve.errors import ApiError, from_status, from_validation, response_docs, unknown_path
from cpplm.serve.metrics import CONTENT_TYPE, Metrics
from cpplm.serve.middleware import RequestGate
from cpplm.serve.request_builder import RequestBuilder, ServedModel
from cpplm.serve.response_models import Health, ModelEntry, ModelList
from cpplm.serve.service import ModelRouter, Service
from cpplm.serve.settings import ServeSettings


@dataclass(frozen=True)
class Application:
    """The ASGI application, and the parts that its server needs."""

    asgi: ASGIApp
    gate: RequestGate
    services: tuple[Service, ...]
    """Of the model, then of each of its adapters."""

    @property
    def service(self) -> Service:
        """Of the model."""
        return self.services[0]


def build(model: ServedModel, settings: ServeSettings, adapters: Sequence[ServedModel] = ()) -> Application:
    """Put everything together; nothing runs before the server starts.

    Args:
        model: answers where a request names none.
        settings: how.
        adapters: other models of the same tokenizer and context.

    Raises:
        UserError: keys that are not there, tools that cannot work here, a model that cannot be driven so.
    """
    keys = settings.network.keys()
    batch, models = settings.batch, (model, *adapters)
    engines = [AsyncEngine(each.engine, batch.limits(), max_waiting=batch.max_waiting) for each in models]
    metrics = Metrics(engines)
    services = tuple(
        Service(each, settings.requests, engine, metrics)
        for each, engine in zip(models, engines, strict=True)
    )
    router = ModelRouter(
        [(service, RequestBuilder(service.model, settings.requests)) for service in services]
    )
    service, builder = router.models[0]
    chat = ChatEndpoint(router, ToolBox(settings.tools, settings.tool_limits))

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
    _add_model_routes(routes, services)
    add_completions(routes, router)
    add_chat(routes, chat)
    add_infill(routes, service, builder)
    add_llama_cpp(routes, builder, slots=settings.batch.max_batch)
    if settings.weights_dir is not None:
        add_reload(routes, service.engine, settings.weights_dir)
    app.include_router(routes)
    app.include_router(page_routes.router(settings.page))
    _add_error_handlers(app)
    for methods in app.openapi()["paths"].values():
        for operation in methods.values():  # the framework's own status of a wrong body: never sent here
            operation["responses"].pop("422", None)
    gate = RequestGate(
        app, settings.network, keys=keys, metrics=metrics, paths=_paths(app),
        stopping=lambda: service.stopping,
    )  # fmt: skip
    return Application(_with_cors(gate, settings.network.cors_origins), gate, services)


def _paths(app: FastAPI) -> frozenset[str]:
    return frozenset(app.openapi()["paths"])


def _with_cors(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    """Let pages of these origins in; the browser keeps all others out by itself."""
    if not origins:
        return app
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=("GET", "POST"),
        allow_headers=("Authorization", "Content-Type"), expose_headers=("Retry-After",),
    )  # fmt: skip


def _add_model_routes(routes: APIRouter, services: Sequence[Service]) -> None:
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
        status = "stopping" if services[0].stopping else "ok" if alive else "failed"
        return JSONResponse({"status": status}, 200 if status == "ok" else 503)

    @routes.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(services[0].metrics.text(), media_type=CONTENT_TYPE)


def _add_error_handlers(app: FastAPI) -> None:
    """Every failure has the same form."""

    async def refused(_: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, ApiError)  # noqa: S101  (it is registered for these)
        return error.response()

    async def malformed(http: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101
        return from_validation(error.errors(), _body_fields(http)).response()

    async def by_framework(http: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101
        if error.status_code == HTTPStatus.NOT_FOUND:
            return unknown_path(http.url.path, _paths(app)).response()
        response = from_status(error.status_code, str(error.detail)).response()
        response.headers.update(error.headers or {})
        return response

    async def defect(_: HttpRequest, error: Exception) -> Response:
        del error  # uvicorn logs it; clients learn nothing of the inside
        return ApiError(500, "a defect of the server", code="internal").response()

    app.add_exception_handler(ApiError, refused)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, by_framework)
    app.add_exception_handler(Exception, defect)


def _body_fields(http: HttpRequest) -> list[str]:
    """The fields that the body of a request may have."""
    route = http.scope.get("route")
    field = route.body_field if isinstance(route, APIRoute) else None
    return list(getattr(field.field_info.annotation, "model_fields", ())) if field is not None else []
