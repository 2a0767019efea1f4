"""Hostile programs in bounded form, each with what it does without a sandbox."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hostile:
    """A program, or the text of one, that wants to do harm."""

    harm: str
    """What it does where nothing holds it."""
    source: str


FORK_BOMB = Hostile(
    "Leaves 400 sleeping processes behind.",
    r"""
#include <cstdio>
#include <unistd.h>
int main() {
    int made = 0;
    for (int i = 0; i < 400; ++i) {
        pid_t pid = fork();
        if (pid == 0) { sleep(60); _exit(0); }
        if (pid > 0) ++made;
    }
    std::printf("%d", made);
}
""",
)

THREAD_BOMB = Hostile(
    "Starts 400 threads.",
    r"""
#include <cstdio>
#include <pthread.h>
#include <unistd.h>
void* idle(void*) { sleep(60); return nullptr; }
int main() {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    int made = 0;
    for (int i = 0; i < 400; ++i) {
        pthread_t thread;
        made += pthread_create(&thread, &attributes, idle, nullptr) == 0;
    }
    std::printf("%d", made);
    std::fflush(stdout);
    _exit(0);
}
""",
)

MEMORY = Hostile(
    "Takes 3 GiB of memory.",
    r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
int main() {
    int mebibytes = 0;
    for (int i = 0; i < 96; ++i) {
        void* block = std::malloc(32 << 20);
        if (!block) break;
        std::memset(block, 1, 32 << 20);
        mebibytes += 32;
    }
    std::printf("%d", mebibytes);
}
""",
)

SHARED_MEMORY_GREED = Hostile(
    "Six processes take 1.2 GiB together, each within its own limit.",
    r"""
#include <cstdlib>
#include <cstring>
#include <unistd.h>
int main() {
    for (int i = 0; i < 5; ++i) if (fork() == 0) break;
    void* block = std::malloc(200 << 20);
    if (block) std::memset(block, 1, 200 << 20);
    sleep(20);
}
""",
)

MEMORY_WITHOUT_ADDRESS_SPACE = Hostile(
    "Gets around address-space limits: memory files, System V shared memory, anonymous descriptors.",
    r"""
#include <cstdio>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>
int main() {
    int open = 0;
    open += memfd_create("m", 0) >= 0;
    open += shmget(IPC_PRIVATE, 1 << 20, 0600 | IPC_CREAT) >= 0;
    open += syscall(447, 0) >= 0;  // memfd_secret
    std::printf("%d", open);
}
""",
)

ENDLESS_LOOP = Hostile(
    "Takes a core until somebody kills it.",
    "int main() { volatile int i = 0; while (true) i = i + 1; }",
)

ENDLESS_SLEEP = Hostile(
    "Never ends and takes no processor time, so that only a clock can end it.",
    "#include <unistd.h>\nint main() { while (true) sleep(60); }",
)

ENDLESS_OUTPUT = Hostile(
    "Fills the memory of whoever collects its output, or the disk.",
    r"""
#include <cstdio>
int main() { while (true) std::puts("the same line again and again, without any end"); }
""",
)

