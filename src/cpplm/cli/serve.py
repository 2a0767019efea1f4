"""`cpplm serve`."""

from __future__ import annotations

import contextlib

from cpplm.cli.report import Report
from cpplm.generate.load import load_adapter, load_engine
from cpplm.serve.app import serve_until_stopped
from cpplm.serve.request_builder import ServedModel
from cpplm.serve.server import listen
from cpplm.serve.settings import ServeSettings


def serve(settings: ServeSettings) -> Report:
    """Serve a model until a signal says that it is enough."""
    settings.network.keys()  # what is wrong with them, or with the address, is said before the model loads
    bound, url = listen(settings.network)
    with contextlib.closing(bound):
        engine, checkpoint = load_engine(settings.model)
        model = ServedModel.from_checkpoint(engine, checkpoint, settings.model.run, settings.served_name)
        adapters = [
            ServedModel.from_checkpoint(*load_adapter(run, engine, checkpoint), run, name, model.name)
            for name, run in settings.adapters().items()
        ]
        figures = serve_until_stopped(
            model, settings, bound, url, ready=lambda: print(url, flush=True), adapters=adapters
        )
    return Report("", figures)
