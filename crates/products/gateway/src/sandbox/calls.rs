//! The filter of system calls: those of a table are allowed, all others fail with `EPERM`. They fail and do not
//! kill, so that a C library that tries a newer call first still works, and a surprise is an error
//! with a name.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use libc::{
    AF_INET, AF_INET6, AF_UNIX, ENOSYS, EPERM, F_ADD_SEALS, F_DUPFD_CLOEXEC, F_GET_SEALS, F_GETFD,
    F_GETFL, F_SETFD, F_SETFL, F_SETPIPE_SZ, O_CREAT, O_RDWR, O_TRUNC, O_WRONLY, PROT_EXEC,
    SOCK_DGRAM, SOCK_STREAM,
};
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};

use super::SandboxPlan;

/// Requests for non-blocking mode and for the number of readable bytes (`asm-generic/ioctls.h`).
const FIONBIO: u64 = 0x5421;
const FIONREAD: u64 = 0x541b;
/// Attaching a queue of a tap (`linux/if_tun.h`).
const TUNSETQUEUE: u64 = 0x4004_54d9;
/// Whether the next byte is urgent (`asm-generic/sockios.h`).
const SIOCATMARK: u64 = 0x8905;
/// The number of an interface by its name, for resolvers of one link (`linux/sockios.h`).
const SIOCGIFINDEX: u64 = 0x8933;
/// The type of a socket without its flags (`linux/net.h`).
const SOCK_TYPE_MASK: u64 = 0xf;
/// The bits of `open` with which a file is written, made or cut.
const WRITES: u64 = (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) as u64;
/// The allowed operations of `fcntl`: neither the receiver of signals (`F_SETOWN`) nor locks.
const OF_DESCRIPTORS: [i32; 8] =
    [F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_ADD_SEALS, F_GET_SEALS, F_SETPIPE_SZ];
/// The flags of `clone` for new namespaces (`linux/sched.h`): cgroup, uts, ipc, user, pid, net, mount, time.
const CLONE_NEW: u64 = 0x0200_0000
    | 0x0400_0000
    | 0x0800_0000
    | 0x1000_0000
    | 0x2000_0000
    | 0x4000_0000
    | 0x0002_0000
    | 0x0000_0080;

/// Calls that are allowed whatever their arguments, by what they are for.
const ALWAYS: &[(&str, &[i64])] = &[
    (
        "moving bytes",
        &[
            libc::SYS_read,
            libc::SYS_write,
            libc::SYS_readv,
            libc::SYS_writev,
            libc::SYS_pread64,
            libc::SYS_pwrite64,
            libc::SYS_preadv,
            libc::SYS_pwritev,
            libc::SYS_recvfrom,
            libc::SYS_recvmsg,
            libc::SYS_recvmmsg,
            libc::SYS_sendto,
            libc::SYS_sendmsg,
            libc::SYS_sendmmsg,
            libc::SYS_lseek,
            libc::SYS_fsync,
            libc::SYS_fdatasync,
        ],
    ),
    (
        "sockets, whose making is restricted below",
        &[
            libc::SYS_connect,
            libc::SYS_bind,
            libc::SYS_listen,
            libc::SYS_accept4,
            libc::SYS_getsockname,
            libc::SYS_getpeername,
            libc::SYS_setsockopt,
            libc::SYS_getsockopt,
            libc::SYS_shutdown,
        ],
    ),
    (
        "descriptors",
        &[
            libc::SYS_close,
            libc::SYS_close_range,
            libc::SYS_dup,
            libc::SYS_dup3,
            libc::SYS_pipe2,
            libc::SYS_eventfd2,
        ],
    ),
    (
        "waiting",
        &[
            libc::SYS_epoll_create1,
            libc::SYS_epoll_ctl,
            libc::SYS_epoll_pwait,
            libc::SYS_epoll_pwait2,
            libc::SYS_ppoll,
            libc::SYS_pselect6,
            libc::SYS_futex,
            libc::SYS_nanosleep,
            libc::SYS_clock_nanosleep,
            libc::SYS_restart_syscall,
            libc::SYS_sched_yield,
        ],
    ),
    (
        "memory, but none that is executed",
        &[
            libc::SYS_munmap,
            libc::SYS_mremap,
            libc::SYS_madvise,
            libc::SYS_brk,
            libc::SYS_memfd_create,
            libc::SYS_ftruncate,
            libc::SYS_fallocate,
            libc::SYS_msync,
            libc::SYS_mincore,
            libc::SYS_fstatfs,
        ],
    ),
    (
        "threads of this process",
        &[
            libc::SYS_set_robust_list,
            libc::SYS_rseq,
            libc::SYS_membarrier,
            libc::SYS_sched_getaffinity,
            libc::SYS_gettid,
            libc::SYS_getpid,
            libc::SYS_set_tid_address,
            libc::SYS_exit,
            libc::SYS_exit_group,
        ],
    ),
    (
        "handlers of signals",
        &[
            libc::SYS_rt_sigaction,
            libc::SYS_rt_sigprocmask,
            libc::SYS_rt_sigreturn,
            libc::SYS_rt_sigtimedwait,
            libc::SYS_sigaltstack,
        ],
    ),
    (
        "time, luck, and what this process is",
        &[
            libc::SYS_clock_gettime,
            libc::SYS_clock_getres,
            libc::SYS_gettimeofday,
            libc::SYS_getrandom,
            libc::SYS_getrusage,
            libc::SYS_getuid,
            libc::SYS_geteuid,
            libc::SYS_getgid,
            libc::SYS_getegid,
            libc::SYS_getppid,
            libc::SYS_uname,
            libc::SYS_sysinfo,
        ],
    ),
    (
        "files: which, is up to the root directory and Landlock; they are opened for reading only",
        &[
            libc::SYS_newfstatat,
            libc::SYS_fstat,
            libc::SYS_statx,
            libc::SYS_readlinkat,
            libc::SYS_getdents64,
            libc::SYS_getcwd,
            libc::SYS_faccessat,
            libc::SYS_faccessat2,
        ],
    ),
    (
        "interrupts of a guest of vhost-user, which are sent without waiting",
        &[libc::SYS_io_setup, libc::SYS_io_submit, libc::SYS_io_getevents, libc::SYS_io_destroy],
    ),
];

