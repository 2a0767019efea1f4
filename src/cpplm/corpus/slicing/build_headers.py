"""Headers that a build writes, what they hold by default, and what its command lines define."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath

from cpplm.core.storage import sha256
from cpplm.corpus.ingest.discovery import AUTOCONF_SCRIPTS
from cpplm.corpus.slicing.autoconf import always_defined

# <math.h> is the system's, even where a project has a file of that name (ISO C17 7.1.2, POSIX.1-2017).
_SYSTEM_NAMES = """
assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg
stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype
aio cpio dirent dlfcn fcntl fmtmsg fnmatch ftw glob grp iconv langinfo libgen monetary mqueue ndbm netdb
nl_types poll pthread pwd regex sched search semaphore spawn strings stropts syslog tar termios trace
ulimit unistd utime utmpx wordexp alloca malloc memory getopt execinfo features endian byteswap
arpa/inet net/if netinet/in netinet/tcp sys/ipc sys/mman sys/msg sys/param sys/resource sys/select
sys/sem  sys/shm sys/socket sys/stat sys/statvfs sys/time sys/times sys/types sys/uio sys/un sys/utsname
sys/wait
sys/random sys/file sys/sysinfo sys/epoll sys/eventfd sys/inotify sys/sendfile sys/syscall sys/vfs
sys/xattr sys/prctl sys/poll sys/signalfd sys/timerfd sys/ioctl sys/statfs sys/mount netinet/ip
netinet/ip6 net/ethernet ifaddrs resolv arpa/nameser pty utmp shadow mntent err error fts paths sysexits
"""
SYSTEM_HEADERS = frozenset(f"{name}.h" for name in _SYSTEM_NAMES.split())
_PLACEHOLDER = re.compile(rb"@(\w+)@|\$\{(\w+)\}")
_TYPEDEF = re.compile(rb"(?m)^(\s*typedef\s+)(?:@\w+@|\$\{\w+\})(?=\s+(\w+)\s*;)")
_WIDTH = re.compile(rb"u?int(?:8|16|32|64)")
_SIZES = {
    b"CHAR": b"1", b"SHORT": b"2", b"INT": b"4", b"LONG": b"8", b"LONG_LONG": b"8", b"FLOAT": b"4",
    b"DOUBLE": b"8", b"VOID_P": b"8", b"VOIDP": b"8", b"INT_P": b"8", b"SIZE_T": b"8", b"SSIZE_T": b"8",
    b"OFF_T": b"8", b"WCHAR_T": b"4", b"TIME_T": b"8", b"LONG_INT": b"8", b"LONG_DOUBLE": b"16",
}  # fmt: skip
# Types of arguments and results, as the scripts of curl, c-ares and others find them on Linux.
_ARGUMENT_TYPES = {
    b"RETSIGTYPE": b"void", b"SEND_QUAL_ARG2": b"const", b"GETNAMEINFO_QUAL_ARG1": b"const",
    b"RECVFROM_TYPE_ARG5": b"struct sockaddr", b"RECVFROM_TYPE_ARG6": b"socklen_t",
    b"GETNAMEINFO_TYPE_ARG1": b"struct sockaddr *", b"GETNAMEINFO_TYPE_ARG2": b"socklen_t",
    b"GETNAMEINFO_TYPE_ARG46": b"socklen_t", b"GETNAMEINFO_TYPE_ARG7": b"int",
    **{
        function + part: type_
        for function in (b"RECV", b"SEND", b"RECVFROM")
        for part, type_ in ((b"_TYPE_ARG1", b"int"), (b"_TYPE_ARG2", b"void *"), (b"_TYPE_ARG3", b"size_t"),
                            (b"_TYPE_ARG4", b"int"), (b"_TYPE_RETV", b"ssize_t"))
    },
    b"RECVFROM_TYPE_ARG2": b"void",  # a pointer to it
}  # fmt: skip
# `option(NAME "help" ON)`
_OPTION = re.compile(rb'(?mi)^[ \t]*option[ \t]*\(\s*(\w+)\s+"[^"]*"\s+(?:ON|TRUE|YES|1)\s*\)')
# As on most machines: the order of bytes, and types of ISO C and POSIX.
_IS_DEFAULT = re.compile(
    rb"LITTLE_?ENDIAN|IS_LITTLE|LINUX$"
    rb"|^HAVE_(?:TYPE_)?(?:_?BOOL(?:_T)?|(?:U?INT(?:8|16|32|64|PTR|MAX)|S?SIZE|SOCKLEN|OFF|PID)(?:_T)?"
    rb"|(?:CLOCK|DEV|GID|INO|IN_ADDR|IN_PORT|MODE|NLINK|SA_FAMILY|SIGSET|SIG_ATOMIC|TIME|UID|WCHAR)_T)$"
)
_HAVE_HEADERS = frozenset(
    f"HAVE_{re.sub('[./]', '_', name).upper()}".encode()
    for name in SYSTEM_HEADERS - {"stropts.h"} | {"curses.h"}
)
# Functions, macros and structures of glibc that builds ask for, most of them of POSIX; features of C and C++.
_HAVE_FUNCTIONS = frozenset(
    b"HAVE_" + name
    for name in b"""