READ_SECRETS = Hostile(
    "Prints secrets of this user: keys, passwords, other programs' environments.",
    r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
extern char** environ;
int main(int count, char** names) {
    for (int i = 1; i < count; ++i) {
        char text[64] = {};
        if (FILE* file = std::fopen(names[i], "r")) {
            if (std::fread(text, 1, sizeof text - 1, file) > 0) std::printf("read %s\n", names[i]);
            std::fclose(file);
        }
        if (DIR* folder = opendir(names[i])) {
            if (readdir(folder)) std::printf("listed %s\n", names[i]);
            closedir(folder);
        }
    }
    for (char** entry = environ; *entry; ++entry)
        if (std::strstr(*entry, "SECRET")) std::printf("environment %s\n", *entry);
    std::printf("end");
}
""",
)

WRITE_OUTSIDE = Hostile(
    "Changes, creates and deletes this user's files.",
    r"""
#include <cstdio>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
int main(int count, char** names) {
    for (int i = 1; i < count; ++i) {
        std::string folder = names[i];
        for (std::string path : {folder + "/planted", folder + "/victim"}) {
            int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
            if (descriptor >= 0 && write(descriptor, "x", 1) == 1) std::printf("wrote %s\n", path.c_str());
        }
        std::string victim = folder + "/victim";
        if (truncate(victim.c_str(), 0) == 0) std::printf("truncated %s\n", victim.c_str());
        if (chmod(victim.c_str(), 0) == 0) std::printf("changed the mode of %s\n", victim.c_str());
        if (rename(victim.c_str(), (folder + "/gone").c_str()) == 0) std::printf("moved %s\n", names[i]);
        if (unlink(victim.c_str()) == 0) std::printf("deleted %s\n", victim.c_str());
        if (mkdir((folder + "/made").c_str(), 0777) == 0) std::printf("made a folder in %s\n", names[i]);
        if (symlink("/etc", (folder + "/link").c_str()) == 0) std::printf("linked in %s\n", names[i]);
    }
    std::printf("end");
}
""",
)

NETWORK = Hostile(
    "Sends what it found to somebody else.",
    r"""
#include <arpa/inet.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(int, char** arguments) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(std::atoi(arguments[1]));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int stream = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(stream, (sockaddr*)&address, sizeof address) == 0) std::printf("connected\n");
    int datagram = socket(AF_INET, SOCK_DGRAM, 0);
    if (sendto(datagram, "x", 1, 0, (sockaddr*)&address, sizeof address) == 1) std::printf("sent\n");
    int server = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    if (bind(server, (sockaddr*)&any, sizeof any) == 0 && listen(server, 1) == 0) std::printf("listens\n");
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::strcpy(name.sun_path + 1, arguments[2]);
    int local = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(local, (sockaddr*)&name, sizeof(sa_family_t) + 1 + std::strlen(arguments[2])) == 0)
        std::printf("connected to the abstract socket\n");
    const int families[] = {AF_NETLINK, AF_PACKET, 38 /* AF_ALG */, 40 /* AF_VSOCK */};
    for (int family : families)
        if (socket(family, SOCK_RAW, 0) >= 0) std::printf("family %d\n", family);
    std::printf("end");
}
""",
)

KILLER = Hostile(
    "Kills the harness, this user's other programs, or everything it may.",
    r"""
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int count, char** victims) {
    for (int i = 1; i < count; ++i) {
        pid_t victim = std::atoi(victims[i]);
        rlimit limit{0, 0};
        kill(victim, SIGKILL);
        kill(-victim, SIGKILL);
        sigqueue(victim, SIGKILL, {});
        syscall(SYS_tkill, victim, SIGKILL);
        syscall(SYS_tgkill, victim, victim, SIGKILL);
        int handle = syscall(434, victim, 0);  // pidfd_open
        if (handle >= 0) syscall(424, handle, SIGKILL, nullptr, 0);  // pidfd_send_signal
        if (prlimit(victim, RLIMIT_NOFILE, &limit, nullptr) == 0) std::printf("limited %d\n", victim);
        int ends[2];
        if (pipe(ends) == 0) {  // the kernel sends the signal
            fcntl(ends[0], F_SETOWN, victim);
            fcntl(ends[0], F_SETSIG, SIGKILL);
            fcntl(ends[0], F_SETFL, O_ASYNC);
            write(ends[1], "x", 1);
        }
    }
    kill(getppid(), SIGKILL);
    kill(getppid(), SIGSTOP);
    kill(-1, SIGKILL);
    std::printf("alive");
}
""",
)

DAEMON = Hostile(
    "Leaves a process behind that survives the end of its parent and of its session.",
    r"""
