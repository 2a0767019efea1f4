"""Value of an `#if`, as far as it can be known without the system's headers: true, false or unknown.

Macros have three states: defined with a body, not defined, and unknown (set in a branch that may or may not
be read, or a matter of headers that are not here). `unknown && 0` is false. The grammar is that of constant
expressions (ISO C++20 15.2) on integers.
"""

from __future__ import annotations

import itertools
import operator as operators
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import tree_sitter

from cpplm.cpp.lexer import IDENTIFIER
from cpplm.cpp.parser import grammar


@dataclass(frozen=True, slots=True)
class Macro:
    """A definition: `parameters` is None for a macro without arguments; `body` None where it is unknown."""

    body: bytes | None
    parameters: tuple[bytes, ...] | None = None


def _table(text: bytes) -> dict[bytes, Macro]:
    """Macros of NAME=VALUE pairs between spaces."""
    return {name: Macro(value) for name, _, value in (pair.partition(b"=") for pair in text.split())}


# As g++ 12 and gcc 12 define them on x86-64 Linux.
_PREDEFINED: Final = _table(
    b"__GNUC__=12 __GNUC_MINOR__=2 __GNUC_PATCHLEVEL__=0 __linux__=1 __linux=1 linux=1 __gnu_linux__=1 "
    b"__unix__=1 __unix=1 unix=1 __ELF__=1 __x86_64__=1 __x86_64=1 __amd64__=1 __amd64=1 __LP64__=1 "
    b"_LP64=1 __CHAR_BIT__=8 __SIZEOF_INT__=4 __SIZEOF_LONG__=8 __SIZEOF_LONG_LONG__=8 "
    b"__SIZEOF_POINTER__=8 __SIZEOF_SIZE_T__=8 __SIZEOF_INT128__=16 __ORDER_LITTLE_ENDIAN__=1234 "
    b"__ORDER_BIG_ENDIAN__=4321 __BYTE_ORDER__=1234 __STDC__=1 __STDC_HOSTED__=1 __SSE__=1 __SSE2__=1 "
    b"__has_include= __has_cpp_attribute= __has_attribute= __has_builtin= __COUNTER__=0 "
    b"HAVE_CONFIG_H=1"  # what a build writes is read as far as it can be, see `configured`
)
_PREDEFINED_CXX: Final = _table(
    b"__cplusplus=201703L __GNUG__=12 __EXCEPTIONS=1 __cpp_exceptions=199711L __GXX_RTTI=1 __cpp_rtti=199711L"
    b" _GNU_SOURCE=1 __GXX_WEAK__=1"
)
_PREDEFINED_C: Final = _table(b"__STDC_VERSION__=201710L")
# Of <limits.h> and <stdint.h>, whose values are known where a file compares with them.
_LARGEST: Final = {
    name: Macro(b"%d" % ((1 << bits) - 1))
    for names, bits in (
        (b"SCHAR_MAX INT8_MAX", 7), (b"UCHAR_MAX UINT8_MAX", 8), (b"SHRT_MAX INT16_MAX", 15),
        (b"USHRT_MAX UINT16_MAX", 16), (b"INT_MAX INT32_MAX", 31), (b"UINT_MAX UINT32_MAX", 32),
        (b"LONG_MAX LLONG_MAX INT64_MAX INTMAX_MAX INTPTR_MAX PTRDIFF_MAX", 63),
        (b"ULONG_MAX ULLONG_MAX UINT64_MAX UINTMAX_MAX UINTPTR_MAX SIZE_MAX", 64),
    )
    for name in names.split()
}  # fmt: skip
_LIMITS: Final = {
    **_LARGEST,
    **{
        name.replace(b"_MAX", b"_MIN"): Macro(b"(-%b - 1)" % (value.body or b""))
        for name, value in _LARGEST.items()
        if not name.startswith(b"U") and name != b"SIZE_MAX"
    },
    b"CHAR_BIT": Macro(b"8"),
}
# Of other compilers, systems and processors.
_ABSENT = re.compile(
    rb"_*(?:clang|MSC|MSVC|WIN(?:32|64|DOWS|RT|CE)?(?:_|\b)|MINGW|CYGWIN|APPLE|MACOS|MACH|OSX|IOS|TARGET_OS|DARWIN"
    rb"|ANDROID|EMSCRIPTEN|wasm|WASM|FreeBSD|NetBSD|OpenBSD|DragonFly|bsd|sun\b|SUN|SVR4|svr4|hpux|AIX|aix|sgi|QNX|VXWORKS"
    rb"|HAIKU|BEOS|OS2|MSDOS|DJGPP|BORLANDC|WATCOMC|SUNPRO|INTEL|ICC|PGI|NVCC|CUDA|HIP|OPENCL|SYCL|arm|aarch64|ARM"
    rb"|mips|MIPS|powerpc|POWERPC|PPC|ppc|riscv|sparc|s390|hppa|alpha|ia64|m68k|i386|i486|i586|i686|M_IX86|M_X64"
    rb"|vax|mc68|m88|i860|i960|ns32|a29k|AM29K|z8000|gmicro|pyr__|clipper__|uxp|ibm032|CRAY|cray__|convex__|arc__|ARC__"
    rb"|sh__|SH[1-5]__|loongarch|hexagon__|microblaze__|nios2|or1k|csky__|tile__|h8300|v850|bfin"
    rb"|XTENSA|AVR|Fuchsia|native_client|CODEGEARC|DOXYGEN|SWIG|CPPCHECK|COVERITY|BIG_ENDIAN__|STRICT_ANSI|ILP32"
    rb"|SANITIZE|NO_EXCEPTIONS|NO_RTTI)\w*|_?DEBUG|__OPTIMIZE__"
    rb"|__(?:TURBOC|BCPLUSPLUS|DMC|DIGITALMARS|SALFORDC|POCC|LCC|CW32|VC32|MWERKS|TANDEM|VMS|OS400|MVS|TPF|TINYC"
    rb"|IBMC(?:PP)?|xl[cC]|HP_cc|HP_aCC|DECC(?:XX)?|GO32|SYMBIAN32|EPOC32|MCST|e2k|EABI|INTERIX|minix|osf|ultrix"
    rb"|amigaos|MORPHOS|NeXT|VOS|ghs|TASKING|370|UCLIBC|BIONIC|KLIBC|NEWLIB|GCCXML|COMO|PATHSCALE|PATHCC|EDG|KCC"
    rb"|HIGHC|MRC|GHS|DIAB|CDT_PARSER|ICL|ECC|NVCOMPILER|KEIL|C51|SDCC|CC_ARM|SGI_STL_PORT|MSL_CPP)(?:__)?"
    # Unix systems and home computers of the past
    rb"|_*(?:IRIX\d*|ultrix|DGUX\w*|NeXT|SCO_\w+|SCO__|USLC__|digital__|UNICOS\w*|apollo|ISC_UNIX|ALTOS_SYSTEM_V"
    rb"|CONVEX_SOURCE|UMAXV|DYNIX|SEQUENT_|sequent|ksr__|PARAGON__|RISCOS|riscos(?:__)?|NEWSOS\w*"
    rb"|UNIXWARE\w*|AUX_SOURCE|nec_ews\w*|SINIX"
    rb"|EMX__|SASC|THINK_C|MSYS__|UNDER_CE|OBJC__|thumb2?__|midl)"
    rb"|_KERNEL|TPF|macintosh|_(?:STLPORT|LIBCPP)_VERSION|_(?:RWSTD|CPPLIB)_VER|_SGI_COMPILER_VERSION"
    # LIB_HAVE_WINDOWS, LIB_OS_MAC
    rb"|(?:[A-Z0-9]+_+)*(?:HAVE|OS|SYS|PLATFORM|SYSTEM|TARGET)_(?:WIN(?:DOWS|32|64)?|MAC(?:OSX?)?|OSX|DARWIN|IOS|ANDROID"
    rb"|(?:FREE|OPEN|NET)BSD|DRAGONFLY|SOLARIS|AIX|HPUX|VXWORKS|QNXNTO|CYGWIN|MINGW(?:32)?|OPENVMS|ZOS|HAIKU)"
)
_TOKEN = re.compile(
    rb"\s*(?:(0[xX][0-9a-fA-F']+|0[bB][01']+|[0-9][0-9']*)[uUlLzZ]*|([A-Za-z_]\w*)|('(?:\\.|[^'\\])+')"
    rb"|(\|\||&&|==|!=|<=|>=|<<|>>|[-+*/%<>!~&|^?:(),])|(\S))"
)


