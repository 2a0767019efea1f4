"""Structures that one macro opens and another one closes."""

from tests.corpus.cpp import compile_errors, needs_gxx, one_document

pytestmark = needs_gxx

_MACROS = (
    "#define EVENT_RAISE(_name) \\\n  static inline int raise_##_name(_name##_event *e) { \\\n"
    "    return raise_event(#_name, e); \\\n  }\n"
    "#define EVENT_BEGIN(_name) typedef struct _name##_data { \\\n  int size;\n"
    "#define EVENT_END(_name) } _name##_event; EVENT_RAISE(_name)\n"
)


def test_a_structure_between_two_macros_is_one_item_with_the_names_that_they_paste(tmp_path):
    files = {
        "event.h": f"int raise_event(const char *name, void *data);\n{_MACROS}",
        "events.h": '#include "event.h"\nEVENT_BEGIN(resize)\nint width;\nint height;\nEVENT_END(resize)\n\n'
        "EVENT_BEGIN(failure)\nint code;\nEVENT_END(failure)\n",
        "use.cc": '#include "events.h"\nint use() {\n  failure_event event;\n  event.code = 3;\n'
        "  return raise_failure(&event);\n}\n",
    }
    text = one_document(tmp_path, files, of="use.cc").text
    assert "\nEVENT_BEGIN(failure)\nint code;\nEVENT_END(failure)\n" in text
    assert "resize" not in text
    assert not compile_errors(text)
