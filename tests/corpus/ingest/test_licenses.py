import pytest

from cpplm.core.errors import UserError
from cpplm.corpus.ingest.licenses import (
    PERMISSIVE,
    LicenseFiles,
    check_names,
    detect_license,
    is_allowed,
    spdx_tag,
)
from tests.corpus.cpp import write_files

MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal"""
BSD = (
    "Redistribution and use in source and binary forms, with or without modification, are permitted provided"
)
ENDORSE = "Neither the name of the owner nor the names of its contributors may be used to endorse products"
GPL_NOTICE = """This program is free software; you can redistribute it and/or modify it under the terms of the
GNU {kind}General Public License as published by the Free Software Foundation; {version}.
You should have received a copy of the GNU {kind}General Public License along with it."""
LATER = "either version {} of the License, or (at your option) any later version"
GPL_TEXT = """GNU GENERAL PUBLIC LICENSE
Version 3, 29 June 2007
Preamble
The GNU General Public License is a free, copyleft license. Use the GNU
Lesser General Public License instead."""


def comment(text: str) -> bytes:
    return "\n".join(f" *  {line}" for line in text.splitlines()).join(("/*\n", "\n */\n")).encode()


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        (MIT, "MIT"),
        ("Distributed under the MIT license (see LICENSE).", "MIT"),
        (BSD, "BSD-2-Clause"),
        (f"{BSD}\n{ENDORSE}", "BSD-3-Clause"),
        (f"{BSD}\nAll advertising materials mentioning\n{ENDORSE}", "BSD-4-Clause"),
        ('Licensed under the Apache License, Version 2.0 (the "License");', "Apache-2.0"),
        ("Licensed under the Apache License v2.0 with LLVM\nExceptions.", "Apache-2.0 WITH LLVM-exception"),
        ("Distributed under the Boost\nSoftware License, Version 1.0.", "BSL-1.0"),
        ("Permission is granted ... Altered source versions must be plainly marked as such", "Zlib"),
        (
            "Permission to use, copy, modify, and/or distribute this software for any purpose with or\n"
            "without fee is hereby granted, provided that the above copyright notice",
            "ISC",
        ),
        (
            "Permission to use, copy, modify, and/or distribute this software for any purpose with or\n"
            'without fee is hereby granted. THE SOFTWARE IS PROVIDED "AS IS"',
            "0BSD",
        ),
        ("This is free and unencumbered software released into the public domain.", "Unlicense"),
        ("This Source Code Form is subject to the terms of the Mozilla Public\nLicense, v. 2.0.", "MPL-2.0"),
        (GPL_NOTICE.format(kind="", version=LATER.format(3)), "GPL-3.0-or-later"),
        (GPL_NOTICE.format(kind="", version="version 2 of the License"), "GPL-2.0-only"),
        (GPL_NOTICE.format(kind="Lesser ", version=LATER.format(2.1)), "LGPL-2.1-or-later"),
        (GPL_NOTICE.format(kind="Library ", version=LATER.format(2)), "LGPL-2.0-or-later"),
        (GPL_NOTICE.format(kind="Affero ", version=LATER.format(3)), "AGPL-3.0-or-later"),
        ("You may copy it under the GNU General Public License.", "GPL-1.0-or-later"),
        ("This file is under the GPLv2, see its license.", "GPL-2.0-only"),
        (
            GPL_NOTICE.format(kind="", version="either version 3, or (at your option) any later version")
            + " Additional permissions: the GCC Runtime Library Exception, version 3.1",
            "GPL-3.0-or-later WITH GCC-exception-3.1",
        ),
        (GPL_TEXT, "GPL-3.0-only"),
        (f"{MIT}\nand parts:\n{BSD}", "MIT AND BSD-2-Clause"),
        ("Dual licensed under the MIT license and the Apache License, Version 2.0", "Apache-2.0 OR MIT"),
        (  # RocksDB's
            "This source code is licensed under both the GPLv2 (found in the\nCOPYING file in the root "
            "directory) and Apache 2.0 License\n(found in the LICENSE.Apache file in the root directory).",
            "Apache-2.0 OR GPL-2.0-only",
        ),
    ],
)
def test_notices_and_texts_are_recognised(text, expression):
    assert detect_license(text.encode()) == expression
    assert detect_license(comment(text)) == expression


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Copyright (c) 2020 Someone. All rights reserved.",
        "Use of this source code is governed by a BSD-style license that can be found in the LICENSE file.",
        "Checks the license plate; permission denied.",
        "limits, permit, submit license",
    ],
)
def test_other_words_are_unknown(text):
    assert detect_license(text.encode()) == ""


@pytest.mark.parametrize(
    ("line", "expression"),
    [
        ("// SPDX-License-Identifier: MIT", "MIT"),
        (
            "/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */",
            "GPL-2.0-only WITH Linux-syscall-note",
        ),
        ("# SPDX-License-Identifier: mit or apache-2.0", "MIT OR Apache-2.0"),
        ("// SPDX-License-Identifier: LicenseRef-Ours", "LicenseRef-Ours"),
        ("// SPDX-License-Identifier: (MIT", "(MIT"),
        ("// licensed under MIT", ""),
    ],
)
def test_tags(line, expression):
    assert spdx_tag(line.encode()) == expression


def test_the_closest_word_decides(tmp_path):
    root = write_files(
        tmp_path / "p",
        {
            "LICENSE": MIT,
            "a.cc": "int a;",
            "sub/COPYING": GPL_TEXT,
            "sub/deep/b.cc": "int b;",
            "other/LICENSE.md": "Ask us.",
            "other/c.cc": "int c;",
            "beside/d.cc": "int d;",
            "beside/d.cc.license": "SPDX-License-Identifier: Zlib\n",
            "two/LICENSE-MIT": MIT,
            "two/LICENSE-APACHE": "Apache License\n Version 2.0, January 2004",
            "license.cc": BSD,
        },
    )
    files = LicenseFiles(root)
    apache, none = b"// Licensed under the Apache License, Version 2.0", b"// ours"
    assert files.of_file(root / "a.cc", b"// SPDX-License-Identifier: ISC\n" + apache) == "ISC"
    assert files.of_file(root / "a.cc", apache) == "Apache-2.0"
    assert files.of_file(root / "a.cc", none) == "MIT"
    assert files.of_file(root / "sub/deep/b.cc", none) == "GPL-3.0-only"
    assert files.of_file(root / "other/c.cc", none) == "MIT"
    assert files.of_file(root / "beside/d.cc", apache) == "Zlib"
    assert files.of_file(root / "two/e.cc", none) == "Apache-2.0 AND MIT"


def test_nothing_above_the_project_is_read(tmp_path):
    root = write_files(tmp_path, {"LICENSE": MIT, "p/a.cc": "int a;"}) / "p"
    assert LicenseFiles(root).of_file(root / "a.cc", b"") == ""


def test_an_unreadable_license_file_is_unknown(tmp_path):
    (tmp_path / "LICENSE").symlink_to(tmp_path / "LICENSE")
    (tmp_path / "COPYING").mkdir()
    assert LicenseFiles(tmp_path).nearest(tmp_path) == ""


@pytest.mark.parametrize(
    ("expression", "names", "allowed"),
    [
        ("", ("any",), True),
        ("", ("permissive",), False),
        ("MIT", ("permissive",), True),
        ("GPL-3.0-only", ("permissive",), False),
        ("GPL-3.0", ("GPL-3.0-only",), True),
        ("GPL-2.0+", ("GPL-2.0-or-later",), True),
        ("GPL-2.0-or-later", ("GPL-2.0-only",), False),
        ("MIT OR GPL-2.0-only", ("permissive",), True),
        ("MIT AND GPL-2.0-only", ("permissive",), False),
        ("MIT AND (GPL-2.0-only OR BSD-2-Clause)", ("permissive",), True),
        ("Apache-2.0 WITH LLVM-exception", ("permissive",), True),
        ("GPL-3.0-or-later WITH GCC-exception-3.1", ("permissive",), False),
        ("GPL-3.0-or-later WITH GCC-exception-3.1", ("GPL-3.0-or-later WITH GCC-exception-3.1",), True),
        ("GPL-3.0-or-later", ("GPL-3.0-or-later WITH GCC-exception-3.1",), False),
        ("GPL-3.0-only", ("permissive", "GPL-3.0-only"), True),
        ("LicenseRef-Ours", ("permissive",), False),
        ("LicenseRef-Ours", ("LicenseRef-Ours",), True),
        ("(MIT", ("permissive",), False),
        ("see file", ("permissive",), False),
    ],
)
def test_allow_lists(expression, names, allowed):
    assert is_allowed(expression, names) is allowed


def test_the_permissive_ones_are_spdx_identifiers():
    for name in PERMISSIVE:
        check_names((name,))
    assert not any("GPL" in name or "MPL" in name for name in PERMISSIVE)


@pytest.mark.parametrize("names", [(), ("any", "MIT"), ("MTI",), ("MIT OR ISC",), ("",), ("(MIT",)])
def test_allow_lists_that_cannot_be_meant(names):
    with pytest.raises(UserError, match="--licenses"):
        check_names(names)