def _divide(left: int, right: int) -> int:
    """The quotient, towards zero."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_OPERATIONS: Final[dict[str, Callable[[int, int], int]]] = {
    "|": operators.or_, "^": operators.xor, "&": operators.and_, "<<": operators.lshift,
    ">>": operators.rshift, "==": operators.eq, "!=": operators.ne, "<": operators.lt, ">": operators.gt,
    "<=": operators.le, ">=": operators.ge, "+": operators.add, "-": operators.sub, "*": operators.mul,
    "/": _divide,
    "%": lambda left, right: left - right * _divide(left, right),
}  # fmt: skip
# What an operator before a value does, as one between two.
_UNARY: Final = {"!": ("==", 0), "-": ("-", 0), "+": ("+", 0), "~": ("^", -1)}
_UNKNOWN_VALUE = b"'?'"  # a character, whose value is not looked at
# Choices of a build that are not for Linux, by a part of the macro's name.
_ELSEWHERE = re.compile(
    rb"KQUEUE|WIN(?!DOW(?!S)|D_|TER|NER|G)|DEVPOLL|POLLSET|SOLARIS|DARWIN|MAC|COCOA|BSD|ANDROID|IOS|NONE|ARM|NEON"
    rb"|W32|VXWORKS|MQX|RTOS|THREADX|ZEPHYR|HPUX|IRIX|ULTRIX|UNIXWARE|OSF1|NEXTSTEP|DCOSX|MINIX|VMS|SYMBIAN|AMIGA|ATARI"
)
# `#ifdef X` and `#if defined X`, alone.
IF_DEFINED = re.compile(rb"#\s*(?:ifdef\s+|(?:el)?if\s+defined\s*\(?\s*|elifdef\s+)(\w+)\s*\)?\s*")
IF_NOT_DEFINED = re.compile(rb"#\s*(?:ifndef\s+|if\s*!\s*defined\s*\(?\s*)\w+\s*\)?\s*")
_DEEPEST_EXPANSION = 12
_LONGEST_INCLUDE = 1_000
_WORDS = re.compile(rb"(\W+)")
_LONGEST = 4_000  # in tokens, and in names that are looked up


UNKNOWN: Final = Macro(None)
Lookup = Callable[[bytes], Macro | None]


@lru_cache(maxsize=65_536)
def parse_define(argument: bytes) -> tuple[bytes, Macro]:
    """The name and the definition of what follows `#define`."""
    match = IDENTIFIER.match(argument)
    if match is None:
        return b"", UNKNOWN
    rest = argument[match.end() :]
    if rest.startswith(b"("):
        inside, _, body = rest[1:].partition(b")")
        return match.group(), Macro(body.strip(), tuple(part.strip() for part in inside.split(b",")))
    return match.group(), Macro(rest.strip())


def is_elsewhere(option: bytes) -> bool:
    """True for an option of a build that is for another system than Linux on x86-64, by its name."""
    return MacroState.is_foreign(option) or _ELSEWHERE.search(option) is not None


@dataclass
class MacroState:
    """The macros at one place of a translation unit.

    `project` holds every macro name that the project defines anywhere: such a name that is not defined yet is
    not defined; of other names only those of `_PREDEFINED` and `_ABSENT` are known.
    """

    project: frozenset[bytes]
    is_c: bool = False
    macros: dict[bytes, Macro | None] = field(default_factory=dict)  # None: not defined
    closed: bool = False  # what is not known is not defined, but for names of compilers and systems: `_X`

    @staticmethod
    @lru_cache(maxsize=65_536)
    def is_foreign(name: bytes) -> bool:
        """True for a macro of another compiler, system or processor."""
        return _ABSENT.fullmatch(name) is not None

    def lookup(self, name: bytes) -> Macro | None:
        """The definition of a macro; None where it is not defined, UNKNOWN where that cannot be said."""
        if name in self.macros:
            return self.macros[name]
        found = _PREDEFINED.get(name) or (_PREDEFINED_C if self.is_c else _PREDEFINED_CXX).get(name)
        if found is not None:
            return found
        is_given = name in self.project or name == b"__cplusplus"
        if is_given or (self.closed and name[:1] != b"_") or self.is_foreign(name):
            return None
        return UNKNOWN

    def include_argument(self, argument: bytes) -> str:
        """The argument of an include, of `MACRO` and `MACRO("a.h")` too; "" where it is not known."""
        for _ in range(_DEEPEST_EXPANSION):
            if argument[:1] in (b'"', b"<"):
                return argument.decode("utf-8", "replace")
            name, *arguments = re.split(rb"[(),]", argument.strip())
            macro = self.lookup(name.strip())
            if macro is None or not macro.body or len(macro.body) + len(argument) > _LONGEST_INCLUDE:
                break
            argument = macro.body
            if not argument.startswith(b'"'):  # `#define HEADER(name) <lib##name.h>`
                values = dict(zip(macro.parameters or (), arguments, strict=False))
                argument = b"".join(values.get(word, word) for word in _WORDS.split(argument))
            argument = argument.replace(b"##", b"").strip()
        return ""

    def holds(self, line: bytes) -> bool | None:
        """True if the branch of one conditional directive (`#if X`, `#ifdef Y`, `#else`) would be read."""
        keyword, _, rest = line.partition(b" ")
        if keyword == b"#else":
            return True
        if keyword in (b"#ifdef", b"#ifndef", b"#elifdef", b"#elifndef"):
            match = IDENTIFIER.search(rest)
            found = self.lookup(match.group()) if match else UNKNOWN
            if found is UNKNOWN:
                return None
            return (found is None) == keyword.endswith(b"ndef")
        known = _VALUES.get((rest, self.closed))
        if known is not None and tuple(map(self.lookup, known[0])) == known[1]:
            return known[2]
        asked: dict[bytes, Macro | None] = {}
        count = itertools.count()

        def lookup(name: bytes) -> Macro | None:
            if next(count) > _LONGEST:  # of macros that stand for nothing no tokens are left to count
                raise ValueError("expression too long")
            return asked.setdefault(name, self.lookup(name))

        try:
            number = _evaluate(_parse(_expand(_tokenize(rest), lookup, frozenset())))
            value = None if number is None else number != 0
        except (ValueError, IndexError, ZeroDivisionError, OverflowError, RecursionError):
            value = None
        if len(_VALUES) > _MOST_VALUES:
            _VALUES.clear()
        _VALUES[rest, self.closed] = (tuple(asked), tuple(asked.values()), value)
        return value


# Of expressions, and of states that are closed or not, the last value: the macros that were looked up for it,
# what they were, and the value.
_VALUES: dict[tuple[bytes, bool], tuple[tuple[bytes, ...], tuple[Macro | None, ...], bool | None]] = {}
_MOST_VALUES = 65_536


def _expand(tokens: Sequence[bytes], lookup: Lookup, active: frozenset[bytes], depth: int = 0) -> list[bytes]:
    """Macros replaced: operators and numbers are left, as which `defined X` counts, and `_UNKNOWN_VALUE`."""
    result: list[bytes] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if token == b"defined":
            bracket = tokens[position] == b"("
            name = tokens[position + bracket]
            position += 1 + 2 * bracket
            found = lookup(name)
            result.append(_UNKNOWN_VALUE if found is UNKNOWN else b"%d" % (found is not None))
            continue
        if not IDENTIFIER.fullmatch(token):
            result.append(token)
            continue
        arguments, after = _call(tokens, position)
        if token in (b"true", b"false"):
            result.append(b"1" if token == b"true" else b"0")
            continue
        macro = lookup(token)
        if token.startswith(b"__has_"):
            macro = UNKNOWN
        if macro is None or macro is UNKNOWN:
            macro = _LIMITS.get(token, macro)
        if macro is None and arguments is None:
            result.append(b"0")  # ISO C++20 15.2: an identifier that is no macro is 0
            continue
        if macro is None or macro.body is None or token in active or depth > _DEEPEST_EXPANSION:
            result.append(_UNKNOWN_VALUE)
            position = after
            continue
        body = _tokenize(macro.body)
        if macro.parameters is not None:
            if arguments is None or len(arguments) != len(macro.parameters) or b"##" in macro.body:
                result.append(_UNKNOWN_VALUE)
                position = after
                continue
            given = dict(zip(macro.parameters, arguments, strict=True))
            body = [part for word in body for part in given.get(word, [word])]
            position = after
        result += _expand(body, lookup, active | {token}, depth + 1)
        if len(result) > _LONGEST:
            raise ValueError("expression too long")
    return result


def _parse(tokens: Iterable[bytes]) -> tree_sitter.Node:
    """The tree of an expression without names: C reads it as C++ does."""
    text = b" ".join(tokens)
    root = grammar("c").parse(b"int x = " + text + b";")
    node = root.named_descendant_for_byte_range(len(b"int x = "), len(b"int x = " + text))
    if root.has_error or node is None:
        raise ValueError("no expression")
    return node


def _evaluate(node: tree_sitter.Node) -> int | None:
    """The value of a tree; None where it is unknown."""
    if node.type == "char_literal":
        return None
    parts = [_evaluate(child) for child in node.named_children]
    match node.type:
        case "number_literal":
            digits = (node.text or b"").decode()
            return int(digits, 8) if re.fullmatch("0[0-7]+", digits) else int(digits, 0)
        case "parenthesized_expression":
            return parts[0]
        case "unary_expression":
            operator, left = _UNARY[node.children[0].type]
            return _apply(operator, left, parts[0])
        case "binary_expression":
            return _apply(node.children[1].type, parts[0], parts[1])
        case "conditional_expression":
            condition, first, second = parts
            chosen = first if condition else second
            return chosen if condition is not None or first == second else None
    raise ValueError("no constant expression")


def _apply(operator: str, left: int | None, right: int | None) -> int | None:
    if operator == "&&":
        return 0 if 0 in (left, right) else None if None in (left, right) else 1
    if operator == "||":
        return 1 if left or right else None if None in (left, right) else 0
    if left is None or right is None:
        return None
    if operator in ("<<", ">>") and not 0 <= right < 64:
        return None
    return int(_OPERATIONS[operator](left, right))


@lru_cache(maxsize=16_384)
def _tokenize(text: bytes) -> Sequence[bytes]:
    tokens: list[bytes] = []
    for match in _TOKEN.finditer(text):
        if match.group(5):  # a string, a `#`, what no expression has
            raise ValueError("no constant expression")
        number = match.group(1)
        tokens.append(number.replace(b"'", b"") if number else match.group().strip())
    return tokens


def _call(tokens: Sequence[bytes], position: int) -> tuple[list[list[bytes]] | None, int]:
    """The arguments of a call that begins here, and the position after it; None where there is no call."""
    if position >= len(tokens) or tokens[position] != b"(":
        return None, position
    arguments: list[list[bytes]] = [[]]
    depth = 0
    for number in range(position, len(tokens)):
        token = tokens[number]
        depth += (token == b"(") - (token == b")")
        if depth == 0:
            return arguments, number + 1
        if token == b"," and depth == 1:
            arguments.append([])
        elif number > position:
            arguments[-1].append(token)
    raise ValueError("no closing bracket")