/// Older names that this architecture's C library may still use.
#[cfg(target_arch = "x86_64")]
const OLDER: &[i64] = &[
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_dup2,
    libc::SYS_readlink,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[i64] = &[];

/// Opening a file, and which argument has the flags.
const OPENS: &[(i64, u8)] = &[
    (libc::SYS_openat, 2),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_open, 1),
];

/// Removing files, where the plan has sockets.
const REMOVES: &[i64] = &[
    libc::SYS_unlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// Moving bytes between sockets by pipes, where connections are joined so.
const SPLICES: &[i64] = &[libc::SYS_splice];

/// Calls for a program that was started: to wait for it, and to signal it by the descriptor that is
/// there; others cannot be made.
const FOR_A_CHILD: &[i64] = &[libc::SYS_wait4, libc::SYS_waitid, libc::SYS_pidfd_send_signal];

/// Signals to this process: they end it, stop it with its child, or are for its threads. musl's `raise` is
/// `tkill`, whose number is a thread's: that of the first thread is the process's.
const TO_ITSELF: [i64; 3] = [libc::SYS_kill, libc::SYS_tgkill, libc::SYS_tkill];

/// Applies the filters to this thread and those that it starts.
pub(super) fn restrict(plan: &SandboxPlan) -> Option<String> {
    let apply = |filter: Result<BpfProgram, Error>| -> Result<(), String> {
        let filter = filter.map_err(|e| e.to_string())?;
        apply_filter(&filter).map_err(|e| e.to_string())
    };
    let done = apply(newer_clone()).and_then(|()| apply(allowed(plan)));
    done.err().map(|e| format!("system calls: {e}"))
}

/// Calls of a helper that makes sockets, by what they are for. Its sockets are restricted as a gateway's.
const OF_A_HELPER: &[(&str, &[i64])] = &[
    ("its wire", &[libc::SYS_recvmsg, libc::SYS_sendmsg]),
    ("sockets", &[libc::SYS_setsockopt, libc::SYS_bind, libc::SYS_listen]),
    ("descriptors", &[libc::SYS_close]),
    (
        "memory, but none that is executed",
        &[libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk],
    ),
    ("its end", &[libc::SYS_sigaltstack, libc::SYS_exit, libc::SYS_exit_group]),
    ("signals that stop and continue it", &[libc::SYS_rt_sigreturn, libc::SYS_restart_syscall]),
];

/// Applies the filter of a helper that makes sockets.
pub(super) fn restrict_helper() -> Result<(), String> {
    let filter = || -> Result<BpfProgram, Error> {
        let calls = OF_A_HELPER.iter().flat_map(|(_, calls)| *calls);
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
            calls.map(|&call| (call, Vec::new())).collect();
        rules.insert(libc::SYS_socket, sockets(&SandboxPlan::default())?);
        let none = |bits: i32| one(2, SeccompCmpOp::MaskedEq(bits as u64), 0);
        rules.insert(libc::SYS_mmap, vec![none(PROT_EXEC)?]);
        program(rules, SeccompAction::Errno(EPERM as u32), SeccompAction::Allow)
    };
    let filter = filter().map_err(|e| format!("system calls: {e}"))?;
    apply_filter(&filter).map_err(|e| format!("system calls: {e}"))
}

/// A filter cannot read the arguments of `clone3`, so it does not exist: the C library then uses
/// `clone`.
fn newer_clone() -> Result<BpfProgram, Error> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    program(rules, SeccompAction::Allow, SeccompAction::Errno(ENOSYS as u32))
}

