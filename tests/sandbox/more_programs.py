"""More hostile programs, all in one: the first argument says which. Each prints what it managed, then "end".

Functions get the remaining arguments as `given[0]`, `given[1]`, ...
"""

from __future__ import annotations

from tests.sandbox.programs import Hostile

TRACE = Hostile(
    "Takes over its parent: stops it like a debugger, reads and writes its memory.",
    r"""
    for (int victim : {getppid(), 1}) {
        char byte = 0;
        iovec here{&byte, 1}, there{(void*)main, 1};
        if (ptrace(PTRACE_ATTACH, victim, nullptr, nullptr) == 0) std::puts("attached");
        if (ptrace(PTRACE_SEIZE, victim, nullptr, nullptr) == 0) std::puts("seized");
        if (process_vm_readv(victim, &here, 1, &there, 1, 0) >= 0) std::puts("read memory");
        if (process_vm_writev(victim, &here, 1, &there, 1, 0) >= 0) std::puts("wrote memory");
        tries(O_RDWR, "/proc/" + std::to_string(victim) + "/mem");
        tries(O_RDONLY, "/proc/" + std::to_string(victim) + "/maps");
    }
    """,
)
FORGED_REPORT = Hostile(
    "Writes into the pipe through which its parent reports how it ended: a failure looks like success.",
    r"""
    for (int victim : {getppid(), 1})
        for (int number = 3; number < 40; ++number) {
            std::string path = "/proc/" + std::to_string(victim) + "/fd/" + std::to_string(number);
            int descriptor = open(path.c_str(), O_WRONLY | O_NONBLOCK);
            if (descriptor >= 0 && write(descriptor, "exit 0 0 0\n", 11) > 0) std::puts("forged");
        }
    std::puts("end");
    std::fflush(stdout);
    _exit(7);
    """,
)
IGNORED_SIGNALS = Hostile(
    "Ignores every signal that can be ignored, in all its processes: no polite request ends it.",
    r"""
    sigset_t every;
    sigfillset(&every);
    for (int number = 1; number < 65; ++number) signal(number, SIG_IGN);
    sigprocmask(SIG_BLOCK, &every, nullptr);
    fork();
    fork();
    while (true) signal(SIGXCPU, SIG_IGN);
    """,
)
ENDLESS_EXEC = Hostile(
    "Becomes a new program again and again: a watcher that looks for names or start times never finds it.",
    r"""
    execv(all[0], all);
    """,
)
TRICKLE = Hostile(
    "Prints a little for ever: a time limit that starts anew with each output never ends it.",
    r"""
    while (true) { write(1, ".", 1); usleep(5000); }
    """,
)
TERMINAL = Hostile(
    "Types commands into the terminal from which the harness was started.",
    r"""
    int terminal = open("/dev/tty", O_RDWR);
    for (int descriptor : {0, 1, 2, terminal}) {
        char key = '\n';
        if (ioctl(descriptor, TIOCSTI, &key) == 0) std::puts("typed");
        if (ioctl(descriptor, TIOCSCTTY, 1) == 0) std::puts("took the terminal");
        if (tcsetpgrp(descriptor, getpgrp()) == 0) std::puts("took the foreground");
    }
    """,
)
STANDARD_INPUT = Hostile(
    "Reads what the user types, or waits for it for ever.",
    r"""
    char text[100];
    if (read(0, text, sizeof text) != 0) std::puts("read");
    """,
)
SYMBOLIC_LINKS = Hostile(
    "Puts links in its folder, so that the harness or the next program reads and writes somewhere else.",
    r"""
    const char* secret = given[0];
    symlink(secret, "link");
    tries(O_RDONLY, "link");
    tries(O_RDWR, "link");
    if (link(secret, "hard") == 0) tries(O_RDONLY, "hard");
    if (linkat(AT_FDCWD, "link", AT_FDCWD, "followed", AT_SYMLINK_FOLLOW) == 0) tries(O_RDONLY, "followed");
    if (rename("link", secret) == 0) std::puts("replaced");
    symlink("..", "up");
    tries(O_RDONLY, std::string("up/../../../../../../") + secret);
    """,
)
CORE = Hostile(
    "Asks for core files without limit, fills its memory and crashes: gigabytes on the disk each time.",
    r"""
    rlimit any{RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_CORE, &any) == 0) std::puts("allowed");
    prctl(PR_SET_DUMPABLE, 1);
    void* block = std::malloc(100 << 20);
    if (block) std::memset(block, 1, 100 << 20);
    std::puts("end");
    std::fflush(stdout);
    std::abort();
    """,
)
RAISED_LIMITS = Hostile(
    "Lifts the limits that were set for it.",
    r"""
    for (int kind = 0; kind < RLIM_NLIMITS; ++kind) {
        rlimit now{}, more{};
        getrlimit((__rlimit_resource)kind, &now);
        more.rlim_cur = more.rlim_max = RLIM_INFINITY;
        if (now.rlim_max != RLIM_INFINITY && setrlimit((__rlimit_resource)kind, &more) == 0)
            std::printf("limit %d\n", kind);
    }
    """,
)
FILE_HANDLES = Hostile(
    "Opens files in several processes until the whole machine has no descriptor left.",
    r"""
    for (int i = 0; i < 3; ++i) fork();
    int opened = 0, ends[2];
    while (opened < 100000 && pipe(ends) == 0) opened += 2;
    while (opened < 100000 && open("/dev/null", O_RDONLY) >= 0) ++opened;
    while (opened < 100000 && eventfd(0, 0) >= 0) ++opened;
    if (opened > 64) std::printf("%d\n", opened);
    """,
)
PROC_TRICKS = Hostile(
    "Changes the kernel's settings through /proc, or restarts the machine; reads the kernel's memory.",
    r"""
    for (const char* path : {"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname",
                             "/proc/sysrq-trigger", "/proc/sys/vm/overcommit_memory", "/proc/1/oom_score_adj",
                             "/proc/1/mem", "/proc/self/uid_map", "/sys/kernel/uevent_helper"})
        overwrites(path, "0 0 1");
    overwrites("/proc/self/oom_score_adj", "-1000");
    for (const char* path : {"/proc/kcore", "/proc/kpagecount", "/proc/1/root/etc/passwd",
                             "/proc/1/cwd/etc/passwd", "/proc/self/root/etc/shadow", "/sys/kernel/debug"})
        tries(O_RDONLY, path);
    """,
)
DEVICES = Hostile(
    "Reads the disks and the memory past all permissions of files; makes device files of its own.",
    r"""
    for (const char* name : {"mem", "kmem", "port", "kmsg", "sda", "vda", "vdb", "nvme0n1", "dm-0", "loop0",
                             "loop-control", "fuse", "net/tun", "kvm", "tty0", "console", "rtc0", "watchdog",
                             "dri/card0", "input/event0", "vhost-net", "userfaultfd", "cpu/0/msr", "hpet"})
        tries(O_RDWR, std::string("/dev/") + name);
    for (int major : {1, 8, 253, 254, 259})
        if (mknod("device", S_IFBLK | 0600, makedev(major, 0)) == 0) tries(O_RDONLY, "device");
    if (mknod("memory", S_IFCHR | 0600, makedev(1, 1)) == 0) tries(O_RDONLY, "memory");
    """,
)
PRIVILEGES = Hostile(
    "Becomes root through programs that run as root, or makes such a program for later.",
    r"""
    for (const char* command : {"su -c id", "sudo -n id", "pkexec id", "newgrp root", "mount none /mnt"}) {
        std::system((std::string(command) + " </dev/null >made 2>/dev/null").c_str());
        tries_text("made", "uid=0");
    }
    if (setuid(0) == 0 || seteuid(0) == 0 || setgid(0) == 0) std::puts("root");
    if (setresuid(0, 0, 0) == 0 || setgroups(0, nullptr) == 0) std::puts("groups");
    """,
)
SCHEDULING = Hostile(
    "Takes the processor before everybody else, for ever.",
    r"""
    sched_param most{99};
    if (sched_setscheduler(0, SCHED_FIFO, &most) == 0) std::puts("real time");
    if (setpriority(PRIO_PROCESS, 0, -20) == 0 || nice(-10) != -1) std::puts("priority");
    """,
)
MACHINE = Hostile(
    "Sets the clock, renames the machine, loads kernel modules, turns swap off, restarts.",
    r"""
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    if (clock_settime(CLOCK_REALTIME, &now) == 0) std::puts("clock");
    if (sethostname("mine", 4) == 0) std::puts("name");
    if (syscall(SYS_init_module, nullptr, 0, "") == 0 || errno != EPERM) std::puts("module");
    if (syscall(SYS_kexec_load, 0, 0, nullptr, 0) == 0) std::puts("kernel");
    if (swapoff("/swapfile") == 0) std::puts("swap");
    const int off = 0;  // of Ctrl-Alt-Del
    if (syscall(SYS_reboot, 0xfee1dead, 672274793, off, nullptr) == 0) std::puts("restart");
    if (syscall(SYS_syslog, 3, nullptr, 0) >= 0) std::puts("log");
    """,
)
LEFT_BEHIND = Hostile(
    "Leaves files and named objects where the next program finds them: a way to pass on an answer.",
    r"""
    for (const char* path : {"/tmp/cpplm-left", "/var/tmp/cpplm-left", "/dev/shm/cpplm-left", "left"}) {
        tries(O_RDONLY, path);
        close(open(path, O_CREAT | O_WRONLY, 0666));
    }
    if (sem_open("/cpplm-left", 0) != SEM_FAILED) std::puts("semaphore");
    sem_open("/cpplm-left", O_CREAT, 0666, 1);
    if (shmget(0x77777, 4096, 0) >= 0) std::puts("shared memory");
    shmget(0x77777, 4096, IPC_CREAT | 0666);
    if (msgget(0x77777, 0) >= 0) std::puts("messages");
    msgget(0x77777, IPC_CREAT | 0666);
    """,
)
HUGE_FILES = Hostile(
    "Makes files of a terabyte: whatever copies or hashes them afterwards never ends.",
    r"""
    signal(SIGXFSZ, SIG_IGN);
    int file = open("huge", O_CREAT | O_RDWR, 0600);
    if (ftruncate(file, 1L << 40) == 0) std::puts("sparse");
    if (posix_fallocate(file, 0, 1L << 36) == 0) std::puts("allocated");
    if (lseek(file, 1L << 40, SEEK_SET) > 0 && write(file, "x", 1) == 1) std::puts("written");
    """,
)
OTHER_ENVIRONMENTS = Hostile(
    "Reads the passwords that other programs got through their environments or command lines.",
    r"""
    if (DIR* folder = opendir("/proc"))
        while (dirent* entry = readdir(folder))
            for (const char* kind : {"/environ", "/cmdline"})
                tries_text(std::string("/proc/") + entry->d_name + kind, "CPPLM_TEST_SECRET");
    """,
)
FOREIGN_CALLS = Hostile(
    "Calls the kernel by the numbers of another processor, which a filter of numbers does not expect.",
    r"""
#ifdef __x86_64__
    if (syscall(0x40000000 + 41 /* socket, x32 */, 2, 1, 0) >= 0) std::puts("x32");
    int result;
    asm volatile("int $0x80" : "=a"(result) : "a"(359 /* socket, i386 */), "b"(2), "c"(1), "d"(0) : "memory");
    if (result >= 0) std::puts("i386");
#endif
    """,
)
BROADCAST = Hostile(
    "Listens for connections from outside, and looks for other machines.",
    r"""
    for (int family : {AF_INET, AF_INET6, AF_UNIX})
        for (int kind : {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW})
            if (socket(family, kind, 0) >= 0) std::puts("socket");
    int ends[2];
    addrinfo* found = nullptr;
    if (getaddrinfo("localhost", "80", nullptr, &found) == 0 && socket(found->ai_family, SOCK_STREAM, 0) >= 0)
        std::puts("looked up");
    if (syscall(SYS_accept, 0, nullptr, nullptr) >= 0) std::puts("accepted");
    """,
)

