//! The default profile (`RuntimeDefault`): what containerd, CRI-O and Docker allow a container, and nothing else.
//!
//! Calls are allowed by name; some only with a capability, some only with certain arguments. `clone3` answers ENOSYS, because its
//! flags are behind a pointer that a filter cannot follow, and C libraries then fall back to `clone`, whose flags
//! it can. Calls that are newer than our table answer ENOSYS too, so that programs fall back.

use super::calls;
use super::program::{Action, Condition, Operator, Profile, Rule};
use crate::caps::Capabilities;

/// Allowed to every container.
const COMMON: &str = "
accept accept4 access alarm arch_prctl bind brk cachestat capget capset chdir chmod chown clock_getres
clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3 epoll_create
epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2 execve
execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fanotify_mark fchdir fchmod fchmodat fchmodat2
fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync
ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_robust_list get_thread_area getcpu
getcwd getdents getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid
getpriority getrandom getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday
getuid getxattr getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy
io_getevents io_pgetevents io_setup io_submit ioctl ioprio_get ioprio_set kill landlock_add_rule
landlock_create_ruleset landlock_restrict_self lchown lgetxattr link linkat listen listmount listxattr
listxattrat llistxattr lremovexattr lseek lsetxattr lstat madvise map_shadow_stack membarrier memfd_create
memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap modify_ldt mprotect mq_getsetattr
mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv msgsnd msync munlock
munlockall munmap name_to_handle_at nanosleep newfstatat open openat openat2 pause pidfd_open pidfd_send_signal
pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64 process_mrelease
process_vm_readv process_vm_writev pselect6 ptrace pwrite64 pwritev pwritev2 read readahead readlink readlinkat
readv recvfrom recvmmsg recvmsg remap_file_pages removexattr removexattrat rename renameat renameat2
restart_syscall rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr
sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam
sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto
set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer setpgid setpriority
setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr setxattrat shmat shmctl shmdt
shmget shutdown sigaltstack signalfd signalfd4 socketpair splice stat statfs statmount statx symlink symlinkat
sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime
timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat
uretprobe utime utimensat utimes vfork vmsplice wait4 waitid write writev
";

const CAP_DAC_READ_SEARCH: usize = 2;
const CAP_SYS_MODULE: usize = 16;
const CAP_SYS_RAWIO: usize = 17;
const CAP_SYS_CHROOT: usize = 18;
const CAP_SYS_PTRACE: usize = 19;
const CAP_SYS_PACCT: usize = 20;
const CAP_SYS_ADMIN: usize = 21;
const CAP_SYS_BOOT: usize = 22;
const CAP_SYS_NICE: usize = 23;
const CAP_SYS_TIME: usize = 25;
const CAP_SYS_TTY_CONFIG: usize = 26;
const CAP_SYSLOG: usize = 34;
const CAP_PERFMON: usize = 38;
const CAP_BPF: usize = 39;

/// Allowed with a capability.
const GUARDED: &[(usize, &str)] = &[
    (CAP_DAC_READ_SEARCH, "open_by_handle_at"),
    (CAP_SYS_MODULE, "delete_module finit_module init_module query_module"),
    (CAP_SYS_RAWIO, "ioperm iopl"),
    (CAP_SYS_CHROOT, "chroot"),
    (CAP_SYS_PTRACE, "kcmp pidfd_getfd process_madvise"),
    (CAP_SYS_PACCT, "acct"),
    (
        CAP_SYS_ADMIN,
        "bpf clone clone3 fanotify_init fsconfig fsmount fsopen fspick lookup_dcookie mount mount_setattr move_mount \
         open_tree open_tree_attr perf_event_open quotactl quotactl_fd setdomainname sethostname setns syslog umount2 \
         unshare",
    ),
    (CAP_SYS_BOOT, "reboot"),
    (CAP_SYS_NICE, "get_mempolicy mbind set_mempolicy set_mempolicy_home_node"),
    (CAP_SYS_TIME, "adjtimex clock_adjtime clock_settime settimeofday"),
    (CAP_SYS_TTY_CONFIG, "vhangup"),
    (CAP_SYSLOG, "syslog"),
    (CAP_PERFMON, "perf_event_open"),
    (CAP_BPF, "bpf"),
];

/// Execution domains that programs ask for: Linux, 32-bit addresses, short inode numbers, both, and "which is it?".
const PERSONALITIES: [u64; 5] = [0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Sockets between a virtual machine and its host know nothing of network namespaces.
const AF_VSOCK: u64 = 40;

/// Namespaces that `clone` may make only with CAP_SYS_ADMIN.
const NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP) as u64;

