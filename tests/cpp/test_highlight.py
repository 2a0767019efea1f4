import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.cpp.highlight import highlight

ENTITIES = {"&lt;": "<", "&gt;": ">", "&#34;": '"', "&#39;": "'", "&amp;": "&"}


@given(st.text(alphabet="ab1'\"\\/*#<>&\n \tintR(;", max_size=60) | st.text(max_size=60))
def test_the_text_stays_the_same_and_is_escaped(text):
    html = str(highlight(text))
    assert not re.search(r"<(?!/?span)", html)
    assert html.count("<span") == html.count("</span>")
    bare = re.sub(r"<[^>]*>", "", html)
    assert re.sub("|".join(ENTITIES), lambda match: ENTITIES[match[0]], bare) == text


def test_what_has_a_colour():
    html = highlight(
        '#include "a.h"  // "x"\nint f() { return 1\'000 + interior; /* int */ }\nchar c = \'"\';'
    )
    coloured = re.findall(r'<span class="(\w+)">(.*?)</span>', str(html))
    assert coloured == [
        ("directive", "#include"), ("string", "&#34;a.h&#34;"), ("comment", "// &#34;x&#34;"),
        ("keyword", "int"), ("keyword", "return"), ("number", "1&#39;000"), ("comment", "/* int */"),
        ("keyword", "char"), ("string", "&#39;&#34;&#39;"),
    ]  # fmt: skip


@pytest.mark.parametrize("piece", ["a \n", "/*", '"', "\\\n", "# ", "1'", 'R"('])
def test_hostile_text_takes_no_longer(piece):
    started = time.process_time()
    highlight(piece * 30_000)
    assert time.process_time() - started < 5