ACCEPT4 ALARM ASPRINTF ATEXIT BACKTRACE BASENAME BCMP BCOPY BOOL BSEARCH BUILTIN_EXPECT BZERO CFMAKERAW
CFSETSPEED CHMOD CHOWN CLOCK_GETTIME CLOSEDIR CLOSEFROM CONST_CAST CPP_CAST CXX11 CXX14 CXX17 DAEMON DIRNAME
DLOPEN DPRINTF DUP2 DYNAMIC_CAST EPOLL_CREATE EPOLL_CREATE1 ERR EUIDACCESS EVENTFD EXCEPTIONS EXPLICIT
EXPLICIT_BZERO FACCESSAT FALLOCATE FCHMOD FCHOWN FCNTL FDATASYNC FDOPENDIR FLOCK FLOOR FMOD FORK FORKPTY
FREEADDRINFO FREELOCALE FSEEKO FSTATAT FSYNC FTELLO FTRUNCATE FUTIMENS GAI_STRERROR GETADDRINFO GETCWD
GETDELIM GETEGID GETENV GETEUID GETGID GETHOSTBYNAME GETHOSTNAME GETIFADDRS GETLINE GETLOADAVG GETNAMEINFO
GETOPT GETOPT_LONG GETPAGESIZE GETPGID GETPID GETPPID GETPWNAM GETPWUID GETRANDOM GETRLIMIT GETRUSAGE
GETTIMEOFDAY GETUID GLOB GMTIME_R IF_NAMETOINDEX IMAXDIV INET_ATON INET_NTOP INET_PTON INITGROUPS INLINE
INOTIFY_INIT IOCTL ISALPHA ISASCII ISATTY ISBLANK KILL KILLPG LCHOWN LINK LOCALTIME_R LOGIN_TTY LONG_DOUBLE
LONG_LONG LONG_LONG_INT LRINT LRINTF LROUND LSTAT MADVISE MALLINFO MALLOC_USABLE_SIZE MEMCHR MEMCPY MEMMEM
MEMMOVE MEMPCPY MEMRCHR MEMSET MKDIR MKDIRAT MKDTEMP MKFIFO MKOSTEMP MKSTEMP MKTIME MLOCK MMAP MPROTECT
MREMAP MSYNC MUNMAP MUTABLE NAMESPACES NANOSLEEP NEWLOCALE NL_LANGINFO OPENAT OPENDIR OPENPTY PIPE PIPE2
POLL POSIX_FADVISE POSIX_FALLOCATE POSIX_MADVISE POSIX_MEMALIGN POW PPOLL PRCTL PREAD PRINTF PSELECT PUTENV
PWRITE QSORT_R RAISE RANDOM READDIR READLINK REALLOCARRAY REALPATH RECV RECVFROM REGCOMP REINTERPRET_CAST
RENAME RINT ROUND RTTI SCHED_YIELD SECURE_GETENV SELECT SEND SENDFILE SENDMSG SETENV SETEUID SETLINEBUF
SETLOCALE SETPGID SETRLIMIT SETSID SIGACTION SIGNAL SIGPROCMASK SLEEP SNPRINTF SOCKET SOCKETPAIR SQRT
SRANDOM SSTREAM STAT STATIC_CAST STL STPCPY STRCASECMP STRCASESTR STRCHR STRCHRNUL STRCOLL STRCSPN STRDUP
STRERROR STRERROR_R STRFTIME STRNCASECMP STRNDUP STRNLEN STRPBRK STRPTIME STRRCHR STRSEP STRSIGNAL STRSPN
STRSTR STRTOD STRTOF STRTOIMAX STRTOK_R STRTOL STRTOLD STRTOLL STRTOUL STRTOULL STRTOUMAX STRUCT_ADDRINFO
STRUCT_IN6_ADDR STRUCT_SOCKADDR_IN6 STRUCT_SOCKADDR_STORAGE STRUCT_SOCKADDR_UN STRUCT_STAT_ST_BLKSIZE
STRUCT_STAT_ST_BLOCKS STRUCT_STAT_ST_MTIM STRUCT_TIMESPEC STRUCT_TIMEVAL STRUCT_TM_TM_GMTOFF
STRUCT_TM_TM_ZONE SYMLINK SYSCONF SYSLOG TCGETATTR TEMPLATES TEMPNAM TIMEGM TIMERADD TIMERCLEAR TIMERCMP
TIMERISSET TIMERSUB TIMES TRUNC TRUNCATE TYPENAME UNAME UNSETENV UNSIGNED_LONG_LONG_INT USELOCALE USLEEP
UTIME UTIMENSAT UTIMES VARIADIC_MACROS VASPRINTF VFORK VPRINTF VSNPRINTF WAIT3 WAIT4 WAITPID WCSLEN WCSWIDTH
WCWIDTH WRITEV
""".split()
)
# Types and keywords, for which a build defines something else where they are not there: EVENT__size_t.
_C_WORD = re.compile(
    rb"(?:\A|_)((?:u?int\d+|s?size|pid|off|socklen|uid|gid|mode|time)_t|inline|const|volatile)\Z"
)
# Which autoconf always defines, with PACKAGE_NAME and so on; and gettext.
_STRINGS = (b"PACKAGE", b"VERSION", b"GETTEXT_PACKAGE")
# A header with the types of <stdint.h>, as by AX_CREATE_STDINT_H: GCint.h, _stdint.h.
INTEGER_HEADER = re.compile(r"(?:(?<![a-z])|std)int(?:types)?\.h[\">]")
_CONFIGURE_FILE = re.compile(r"(?i)\bconfigure_file\s*\(([^()]*)\)")
_CONFIG_HEADERS = re.compile(r"\bA[CM]_CONFIG_HEADERS?\s*\(\[?([^\[\](),]*)")
_EXPORT_MACRO = re.compile(rb"\bEXPORT_MACRO_NAME\s+(\w+)")  # of CMake's generate_export_header
_MESON_FILE = re.compile(r"\b(input|output)\s*:\s*'([^']+)'")
_BUILD_FILES = ("CMakeLists.txt", "meson.build", "configure.ac", "configure.in", "Makefile.am", "configure")
_GENERATED_SCRIPT = b"Generated by GNU Autoconf"
# Of a command line: `-DNAME=\"text\"`; of a header that a rule of a Makefile writes: `#define NAME "text"`.
_TEXT_MACRO = re.compile(
    rb"""(?:-D|["\s(])([A-Z][A-Z0-9_]+)=(?:\\+"|'\\?"|"')|\becho\s+'#define ([A-Z][A-Z0-9_]+) \\?\""""
)
# Of a command line: `-DNAME=1`; of a shell script: `add_def NAME $value`; of a text that becomes a header.
_NUMBER_MACRO = re.compile(rb"-D([A-Z_][A-Z0-9_]+)=(\d+)\b")
_SHELL_MACRO = re.compile(rb"(?m)^[ \t]*(?:add|config|set)_def(?:ine)?[ \t]+([A-Z_]\w+)[ \t]+(.*)$")
_WRITTEN_MACRO = re.compile(rb"(?m)(?:^|\")#define ([A-Za-z_]\w*)[ \t]*([\w.]*)[\")]*$")
# Of libraries, also where they are included in quotes.
_LIBRARY_NAMES = """
zlib expat sqlite3 png jpeglib bzlib lzma curl ncurses curses SDL Python lua lauxlib lualib mpi ft2build tiff
tiffio windows Windows winsock2 jni
"""
_PUBLIC_HEADERS = SYSTEM_HEADERS.union(f"{name}.h" for name in _LIBRARY_NAMES.split())
# What programs make of other files has declarations that the code needs: Qt's, protobuf's, bison's.
_GENERATED_CODE = re.compile(
    r"ui_\w+\.h|moc_\w+\.cpp|\w+\.moc|.*\.pb\.h|\w+_generated\.h|.*\.tab\.h(?:h|pp)?"
)
_INCLUDE_ROOTS = re.compile(r"include|includes|inc|src|source|sources|lib|libs|api|public|code")


