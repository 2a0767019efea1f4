"""Which headers a program has, which of them may be compiled beforehand, which are missing."""

from __future__ import annotations

import pytest

from cpplm.judge.headers import find_missing_headers, included_headers, leading_headers, link_flags
from cpplm.sandbox.sandbox import Sandbox

TEXT = """// #include <not/this>
/* #include <nor/that>
*/
#include <vector>  // why
 #  include<map>
#include "own.h"
#include <boost/any.hpp>
int f() { const char* s = "
#include <nor_this>
"; }
#include <late>
"""


def test_included_headers_are_found_anywhere_but_in_comments() -> None:
    assert included_headers(TEXT) == ("vector", "map", "boost/any.hpp", "nor_this", "late")
    assert included_headers("") == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TEXT, ("map", "vector")),
        ("/* a\n b */\n#include <b>\n\n#include <a>\nusing namespace std;\n#include <c>\n", ("a", "b")),
        ("#include <a>\n#include <a>\n", ("a",)),
        ("#define X\n#include <a>\n", ()),
        ("int x;\n#include <a>\n", ()),
        ("#ifdef X\n#include <a>\n#endif\n", ()),
        ('#include <a>\n#include "b"\n#include <c>\n', ("a",)),
        ("#include <a;b>\n", ()),
        ("", ()),
    ],
)
def test_only_what_stands_before_everything_else_is_compiled_beforehand(
    text: str, expected: tuple[str, ...]
) -> None:
    assert leading_headers(text) == expected


def test_libraries_are_linked_with_those_who_include_them() -> None:
    assert link_flags(["vector", "openssl/md5.h", "openssl/sha.h"]) == ("-lcrypto",)
    assert link_flags(["boost/any.hpp", "opensslfoo.h"]) == ()


def test_missing_headers_are_named_with_their_package() -> None:
    sandbox = Sandbox.probe()
    headers = ["vector", "openssl/no.h", "no_such.h", "boost/no", "vector"]
    assert find_missing_headers(headers, sandbox) == {
        "openssl/no.h": "needs libssl-dev (<openssl/no.h>)",
        "no_such.h": "needs the header (<no_such.h>)",
        "boost/no": "needs libboost-dev (<boost/no>)",
    }
    assert find_missing_headers([], sandbox) == {}
