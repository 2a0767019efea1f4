"""Which standard header declares a name, for names of which GCC's messages do not say it.

GCC suggests headers for most types, macros and functions of C, and for the classes of C++ (its file
`std-name-hint.gperf`); here are functions and namespaces of C++ (ISO C++17, the synopses of clauses 23 to 33)
and what is most used of POSIX.1-2017.
"""

from __future__ import annotations

_CXX = {
    "<algorithm>": (
        "all_of any_of none_of for_each find find_if find_if_not count count_if equal search copy copy_if "
        "copy_n move_backward transform replace replace_if fill fill_n generate remove remove_if unique "
        "reverse rotate shuffle partition sort stable_sort partial_sort nth_element lower_bound upper_bound "
        "equal_range binary_search merge includes min max minmax min_element max_element clamp "
        "next_permutation lexicographical_compare set_union set_intersection set_difference make_heap"
    ),
    "<chrono>": "chrono",
    "<cmath>": "abs fabs ceil floor round sqrt pow exp log log2 log10 sin cos tan atan2 isnan isinf isfinite",
    "<cstdlib>": "abort exit atexit getenv system qsort strtol strtoul strtoll strtoull strtod atoi",
    "<ctime>": "tm time_t clock_t time clock mktime localtime gmtime strftime difftime",
    "<exception>": "terminate current_exception rethrow_exception exception_ptr uncaught_exceptions",
    "<filesystem>": "filesystem",
    "<functional>": "bind ref cref placeholders hash less greater equal_to plus minus mem_fn not_fn",
    "<iterator>": "begin end cbegin cend size data empty distance advance next prev back_inserter inserter",
    "<locale>": "time_put time_get num_put num_get use_facet has_facet isspace isdigit isalpha tolower",
    "<memory>": "addressof static_pointer_cast dynamic_pointer_cast allocator_traits pointer_traits",
    "<new>": "nothrow nothrow_t bad_alloc align_val_t launder",
    "<numeric>": "accumulate inner_product partial_sum iota gcd lcm reduce",
    "<stdexcept>": (
        "logic_error runtime_error invalid_argument out_of_range length_error domain_error range_error "
        "overflow_error underflow_error"
    ),
    "<string>": "to_string to_wstring stoi stol stoul stoll stoull stof stod getline char_traits",
    "<thread>": "this_thread",
    "<type_traits>": "true_type false_type integral_constant",
    "<utility>": "move forward swap exchange declval pair make_pair move_if_noexcept as_const",
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
_HEADERS = {f"std::{name}": header for header, names in _CXX.items() for name in names.split()}
_HEADERS |= {name: header for header, names in _POSIX.items() for name in names.split()}


def header_of(name: str) -> str | None:
    """The header of a name as compilers write it (`std::sort`, `iovec`), or None.

    A namespace in front of a name of POSIX does not matter: an elaborate type (`struct iovec`) that is not
    declared becomes one of the namespace around it.
    """
    return _HEADERS.get(name) or _HEADERS.get(name.rpartition("::")[2] if "std" not in name else "")
