//! The default seccomp profile (`RuntimeDefault`), as a BPF program.
//!
//! A list of what is refused rather than of what is allowed: the calls that Docker's and containerd's default
//! profiles keep from a container without the matching capability. New harmless calls of new kernels then work
//! at once. `clone3` answers ENOSYS, because its flags are behind a pointer that a filter can not follow, and C
//! libraries then fall back to `clone`, whose flags it can.

use libc::sock_filter;

use crate::caps::Capabilities;

const CAP_SYS_ADMIN: usize = 21;
const CAP_SYS_MODULE: usize = 16;
const CAP_SYS_BOOT: usize = 22;
const CAP_SYS_TIME: usize = 25;
const CAP_SYS_PACCT: usize = 20;
const CAP_SYS_RAWIO: usize = 17;
const CAP_SYSLOG: usize = 34;
const CAP_BPF: usize = 39;
const CAP_PERFMON: usize = 38;
const CAP_SYS_NICE: usize = 23;
const CAP_DAC_READ_SEARCH: usize = 2;

/// Refused unless the container has the capability.
const GUARDED: &[(usize, &[libc::c_long])] = &[
    (
        CAP_SYS_ADMIN,
        &[
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_setns,
            libc::SYS_unshare,
            libc::SYS_open_tree,
            libc::SYS_move_mount,
            libc::SYS_fsopen,
            libc::SYS_fsconfig,
            libc::SYS_fsmount,
            libc::SYS_fspick,
            libc::SYS_mount_setattr,
            libc::SYS_quotactl,
            libc::SYS_swapon,
            libc::SYS_swapoff,
            libc::SYS_fanotify_init,
            libc::SYS_lookup_dcookie,
        ],
    ),
    (CAP_SYS_MODULE, &[libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module]),
    (CAP_SYS_BOOT, &[libc::SYS_reboot, libc::SYS_kexec_load, libc::SYS_kexec_file_load]),
    (CAP_SYS_TIME, &[libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_clock_adjtime]),
    (CAP_SYS_PACCT, &[libc::SYS_acct]),
    (CAP_SYSLOG, &[libc::SYS_syslog]),
    (CAP_BPF, &[libc::SYS_bpf]),
    (CAP_PERFMON, &[libc::SYS_perf_event_open]),
    (
        CAP_SYS_NICE,
        &[libc::SYS_mbind, libc::SYS_set_mempolicy, libc::SYS_move_pages, libc::SYS_migrate_pages],
    ),
    (CAP_DAC_READ_SEARCH, &[libc::SYS_open_by_handle_at]),
];

/// Refused always.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_nfsservctl,
    libc::SYS_vhangup,
];

#[cfg(target_arch = "x86_64")]
const PORTS: &[libc::c_long] = &[libc::SYS_ioperm, libc::SYS_iopl];
#[cfg(not(target_arch = "x86_64"))]
const PORTS: &[libc::c_long] = &[];

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Namespaces that `clone` may make only with CAP_SYS_ADMIN.
const NAMESPACE_FLAGS: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP) as u32;

// Offsets in struct seccomp_data.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

fn load(offset: u32) -> sock_filter {
    sock_filter { code: 0x20, jt: 0, jf: 0, k: offset } // A = data[offset]
}

fn answer(action: u32) -> sock_filter {
    sock_filter { code: 0x06, jt: 0, jf: 0, k: action } // return
}

fn if_equal(value: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: 0x15, jt: yes, jf: no, k: value }
}

fn if_any_bit(bits: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: 0x45, jt: yes, jf: no, k: bits }
}

fn if_at_least(value: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: 0x35, jt: yes, jf: no, k: value }
}

/// The profile for a container with these capabilities.
pub fn default_profile(capabilities: Capabilities) -> Vec<sock_filter> {
    const EPERM: u32 = ERRNO | libc::EPERM as u32;
    const ENOSYS: u32 = ERRNO | libc::ENOSYS as u32;
    let mut refused: Vec<libc::c_long> = REFUSED.to_vec();
    for (capability, calls) in GUARDED {
        if !capabilities.has(*capability) {
            refused.extend_from_slice(calls);
        }
    }
    if !capabilities.has(CAP_SYS_RAWIO) {
        refused.extend_from_slice(PORTS);
    }
    let mut program = vec![
        load(ARCH),
        if_equal(ARCHITECTURE, 1, 0),
        answer(EPERM), // calls of another architecture have other numbers
        load(NUMBER),
        if_at_least(0x4000_0000, 0, 1),
        answer(EPERM), // so have those of x32
    ];
    for call in refused {
        program.extend([if_equal(call as u32, 0, 1), answer(EPERM)]);
    }
    if !capabilities.has(CAP_SYS_ADMIN) {
        program.extend([if_equal(libc::SYS_clone3 as u32, 0, 1), answer(ENOSYS)]);
        program.extend([
            if_equal(libc::SYS_clone as u32, 0, 3),
            load(FIRST_ARGUMENT),
            if_any_bit(NAMESPACE_FLAGS, 0, 1),
            answer(EPERM),
        ]);
    }
    program.push(answer(ALLOW));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
    fn run(program: &[sock_filter], number: libc::c_long, argument: u32) -> u32 {
        let (mut accumulator, mut next) = (0_u32, 0_usize);
        loop {
            let step = program[next];
            next += 1;
            let jump = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
            match step.code {
                0x20 => {
                    accumulator = match step.k {
                        NUMBER => number as u32,
                        ARCH => ARCHITECTURE,
                        _ => argument,
                    }
                }
                0x06 => return step.k,
                0x15 => next += jump(accumulator == step.k),
                0x35 => next += jump(accumulator >= step.k),
                0x45 => next += jump(accumulator & step.k != 0),
                code => panic!("unknown instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn dangerous_calls_are_refused_and_ordinary_ones_are_not() {
        let program = default_profile(Capabilities::default());
        for call in [libc::SYS_read, libc::SYS_execve, libc::SYS_setresuid, libc::SYS_close_range] {
            assert_eq!(run(&program, call, 0), ALLOW);
        }
        for call in [libc::SYS_mount, libc::SYS_keyctl, libc::SYS_bpf, 0x4000_0001] {
            assert_eq!(run(&program, call, 0), ERRNO | libc::EPERM as u32);
        }
        assert_eq!(run(&program, libc::SYS_clone3, 0), ERRNO | libc::ENOSYS as u32);
        assert_eq!(run(&program, libc::SYS_clone, libc::SIGCHLD as u32), ALLOW);
        assert_eq!(run(&program, libc::SYS_clone, libc::CLONE_NEWUSER as u32), ERRNO | libc::EPERM as u32);
    }

    #[test]
    fn a_capability_opens_its_calls() {
        let program = default_profile(Capabilities(1 << CAP_SYS_ADMIN));
        assert_eq!(run(&program, libc::SYS_mount, 0), ALLOW);
        assert_eq!(run(&program, libc::SYS_clone3, 0), ALLOW);
        assert_eq!(run(&program, libc::SYS_reboot, 0), ERRNO | libc::EPERM as u32);
    }
}