#include <csignal>
#include <cstdio>
#include <unistd.h>
int main() {
    for (int i = 0; i < 3; ++i) {
        if (fork() == 0) {
            setsid();
            setpgid(0, 0);
            if (fork() == 0) {
                for (int number = 1; number < 32; ++number) signal(number, SIG_IGN);
                while (true) usleep(10000);
            }
            _exit(0);
        }
    }
    usleep(50000);
    std::printf("left");
}
""",
)

FILL_DISK = Hostile(
    "Fills the disk with large files, small files and folders.",
    r"""
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
int main() {
    static char block[1 << 20];
    std::memset(block, 1, sizeof block);
    long written = 0;
    for (int file = 0; file < 64; ++file) {
        int descriptor = open(("large" + std::to_string(file)).c_str(), O_WRONLY | O_CREAT, 0600);
        for (int i = 0; i < 4; ++i) {
            ssize_t count = write(descriptor, block, sizeof block);
            if (count > 0) written += count;
        }
        close(descriptor);
        std::printf("%ld\n", written);
        std::fflush(stdout);
    }
    for (int i = 0; i < 100000; ++i) close(open(("small" + std::to_string(i)).c_str(), O_CREAT, 0600));
    std::printf("end");
}
""",
)

SYSTEM_CALLS = Hostile(
    "Opens the doors that kernel exploits come through.",
    r"""
#include <cerrno>
#include <cstdio>
#include <sched.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>
int main() {
    if (unshare(CLONE_NEWUSER) == 0) std::puts("unshare");
    if (syscall(SYS_clone, CLONE_NEWUSER | 17, 0, 0, 0, 0) >= 0) std::puts("clone");
    if (syscall(435, nullptr, 0) >= 0 || errno != ENOSYS) std::puts("clone3");
    if (mount("none", "/", "tmpfs", 0, "") == 0 || errno != EPERM) std::puts("mount");
    if (chroot(".") == 0) std::puts("chroot");
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0) std::puts("ptrace");
    if (syscall(SYS_bpf, 0, nullptr, 0) >= 0 || errno != EPERM) std::puts("bpf");
    if (syscall(SYS_perf_event_open, nullptr, 0, -1, -1, 0) >= 0 || errno != EPERM) std::puts("perf");
    if (syscall(425, 1, nullptr) >= 0 || errno != EPERM) std::puts("io_uring");
    if (syscall(SYS_userfaultfd, 0) >= 0 || errno != EPERM) std::puts("userfaultfd");
    if (syscall(SYS_keyctl, 0, -3, 1) >= 0 || errno != EPERM) std::puts("keyctl");
    if (syscall(SYS_open_by_handle_at, 0, nullptr, 0) >= 0 || errno != EPERM) std::puts("open_by_handle_at");
    if (setuid(0) == 0 || geteuid() == 0) std::puts("root");
    if (syscall(1000) >= 0 || errno != ENOSYS) std::puts("a call that is not known");
    std::printf("end");
}
""",
)

DESCRIPTORS = Hostile(
    "Reads and writes what the harness has open.",
    r"""
#include <cstdio>
#include <fcntl.h>
int main() {
    for (int descriptor = 3; descriptor < 4096; ++descriptor)
        if (fcntl(descriptor, F_GETFD) >= 0) std::printf("%d is open\n", descriptor);
    int last = 2, next = 2;
    while ((next = open("/dev/null", O_RDONLY)) >= 0 && next < 4096) last = next;
    std::printf("last %d, stdin %d", last, getchar());
}
""",
)

FALSE_OUTPUT = Hostile(
    "Puts something else where the harness expects the compiled program.",
    r"""
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int, char** secret) {
    symlink(secret[1], "symbolic");
    link(secret[1], "hard");
    mkfifo("pipe", 0600);
    mkdir("folder", 0700);
    int huge = open("huge", O_WRONLY | O_CREAT, 0600);
    ftruncate(huge, 1 << 20);
}
""",
)

CRASH = Hostile(
    "Leaves a core file.",
    "#include <cstdlib>\nint main() { std::abort(); }",
)

DEEP_FOLDERS = Hostile(
    "Leaves a tree of folders that cannot be deleted in the usual way.",
    r"""
#include <sys/stat.h>
#include <unistd.h>
int main() {
    for (int i = 0; i < 3000; ++i) {
        mkdir("deep", i == 2999 ? 0 : 0700);
        if (chdir("deep") != 0) break;
    }
}
""",
)