def include_target(argument: str) -> str:
    """`a/b.h` of `"a/b.h"` and `<a/b.h>`, whatever follows."""
    return argument[1:].split(">" if argument[0] == "<" else '"', maxsplit=1)[0]


def is_build_written(argument: str, folders: frozenset[str]) -> bool:
    """True for an include that nothing answers, of a header that only a build can have written.

    Such are headers in quotes and those below a folder where the project's own headers lie, but for what
    libraries are included by, and for generated code: without that the text means nothing.

    Args:
        argument: of the include (`"a.h"`, `<b/c.h>`).
        folders: from `include_folders`.
    """
    folder, _, base = include_target(argument).rpartition("/")
    if is_generated_code(base):
        return False
    if folder:
        return folder.split("/")[0] in folders or folder.startswith(".")
    return (
        base == "config.h"
        or export_macros(base) != ()
        or (argument[0] == '"' and base not in _PUBLIC_HEADERS and not base.startswith("SDL_"))
    )


def is_generated_code(base: str) -> bool:
    """True for a header that a program makes of another file, by its name."""
    return _GENERATED_CODE.fullmatch(base) is not None


def include_folders(names: Iterable[str]) -> frozenset[str]:
    """The folders that includes in angle brackets may begin with: those in a place where headers lie."""
    return frozenset(
        part
        for name in names
        for folders in [PurePosixPath(name).parts[:-1]]
        for number, part in enumerate(folders)
        if number == 0 or _INCLUDE_ROOTS.fullmatch(folders[number - 1].lower())
    )


