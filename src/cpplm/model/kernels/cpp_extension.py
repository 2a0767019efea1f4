"""Kernels in C++ for decoding on a CPU.

The `.cpp` files beside this one are compiled together, once per machine, in a few seconds, and kept under
~/.cache/cpplm. Without a g++ that knows OpenMP there are none, and everything goes through torch. torch
brings an OpenMP of its own, which is loaded before: both use the same threads.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cpplm.core.hardware import processor_features

_FOLDER = Path(__file__).parent
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
_TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}


@functools.cache
def load_function(name: str, arguments: str) -> Callable[..., None] | None:
    """A function of the kernels, None where they cannot be made.

    Args:
        name: in the library.
        arguments: their types, a letter each: a pointer, a 64-bit integer, a float.
    """
    library = _library()
    if library is None:
        return None
    function = library[name]
    function.argtypes = [_TYPES[letter] for letter in arguments]
    function.restype = None
    return function


@functools.cache
def _library() -> ctypes.CDLL | None:
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    sources = sorted(_FOLDER.glob("*.cpp"))
    texts = [path.read_text(encoding="utf-8") for path in (*sources, *sorted(_FOLDER.glob("*.h")))]
    made_from = "\0".join((*texts, compiler, *_FLAGS, processor_features()))
    name = f"kernels-{hashlib.sha256(made_from.encode()).hexdigest()[:16]}.so"
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cpplm"
        if not (cache / name).exists():
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as folder:  # whole or not at all
                made = Path(folder) / name
                command = [compiler, *_FLAGS, *map(str, sources), "-o", str(made)]
                subprocess.run(command, check=True, capture_output=True, timeout=120)
                made.replace(cache / name)
        return ctypes.CDLL(str(cache / name))
    except (OSError, RuntimeError, subprocess.SubprocessError):  # no home, no room, no OpenMP
        return None
