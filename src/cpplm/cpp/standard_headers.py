"""The keywords, and which standard header declares a name where GCC's messages do not say it.

GCC suggests headers for most types, macros and functions of C, and for the classes of C++ (its file
`std-name-hint.gperf`), but not where a parameter lacks its type. Here are the types that are most used as
such, functions and namespaces of C++ (ISO C++17, the synopses of clauses 23 to 33), and what is most used of
POSIX.1-2017.
"""

from __future__ import annotations

# Of C++20, with the identifiers of special meaning that code hardly uses otherwise.
_KEYWORDS = (
    "alignas alignof asm auto bool break case catch char char8_t char16_t char32_t class concept "
    "const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype "
    "default delete do double dynamic_cast else enum explicit export extern false final float for "
    "friend goto if inline int long mutable namespace new noexcept nullptr operator override private "
    "protected public register reinterpret_cast requires restrict return short signed sizeof static "
    "static_assert static_cast struct switch template this thread_local throw true try typedef typeid "
    "typename union unsigned using virtual void volatile wchar_t while "
)
KEYWORDS = frozenset(_KEYWORDS.split())
_CXX = {
    "<algorithm>": (
        "all_of any_of none_of for_each find find_if find_if_not count count_if equal search copy copy_if "
        "copy_n move_backward transform replace replace_if fill fill_n generate remove remove_if unique "
        "reverse rotate shuffle partition sort stable_sort partial_sort nth_element lower_bound upper_bound "
        "equal_range binary_search merge includes min max minmax min_element max_element clamp "
        "next_permutation lexicographical_compare set_union set_intersection set_difference make_heap"
    ),
    "<array>": "array",
    "<atomic>": "atomic atomic_bool atomic_int atomic_flag memory_order",
    "<chrono>": "chrono",
    "<cstddef>": "size_t ptrdiff_t nullptr_t byte max_align_t",
    "<cstdint>": "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t",
    "<cmath>": "abs fabs ceil floor round sqrt pow exp log log2 log10 sin cos tan atan2 isnan isinf isfinite",
    "<cstdlib>": "abort exit atexit getenv system qsort strtol strtoul strtoll strtoull strtod atoi",
    "<ctime>": "tm time_t clock_t time clock mktime localtime gmtime strftime difftime",
    "<exception>": "terminate current_exception rethrow_exception exception_ptr uncaught_exceptions",
    "<filesystem>": "filesystem",
    "<fstream>": "ifstream ofstream fstream filebuf",
    "<functional>": "function bind ref cref placeholders hash less greater equal_to plus minus mem_fn not_fn",
    "<initializer_list>": "initializer_list",
    "<ios>": "ios ios_base streamsize streampos hex dec fixed",
    "<iosfwd>": "basic_ostream basic_istream",
    "<istream>": "istream",
    "<iterator>": (
        "reverse_iterator iterator_traits begin end cbegin cend size data empty distance advance next "
        "prev back_inserter inserter"
    ),
    "<locale>": "time_put time_get num_put num_get use_facet has_facet isspace isdigit isalpha tolower",
    "<map>": "map multimap",
    "<memory>": (
        "unique_ptr shared_ptr weak_ptr make_unique make_shared allocator addressof static_pointer_cast "
        "dynamic_pointer_cast allocator_traits pointer_traits"
    ),
    "<mutex>": "mutex recursive_mutex lock_guard unique_lock once_flag call_once",
    "<new>": "nothrow nothrow_t bad_alloc align_val_t launder",
    "<numeric>": "accumulate inner_product partial_sum iota gcd lcm reduce",
    "<ostream>": "ostream endl flush",
    "<set>": "set multiset",
    "<sstream>": "stringstream ostringstream istringstream",
    "<stdexcept>": (
        "logic_error runtime_error invalid_argument out_of_range length_error domain_error range_error "
        "overflow_error underflow_error"
    ),
    "<string>": (
        "string wstring basic_string u16string u32string to_string to_wstring stoi stol stoul stoll "
        "stoull stof stod getline char_traits"
    ),
    "<string_view>": "string_view basic_string_view wstring_view",
    "<thread>": "thread this_thread",
    "<tuple>": "tuple tie make_tuple forward_as_tuple",
    "<type_traits>": (
        "enable_if enable_if_t is_same decay_t conditional_t remove_reference_t true_type false_type "
        "integral_constant"
    ),
    "<unordered_map>": "unordered_map unordered_multimap",
    "<unordered_set>": "unordered_set unordered_multiset",
    "<utility>": "move forward swap exchange declval pair make_pair move_if_noexcept as_const",
    "<vector>": "vector",
}
_C = {
    "<math.h>": "sqrt pow exp log floor ceil fabs sin cos isnan",
    "<stdarg.h>": "va_list va_start",
    "<stddef.h>": "size_t ptrdiff_t NULL offsetof",
    "<stdint.h>": "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t",
    "<stdio.h>": "FILE printf fprintf snprintf fopen fclose fread fwrite stderr stdout stdin",
    "<stdlib.h>": "malloc calloc realloc free abort exit getenv atoi strtol qsort",
    "<string.h>": "memcpy memmove memset memcmp strlen strcmp strncmp strcpy strchr strstr strdup",
    "<time.h>": "time_t tm time clock_t",
}
_POSIX = {
    "<arpa/inet.h>": "inet_ntop inet_pton inet_addr inet_ntoa htons htonl ntohs ntohl",
    "<dirent.h>": "DIR dirent opendir readdir closedir",
    "<dlfcn.h>": "dlopen dlsym dlclose dlerror",
    "<fcntl.h>": "fcntl O_RDONLY O_WRONLY O_RDWR O_CREAT O_TRUNC O_NONBLOCK F_SETFL F_GETFL",
    "<netdb.h>": "addrinfo getaddrinfo freeaddrinfo gai_strerror gethostbyname",
    "<netinet/in.h>": "sockaddr_in sockaddr_in6 in_addr in6_addr INADDR_ANY IPPROTO_TCP",
    "<poll.h>": "pollfd POLLIN POLLOUT",
    "<pthread.h>": "pthread_t pthread_mutex_t pthread_cond_t pthread_create pthread_join pthread_mutex_lock",
    "<signal.h>": "sigaction sigset_t sigemptyset SIGINT SIGTERM SIGPIPE SIGSEGV",
    "<strings.h>": "strcasecmp strncasecmp bzero",
    "<sys/mman.h>": "mmap munmap mprotect PROT_READ PROT_WRITE MAP_FAILED MAP_SHARED MAP_PRIVATE",
    "<sys/select.h>": "fd_set FD_SET FD_ZERO FD_ISSET",
    "<sys/socket.h>": "sockaddr sockaddr_storage socklen_t setsockopt getsockopt AF_INET SOCK_STREAM",
    "<sys/stat.h>": "stat fstat lstat mkdir S_ISDIR S_ISREG",
    "<sys/time.h>": "timeval gettimeofday",
    "<sys/types.h>": "ssize_t pid_t off_t uid_t gid_t mode_t u_int8_t u_int16_t u_int32_t u_int64_t",
    "<sys/uio.h>": "iovec readv writev",
    "<sys/wait.h>": "waitpid WEXITSTATUS WIFEXITED WIFSIGNALED",
    "<time.h>": "timespec clock_gettime nanosleep localtime_r gmtime_r CLOCK_MONOTONIC CLOCK_REALTIME",
    "<unistd.h>": (
        "close read write lseek unlink access usleep sleep getpid fork execvp pipe dup dup2 isatty sysconf "
        "getcwd chdir ftruncate fsync readlink getopt optarg optind STDIN_FILENO STDOUT_FILENO STDERR_FILENO"
    ),
}
HEADERS = {f"std::{name}": header for header, names in _CXX.items() for name in names.split()}
for _table in (_POSIX, _C):
    HEADERS |= {name: header for header, names in _table.items() for name in names.split()}


def header_of(name: str) -> str | None:
    """The header of a name as compilers write it (`std::sort`, `iovec`), or None.

    A namespace in front of a name of POSIX does not matter: an elaborate type (`struct iovec`) that is not
    declared becomes one of the namespace around it.
    """
    return HEADERS.get(name) or HEADERS.get(name.rpartition("::")[2] if "std" not in name else "")