def export_macros(base: str) -> tuple[bytes, ...]:
    """The macros that CMake's `generate_export_header` defines in a header `NAME_export.h`."""
    name = base.removesuffix(".hpp").removesuffix(".h")
    if not name.endswith("_export") or name == base:
        return ()
    stem = name.removesuffix("_export").upper().encode()
    return tuple(
        stem + ending for ending in (b"_EXPORT", b"_NO_EXPORT", b"_DEPRECATED", b"_DEPRECATED_EXPORT")
    )


@dataclass(frozen=True)
class BuildDefaults:
    """Options, templates and macros that the build files of a project name; nothing is carried out.

    Attributes:
        values: of macros in templates: options that are on by default, and what a script always defines.
        templates: of the headers that a build writes: the name of a header without its folder, and the
            template's in the project.
        macros: that the build defines for its code, with their values or what may stand for them.
    """

    values: Mapping[bytes, bytes] = field(default_factory=dict)
    templates: tuple[tuple[str, str], ...] = ()
    macros: Mapping[bytes, bytes] = field(default_factory=dict)

    @cached_property
    def template_of(self) -> dict[str, str]:
        """The templates by the names of their headers, the first of each name."""
        return dict(reversed(self.templates))

    @property
    def digest(self) -> str:
        """Changes with any of them."""
        return sha256(f"{sorted(self.values.items())}{self.templates}{sorted(self.macros.items())}".encode())


def build_defaults(roots: Iterable[Path]) -> BuildDefaults:
    """Read the build files of a project, in its folders and those right below."""
    values: dict[bytes, bytes] = {}
    macros: dict[bytes, bytes] = {}
    templates: list[tuple[str, str]] = []
    for root in roots:
        for path in (
            path for name in _BUILD_FILES for path in (root / name, *sorted(root.glob(f"*/{name}")))
        ):
            with suppress(OSError):
                data = path.read_bytes()
                if _GENERATED_SCRIPT in data:
                    continue
                values |= dict.fromkeys(_OPTION.findall(data), b"1")
                values |= always_defined(data) if path.name in AUTOCONF_SCRIPTS else {}
                macros = dict(_defined_macros(data)) | macros
                if path.name in AUTOCONF_SCRIPTS and b"GETTEXT" in data:
                    macros.setdefault(b"GETTEXT_PACKAGE", b'""')  # by macros of autoconf's libraries
                for template, header in _configured_headers(data.decode("utf-8", "replace")):
                    found = next(filter(Path.is_file, (path.parent / template, root / template)), path)
                    if found != path or path.name in AUTOCONF_SCRIPTS:
                        name = PurePosixPath(os.path.relpath(found, root)).as_posix()
                        templates.append((PurePosixPath(header).name, name))
    return BuildDefaults(values, tuple(templates), macros)


