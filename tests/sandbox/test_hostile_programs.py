"""Hostile programs at run time, in bounded form: each would do harm unsandboxed, none may do any here.

The comment above each source says what it does without a sandbox.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cpplm.sandbox.backends import NOBODY, UNSAFE
from cpplm.sandbox.limits import MIB, Limits
from cpplm.sandbox.sandbox import Sandbox
from tests.sandbox.conftest import Attack

# Leaves 400 sleeping processes behind.
FORK_BOMB = r"""
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
"""

# Starts 400 threads.
THREAD_BOMB = r"""
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
"""

# Takes 3 GiB of memory.
MEMORY = r"""
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
"""

# Six processes take 1.2 GiB together, each within its own limit.
SHARED_MEMORY_GREED = r"""
#include <cstdlib>
#include <cstring>
#include <unistd.h>
int main() {
    for (int i = 0; i < 5; ++i) if (fork() == 0) break;
    void* block = std::malloc(200 << 20);
    if (block) std::memset(block, 1, 200 << 20);
    sleep(20);
}
"""

# Gets around address-space limits: memory files, System V shared memory, anonymous descriptors.
MEMORY_WITHOUT_ADDRESS_SPACE = r"""
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
"""

ENDLESS_LOOP = "int main() { volatile int i = 0; while (true) i = i + 1; }"
ENDLESS_SLEEP = "#include <unistd.h>\nint main() { while (true) sleep(60); }"
ENDLESS_OUTPUT = r"""
#include <cstdio>
int main() { while (true) std::puts("the same line again and again, without any end"); }
"""

# Prints secrets of this user: keys, passwords, other programs' environments.
READ_SECRETS = r"""
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
"""

# Changes, creates and deletes this user's files.
WRITE_OUTSIDE = r"""
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
"""

# Sends what it found to somebody else.
NETWORK = r"""
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
"""

# Kills the harness, this user's other programs, or everything it may.
KILLER = r"""
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
"""

# Leaves a process behind that survives the end of its parent and of its session.
DAEMON = r"""
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
"""

# Fills the disk with large files, small files and folders.
FILL_DISK = r"""
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
"""

# Opens the doors that kernel exploits come through.
SYSTEM_CALLS = r"""
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
"""

# Reads and writes what the harness has open.
DESCRIPTORS = r"""
#include <cstdio>
#include <fcntl.h>
int main() {
    for (int descriptor = 3; descriptor < 4096; ++descriptor)
        if (fcntl(descriptor, F_GETFD) >= 0) std::printf("%d is open\n", descriptor);
    int last = 2, next = 2;
    while ((next = open("/dev/null", O_RDONLY)) >= 0 && next < 4096) last = next;
    std::printf("last %d, stdin %d", last, getchar());
}
"""

# Puts something else where the harness expects the compiled program.
FALSE_OUTPUT = r"""
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
"""

CRASH = "#include <cstdlib>\nint main() { std::abort(); }"
DEEP_FOLDERS = r"""
#include <sys/stat.h>
#include <unistd.h>
int main() {
    for (int i = 0; i < 3000; ++i) {
        mkdir("deep", i == 2999 ? 0 : 0700);
        if (chdir("deep") != 0) break;
    }
}
"""


@pytest.mark.parametrize("source", [FORK_BOMB, THREAD_BOMB], ids=["fork", "thread"])
def test_bombs_are_small_and_leave_nothing(attack: Attack, sandbox: Sandbox, source: str) -> None:
    # Without namespaces the kernel counts all of the user's processes: see SPARE_THREADS.
    assert 1 <= int(attack(source, processes=8).stdout) <= (12 + 64 if sandbox.name == "landlock" else 12)


@pytest.mark.slow
def test_memory_of_one_process(attack: Attack) -> None:
    assert int(attack(MEMORY, memory_bytes=256 * MIB).stdout) <= 256


@pytest.mark.slow
def test_memory_of_all_processes_together(attack: Attack) -> None:
    result = attack(SHARED_MEMORY_GREED, memory_bytes=512 * MIB)
    assert result.reason == "memory"
    assert result.wall_seconds < 5


def test_memory_outside_the_address_space(attack: Attack) -> None:
    assert attack(MEMORY_WITHOUT_ADDRESS_SPACE).stdout == b"0"


@pytest.mark.parametrize("source", [ENDLESS_LOOP, ENDLESS_SLEEP], ids=["loop", "sleep"])
def test_endless_program_ends_at_the_wall_limit(attack: Attack, source: str) -> None:
    begin = time.monotonic()
    result = attack(source, wall_seconds=0.5)
    assert result.reason == "timeout"
    assert time.monotonic() - begin < 2.5


@pytest.mark.slow
def test_processor_time_is_limited(attack: Attack) -> None:
    result = attack(ENDLESS_LOOP, cpu_seconds=1, wall_seconds=30)
    assert result.reason == "timeout"
    assert result.cpu_seconds < 4
    assert result.wall_seconds < 25


def test_endless_output_is_cut(attack: Attack) -> None:
    result = attack(ENDLESS_OUTPUT, output_bytes=10_000)
    assert result.reason == "output limit"
    assert len(result.stdout) == 10_000
    assert result.wall_seconds < 5


def test_secrets_stay_secret(
    attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_file: Path
) -> None:
    monkeypatch.setenv("CPPLM_TEST_SECRET", "1")
    me, parent = f"/proc/{os.getpid()}", f"/proc/{os.getppid()}"
    targets = [public_file, public_file.parent, __file__, "../" * 12 + "etc/passwd"]
    targets += ["/etc/passwd", "/etc/shadow", "/etc/hostname", "/root", "/home", "/tmp", "/var/log", "/boot"]
    targets += ["/proc/1/environ", "/proc/self/root/etc/passwd", f"{me}/environ", f"{me}/cmdline"]
    targets += [
        f"{me}/root/etc/passwd",
        f"{parent}/cwd",
        "/sys",
        "/dev/kmsg",
        "/dev/mem",
        "/dev/sda",
        "/dev/tty",
    ]
    assert attack(READ_SECRETS, *targets).stdout == b"end"


def test_nothing_is_written_outside(attack: Attack, public_file: Path) -> None:
    victim = public_file.parent / "victim"
    victim.write_text("precious")
    victim.chmod(0o666)
    if os.geteuid() == 0:
        os.chown(victim, NOBODY, NOBODY)
    before = victim.stat()
    folders = [
        victim.parent,
        "/tmp",
        "/var/tmp",
        "/usr",
        "/usr/lib",
        "/dev",
        "/dev/shm",
        "/etc",
        "/",
        "/proc/self",
    ]
    assert attack(WRITE_OUTSIDE, *folders).stdout == b"end"
    assert victim.read_text() == "precious"
    assert (victim.stat().st_mode, victim.stat().st_mtime) == (before.st_mode, before.st_mtime)
    assert sorted(path.name for path in victim.parent.iterdir()) == ["public", "victim"]
    assert not Path("/tmp/planted").exists()


def test_working_folder_of_a_test_run_is_read_only(attack: Attack) -> None:
    assert attack(WRITE_OUTSIDE, ".", scratch_bytes=0).stdout == b"end"


def test_no_network(attack: Attack) -> None:
    name = f"cpplm-test-{os.getpid()}"
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        port = listener.getsockname()[1]
        datagrams.bind(("127.0.0.1", port))
        abstract.bind("\0" + name)
        abstract.listen()
        for server in (listener, datagrams, abstract):
            server.setblocking(False)
        assert attack(NETWORK, port, name).stdout == b"end"
        with pytest.raises(BlockingIOError):
            listener.accept()
        with pytest.raises(BlockingIOError):
            datagrams.recv(1)
        with pytest.raises(BlockingIOError):
            abstract.accept()


def test_other_processes_are_out_of_reach(attack: Attack) -> None:
    as_program = {"user": NOBODY} if os.geteuid() == 0 else {}
    with subprocess.Popen(["/bin/sleep", "60"], start_new_session=True, **as_program) as victim:  # type: ignore[call-overload]
        result = attack(KILLER, victim.pid, os.getpid())
        assert victim.poll() is None
        victim.kill()
    assert b"limited" not in result.stdout


def test_daemons_die_with_their_program(attack: Attack) -> None:
    assert attack(DAEMON).stdout == b"left"


@pytest.mark.slow
def test_disk_is_not_filled(attack: Attack, sandbox: Sandbox) -> None:
    result = attack(FILL_DISK, scratch_bytes=8 * MIB, wall_seconds=20)
    written = int(result.stdout.split()[-2 if result.stdout.endswith(b"end") else -1])
    # On the host's disk the size is checked 40 times a second: some more gets through, not much.
    assert written <= (9 if sandbox.name == "namespaces" else 160) * MIB
    assert sandbox.name == "namespaces" or result.reason == "disk"
    assert not list(Path("/tmp").glob("cpplm-sandbox-*/large*"))


def test_dangerous_system_calls_are_refused(attack: Attack) -> None:
    assert attack(SYSTEM_CALLS).stdout == b"end"


def test_no_inherited_descriptors_and_few_of_its_own(attack: Attack, public_file: Path) -> None:
    with public_file.open() as secret:
        os.set_inheritable(secret.fileno(), True)
        assert attack(DESCRIPTORS, open_files=32).stdout == b"last 31, stdin -1"


def test_only_plain_files_are_fetched(attack: Attack, public_file: Path) -> None:
    names = ("symbolic", "hard", "pipe", "folder", "huge", "absent")
    result = attack(FALSE_OUTPUT, public_file, scratch_bytes=4 * MIB, fetch=dict.fromkeys(names, 1000))
    assert result.files == {}


def test_crash_leaves_no_core(attack: Attack) -> None:
    result = attack(CRASH, scratch_bytes=MIB, fetch={"core": MIB})
    assert result.reason == "signal"
    assert result.signal == 6
    assert result.files == {}


@pytest.mark.slow
def test_deep_and_closed_folders_are_removed(attack: Attack) -> None:
    before = set(Path("/tmp").glob("cpplm-sandbox-*"))
    attack(DEEP_FOLDERS, scratch_bytes=64 * MIB)
    assert set(Path("/tmp").glob("cpplm-sandbox-*")) <= before


@pytest.mark.parametrize(
    ("source", "harm"),
    [
        pytest.param(READ_SECRETS, b"read", id="secrets"),
        pytest.param(NETWORK, b"connected", id="network"),
        pytest.param(SYSTEM_CALLS, b"unshare", id="system_calls"),
        pytest.param(MEMORY_WITHOUT_ADDRESS_SPACE, b"3", id="memory"),
    ],
)
def test_the_attacks_are_real(
    compile_cpp: Callable[[str], bytes], public_file: Path, source: str, harm: bytes
) -> None:
    """Without walls the harmless ones among the attacks succeed, so the tests above can fail."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        arguments = [str(listener.getsockname()[1]), "none"] if source == NETWORK else [str(public_file)]
        result = Sandbox(UNSAFE).run({"attack": compile_cpp(source)}, ["./attack", *arguments], Limits())
    assert result.stdout.startswith(harm)
