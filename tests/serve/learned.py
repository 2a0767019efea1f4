"""A small model that learned conversations by heart, with calls of a client's and of the server's tools."""

from typing import Any

from cpplm.generate.engine import Engine
from cpplm.serve.api.chat import signature
from cpplm.serve.request_models import FunctionTool
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.talker import engine_by_heart, said

ENDLESS = "int main(){for(;;);}"
SEARCH = {
    "name": "search",
    "description": "Lines with a text.",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string"}, "folder": {"type": "string"}},
    },
}
USAGE = f"You may call these functions:\n{signature(FunctionTool.model_validate(SEARCH))}"
FOUND = "shapes.h:1: int area();"
GREETED = "int é;\n"


def asked(question: str, *parts: dict[str, str], system: str = "") -> list[dict[str, Any]]:
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": question}, {"role": "assistant", "content": list(parts)}]


CONVERSATIONS = [
    asked("hello", said(GREETED)),
    asked(
        "12*34?", said("It is "), {"type": "python", "text": "12*34"},
        {"type": "python_output", "text": "408"}, said("408."),
    ),
    asked(
        "where?", said("Let me see. "), {"type": "query_tool", "text": 'search("area")'},
        {"type": "tool_result", "text": FOUND}, said("In shapes.h."), system=USAGE,
    ),
    asked(
        "spin", {"type": "query_tool", "text": f'run("{ENDLESS}")'},
        {"type": "tool_result", "text": "was stopped: wall time"}, said("It spins."),
    ),
]  # fmt: skip


def learned(tokenizer: Tokenizer) -> Engine:
    """The model that learned `CONVERSATIONS`."""
    return engine_by_heart(tokenizer, CONVERSATIONS, context=320, num_layers=2)