def _defined_macros(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The macros that a build file defines for the compiler; `""` and 0 where it computes what they are."""
    yield from _NUMBER_MACRO.findall(data)
    yield from _WRITTEN_MACRO.findall(data)
    for name, value in _SHELL_MACRO.findall(data):
        yield name, b'""' if b'"' in value else value if value.isdigit() else b"0"
    yield from ((name, b"") for name in _EXPORT_MACRO.findall(data))
    for match in _TEXT_MACRO.findall(data):
        yield match[0] or match[1], b'""'


def _configured_headers(text: str) -> Iterator[tuple[str, str]]:
    """The templates that a build file names, with the headers that they become."""
    for arguments in _CONFIGURE_FILE.findall(text):
        named = dict(_MESON_FILE.findall(arguments))
        words = [named.get("input", ""), named.get("output", "")] if named else arguments.split()
        template, header = ([re.sub(r'.*\}/|"', "", word) for word in words] + ["", ""])[:2]
        if template and header:
            yield template, header
    for words in _CONFIG_HEADERS.findall(text):
        for header, _, template in (word.partition(":") for word in words.split()):
            yield template or f"{header}.in", header


def configured(template: bytes, values: Mapping[bytes, bytes] | None = None) -> bytes:
    """A header as a build would write it of its template, with every choice in its default.

    Defined are `values`, which the project sets by default; all else is not defined, or 0.

    For autoconf's `config.h.in` and CMake's `configure_file`. What x86-64 Linux has is defined: headers of
    POSIX, the sizes of types, the order of bytes.
    """

    def size(match: re.Match[bytes]) -> bytes:  # of CMake's check_type_size
        name = match.group(1) or b""
        value = _configured_value(name)
        return b"#define " + name + b" " + value if value else b""

    def choice(match: re.Match[bytes]) -> bytes:
        value = (values or {}).get(match.group(2)) or _configured_value(match.group(2))
        if value is None and match.group(2).startswith(_STRINGS) and match.group(1) != b"cmakedefine01":
            value = b'"0"'
        if match.group(1) == b"cmakedefine01":
            return b"#define " + match.group(2) + b" " + (value or b"0")
        return b"#define " + match.group(2) + b" " + value if value else b""

    def placeholder_type(match: re.Match[bytes]) -> bytes:  # `typedef @COUNT_T@ count_t;`
        width = _WIDTH.search(match.group(2))
        return match.group(1) + (b"__" + width.group().upper() + b"_TYPE__" if width else b"long")

    def placeholder(match: re.Match[bytes]) -> bytes:  # `#define MY_INLINE @my_inline@`
        name = match.group(1) or match.group(2)
        word = _C_WORD.search(name.lower())
        type_ = word.group(1) if word else b"long long" if name.lower().endswith(b"_t") else b"0"
        return _configured_value(name) or type_

    text = _TYPEDEF.sub(placeholder_type, template)
    text = re.sub(rb"(?m)^[ \t]*(?:@(?:(SIZEOF_\w+)_CODE|\w+)@|\$\{\w+\})[ \t]*$", size, text)
    text = re.sub(rb"(?m)^[ \t]*#[ \t]*(undef|cmakedefine(?:01)?)[ \t]+(\w+)[^\n]*$", choice, text)
    return _PLACEHOLDER.sub(placeholder, text)


def have_macros(names: Iterable[bytes]) -> frozenset[bytes]:
    """Those of these macros that a configuration would define: `LIB_HAVE_UNISTD_H`."""
    return frozenset(name for name in names if b"HAVE_" in name and _configured_value(name) == b"1")


def default_definition(name: bytes) -> bytes:
    """The value of a macro that is defined because a text needs it to be."""
    return b"1" if b"HAVE_" in name else b""


def _configured_value(name: bytes) -> bytes | None:
    """The value of a macro of a configuration on Linux, whatever the project puts before its name."""
    if word := _C_WORD.search(name):
        return word.group(1) if name != word.group(1) else None
    if name in _ARGUMENT_TYPES:
        return _ARGUMENT_TYPES[name]
    size = name.find(b"SIZEOF_")
    if size >= 0:
        return _SIZES.get(name[size + len(b"SIZEOF_") :].rstrip(b"_"))
    have = name[max(name.find(b"HAVE_"), 0) :].replace(b"HAVE_DECL_", b"HAVE_", 1)
    if have in _HAVE_HEADERS | _HAVE_FUNCTIONS or name == b"STDC_HEADERS" or _IS_DEFAULT.search(have):
        return b"1"
    return None