/// The profile for a container with these capabilities.
pub fn profile(capabilities: Capabilities) -> Profile {
    let mut rules: Vec<Rule> = Vec::new();
    let mut allow = |names: &str, conditions: &[Condition]| {
        for number in names.split_whitespace().filter_map(calls::number) {
            rules.push(Rule { number, conditions: conditions.to_vec(), action: Action::Allow });
        }
    };
    allow(COMMON, &[]);
    for (capability, names) in GUARDED {
        if capabilities.has(*capability) {
            allow(names, &[]);
        }
    }
    let first = |operator, value, second| Condition { argument: 0, operator, value, second };
    for personality in PERSONALITIES {
        allow("personality", &[first(Operator::Equal, personality, 0)]);
    }
    allow("socket", &[first(Operator::NotEqual, AF_VSOCK, 0)]);
    if !capabilities.has(CAP_SYS_ADMIN) {
        allow("clone", &[first(Operator::MaskedEqual, NAMESPACES, 0)]);
        let absent = Action::Errno(libc::ENOSYS as u16);
        rules.extend(calls::number("clone3").map(|number| Rule {
            number,
            conditions: Vec::new(),
            action: absent,
        }));
    }
    Profile { default: Action::Errno(libc::EPERM as u16), rules, flags: 0 }
}

#[cfg(test)]
mod tests {
    use super::super::program::tests::{ALLOW, ERRNO, run};
    use super::*;

    #[test]
    fn every_name_is_a_call() {
        // Those of another architecture are left out, but no name is mistyped on all of them.
        let elsewhere = ["query_module"];
        let unknown: Vec<&str> = COMMON
            .split_whitespace()
            .chain(GUARDED.iter().flat_map(|(_, names)| names.split_whitespace()))
            .filter(|name| calls::number(name).is_none() && !elsewhere.contains(name))
            .collect();
        assert!(cfg!(not(target_arch = "x86_64")) || unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn what_is_not_allowed_is_refused() {
        let program = profile(Capabilities::default()).assemble().unwrap();
        let answer = |name: &str, arguments: &[u64]| run(&program, calls::number(name).unwrap(), arguments);
        for call in ["read", "execve", "setresuid", "close_range", "futex_waitv", "ptrace", "writev"] {
            assert_eq!(answer(call, &[]), ALLOW, "{call}");
        }
        let refused = ERRNO | libc::EPERM as u32;
        for call in [
            "mount",
            "keyctl",
            "add_key",
            "bpf",
            "unshare",
            "setns",
            "io_uring_setup",
            "userfaultfd",
            "reboot",
            "swapon",
            "kexec_load",
            "init_module",
            "open_by_handle_at",
            "perf_event_open",
            "settimeofday",
            "chroot",
            "syslog",
        ] {
            assert_eq!(answer(call, &[]), refused, "{call}");
        }
        assert_eq!(run(&program, 0x4000_0001, &[]), refused, "x32");
        assert_eq!(answer("clone3", &[]), ERRNO | libc::ENOSYS as u32);
        assert_eq!(run(&program, 9999, &[]), ERRNO | libc::ENOSYS as u32, "newer than we are");
        assert_eq!(answer("clone", &[libc::SIGCHLD as u64]), ALLOW);
        assert_eq!(answer("clone", &[libc::CLONE_NEWUSER as u64]), refused);
        assert_eq!(answer("socket", &[libc::AF_INET as u64]), ALLOW);
        assert_eq!(answer("socket", &[AF_VSOCK]), refused);
        assert_eq!(answer("personality", &[0]), ALLOW);
        assert_eq!(answer("personality", &[0x40000]), refused, "no address randomization");
    }

    #[test]
    fn a_capability_opens_its_calls() {
        let program = profile(Capabilities(1 << CAP_SYS_ADMIN)).assemble().unwrap();
        let answer = |name: &str, arguments: &[u64]| run(&program, calls::number(name).unwrap(), arguments);
        for call in ["mount", "clone3", "unshare"] {
            assert_eq!(answer(call, &[]), ALLOW, "{call}");
        }
        assert_eq!(answer("clone", &[libc::CLONE_NEWUSER as u64]), ALLOW);
        assert_eq!(answer("reboot", &[]), ERRNO | libc::EPERM as u32);
    }
}