ATTACKS = {name.lower(): value for name, value in list(globals().items()) if isinstance(value, Hostile)}

_HEAD = r"""
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <netdb.h>
#include <sched.h>
#include <semaphore.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
int main(int, char**);
static void tries(int how, std::string path) {
    int descriptor = open(path.c_str(), how | O_NONBLOCK | O_NOCTTY);
    if (descriptor >= 0) std::printf("opened %s\n", path.c_str());
    if (descriptor >= 0) close(descriptor);
}
static void tries_text(std::string path, const char* words) {
    char text[65536] = {};
    int descriptor = open(path.c_str(), O_RDONLY | O_NONBLOCK);
    long length = descriptor < 0 ? 0 : read(descriptor, text, sizeof text - 1);
    if (length > 0 && memmem(text, length, words, std::strlen(words))) std::printf("read %s\n", path.c_str());
    if (descriptor >= 0) close(descriptor);
}
static void overwrites(const char* path, const char* text) {
    int descriptor = open(path, O_WRONLY | O_NONBLOCK);
    if (descriptor >= 0 && write(descriptor, text, std::strlen(text)) > 0) std::printf("wrote %s\n", path);
}
"""


def combined() -> str:
    """One program with all of them, so that one compilation does."""
    functions = "".join(
        f"static void {name}(char** all, char** given) {{{attack.source}}}\n"
        for name, attack in ATTACKS.items()
    )
    choices = "".join(f'    if (std::string(all[1]) == "{name}") {name}(all, all + 2);\n' for name in ATTACKS)
    return f'{_HEAD}{functions}int main(int, char** all) {{\n{choices}    std::puts("end");\n}}\n'