fn allowed(plan: &SandboxPlan) -> Result<BpfProgram, Error> {
    let always = ALWAYS.iter().flat_map(|(_, calls)| *calls).chain(OLDER);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        always.map(|&call| (call, Vec::new())).collect();
    // The other filter answers it.
    rules.insert(libc::SYS_clone3, Vec::new());
    if plan.splices {
        rules.extend(SPLICES.iter().map(|&call| (call, Vec::new())));
    }
    if plan.child {
        rules.extend(FOR_A_CHILD.iter().map(|&call| (call, Vec::new())));
    }
    if !plan.sockets.is_empty() {
        rules.extend(REMOVES.iter().map(|&call| (call, Vec::new())));
    }
    rules.insert(libc::SYS_socket, sockets(plan)?);
    // Ends of datagrams could be connected to any path.
    rules.insert(libc::SYS_socketpair, vec![socket(AF_UNIX, SOCK_STREAM)?]);
    rules.extend(with_plain_arguments()?);
    program(rules, SeccompAction::Errno(EPERM as u32), SeccompAction::Allow)
}

/// Calls that are judged by a number among their arguments.
fn with_plain_arguments() -> Result<BTreeMap<i64, Vec<SeccompRule>>, Error> {
    let mut rules = BTreeMap::new();
    let own = u64::from(std::process::id());
    for call in TO_ITSELF {
        rules.insert(call, vec![one(0, SeccompCmpOp::Eq, own)?]);
    }
    let none = |argument, bits| one(argument, SeccompCmpOp::MaskedEq(bits), 0);
    rules.insert(libc::SYS_clone, vec![none(0, CLONE_NEW)?]);
    rules.insert(libc::SYS_mmap, vec![none(2, PROT_EXEC as u64)?]);
    rules.insert(libc::SYS_mprotect, vec![none(2, PROT_EXEC as u64)?]);
    let requests = [FIONBIO, FIONREAD, TUNSETQUEUE, SIOCATMARK, SIOCGIFINDEX];
    let second = |value: u64| one(1, SeccompCmpOp::Eq, value);
    rules.insert(libc::SYS_ioctl, requests.into_iter().map(second).collect::<Result<_, _>>()?);
    let commands = OF_DESCRIPTORS.into_iter().map(|command| second(command as u64));
    rules.insert(libc::SYS_fcntl, commands.collect::<Result<_, _>>()?);
    for &(call, flags) in OPENS {
        rules.insert(call, vec![none(flags, WRITES)?]);
    }
    // Names of threads, and of memory.
    let purposes = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA];
    let purpose = |value: i32| one(0, SeccompCmpOp::Eq, value as u64);
    let mut prctl = purposes.into_iter().map(purpose).collect::<Result<Vec<_>, _>>()?;
    // A process in the background outlives the one that started it, once guests are served.
    let asked = |arg, value: i32| {
        SeccompCondition::new(arg, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, value as u64)
    };
    prctl.push(SeccompRule::new(vec![asked(0, libc::PR_SET_PDEATHSIG)?, asked(1, 0)?])?);
    rules.insert(libc::SYS_prctl, prctl);
    // Limits of this process may be read, and not set: the new one is a null pointer.
    let is_null = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![is_null])?]);
    Ok(rules)
}

/// Internet sockets for connections and datagrams (pings among them), and Unix sockets if wanted.
fn sockets(plan: &SandboxPlan) -> Result<Vec<SeccompRule>, Error> {
    let unix = (!plan.sockets.is_empty()).then_some(AF_UNIX);
    let mut rules = Vec::new();
    for family in [AF_INET, AF_INET6].into_iter().chain(unix) {
        for kind in [SOCK_STREAM, SOCK_DGRAM] {
            rules.push(socket(family, kind)?);
        }
    }
    Ok(rules)
}

/// A socket of this family and type, whatever its flags.
fn socket(family: i32, kind: i32) -> Result<SeccompRule, Error> {
    Ok(SeccompRule::new(vec![
        dword(0, SeccompCmpOp::Eq, family as u64)?,
        dword(1, SeccompCmpOp::MaskedEq(SOCK_TYPE_MASK), kind as u64)?,
    ])?)
}

fn one(argument: u8, how: SeccompCmpOp, value: u64) -> Result<SeccompRule, Error> {
    SeccompRule::new(vec![dword(argument, how, value)?]).map_err(Error::from)
}

fn dword(argument: u8, how: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Error> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, how, value).map_err(Error::from)
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    then: SeccompAction,
) -> Result<BpfProgram, Error> {
    let target = TargetArch::try_from(ARCH)?;
    Ok(SeccompFilter::new(rules, otherwise, then, target)?.try_into()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_can_be_made_for_every_plan() {
        for bits in 0..8_u8 {
            let plan = SandboxPlan {
                listens: bits & 1 != 0,
                sockets: (0..(bits >> 1) & 1).map(|_| "/tmp".into()).collect(),
                child: bits & 4 != 0,
                ..SandboxPlan::default()
            };
            assert!(!allowed(&plan).expect("a filter").is_empty());
        }
        assert!(!newer_clone().expect("a filter").is_empty());
    }

    #[test]
    fn no_call_is_named_twice() {
        let mut all: Vec<i64> = ALWAYS.iter().flat_map(|(_, calls)| *calls).copied().collect();
        all.extend(OLDER.iter().chain(FOR_A_CHILD).chain(REMOVES));
        all.extend(OPENS.iter().map(|(call, _)| call));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
