//! Setting a ring up: what is asked of the kernel, what it grants, and why it refuses.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use io_uring::{IoUring, Probe, opcode};

use crate::config::{COMPLETION_ENTRIES_MAX, Config, Refused};
use crate::process;
use crate::sys;
use crate::workers::THREADS_MAX;

/// The smallest submission queue that is tried when memory is short.
const ENTRIES_MIN: u32 = 8;

/// One way to set a ring up.
pub(super) struct Setup {
    flags: &'static [&'static str],
    apply: fn(&mut io_uring::Builder),
}

/// The ways, from the best to the least that will do.
///
/// `DEFER_TASKRUN` needs Linux 6.1, `NO_SQARRAY` 6.6, `SINGLE_ISSUER` 6.0, `COOP_TASKRUN` and `TASKRUN_FLAG` 5.19.
/// Without the last one nobody could see without a system call whether there is work, so that is where we stop.
pub(super) const SETUPS: &[Setup] = &[
    Setup {
        flags: &[
            "SINGLE_ISSUER",
            "DEFER_TASKRUN",
            "TASKRUN_FLAG",
            "NO_SQARRAY",
        ],
        apply: |builder| {
            builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag()
                .setup_no_sqarray();
        },
    },
    Setup {
        flags: &["SINGLE_ISSUER", "DEFER_TASKRUN", "TASKRUN_FLAG"],
        apply: |builder| {
            builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_taskrun_flag();
        },
    },
    Setup {
        flags: &["SINGLE_ISSUER", "COOP_TASKRUN", "TASKRUN_FLAG"],
        apply: |builder| {
            builder
                .setup_single_issuer()
                .setup_coop_taskrun()
                .setup_taskrun_flag();
        },
    },
    Setup {
        flags: &["COOP_TASKRUN", "TASKRUN_FLAG"],
        apply: |builder| {
            builder.setup_coop_taskrun().setup_taskrun_flag();
        },
    },
];

/// With a kernel thread that takes the submissions, task work is that thread's.
pub(super) const SETUPS_SQ_POLL: &[Setup] = &[Setup {
    flags: &["SQPOLL"],
    apply: |builder| {
        builder.setup_sqpoll(SQ_POLL_IDLE_MS);
    },
}];

/// How long the kernel's submission thread spins before it sleeps.
const SQ_POLL_IDLE_MS: u32 = 10;

/// What a ring was granted.
pub(super) struct Granted {
    pub(super) ring: IoUring,
    /// What was granted, in a line for people.
    pub(super) description: String,
    /// Whether the kernel has the operation for it.
    pub(super) sends_zero_copy: bool,
}

/// Why `io_uring` cannot be had, for people: the system call that was refused, and what is likely to have refused it.
fn refusal(call: &str, error: &io::Error) -> io::Error {
    let is_setup = call == "io_uring_setup";
    let why = match error.raw_os_error() {
        Some(libc::EPERM) if is_setup => "EPERM (a seccomp filter or kernel.io_uring_disabled)",
        Some(libc::EPERM) => "EPERM (a seccomp filter)",
        Some(libc::EACCES) => "EACCES (a security module)",
        Some(libc::ENOSYS) if is_setup => "ENOSYS (a kernel without io_uring, or a seccomp filter)",
        Some(libc::ENOSYS) => "ENOSYS (a seccomp filter)",
        Some(libc::ENOMEM) if is_setup => {
            "ENOMEM even for a small ring (RLIMIT_MEMLOCK or a memory limit)"
        }
        Some(libc::EINVAL) if is_setup => "EINVAL (a kernel before 5.19)",
        Some(libc::EMFILE) => "EMFILE (too many open files: raise ulimit -n)",
        Some(libc::ENFILE) => "ENFILE (too many open files on this machine)",
        _ => &error.to_string(),
    };
    let text = format!("{call} was refused with {why}");
    io::Error::new(error.kind(), Refused::new(error.raw_os_error(), text))
}

/// Checks that the other two calls are allowed as well: a filter may know only one of the three. Both find nothing to do, and
/// together they cost a hundredth of what setting the ring up has cost.
fn check_calls(ring: &IoUring) -> io::Result<()> {
    match sys::probe_enter(ring.as_raw_fd()) {
        // A ring that is still disabled cannot be entered.
        Err(error) if error.raw_os_error() != Some(libc::EBADFD) => {
            return Err(refusal("io_uring_enter", &error));
        }
        _ => {}
    }
    sys::probe_register(ring.as_raw_fd()).map_err(|error| refusal("io_uring_register", &error))
}

/// Makes a disabled ring of what the kernel grants, in the first way that it does. The error's text is for people.
pub(super) fn set_up(config: &Config, setups: &[Setup]) -> io::Result<Granted> {
    let mut entries = config.entries;
    let mut completion_entries = config
        .completion_entries
        .unwrap_or((entries * 8).min(COMPLETION_ENTRIES_MAX));
    loop {
        let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
        for setup in setups {
            let mut builder = IoUring::builder();
            builder
                .setup_r_disabled()
                .setup_clamp()
                .setup_submit_all()
                .setup_cqsize(completion_entries);
            (setup.apply)(&mut builder);
            match builder.build(entries) {
                Ok(ring) => {
                    check_calls(&ring)?;
                    let sends_zero_copy = check_features(&ring)?;
                    // Four for each CPU unless told (Linux 5.15). An error leaves it at that.
                    let mut threads = [THREADS_MAX as u32, 0];
                    drop(ring.submitter().register_iowq_max_workers(&mut threads));
                    return Ok(Granted {
                        description: describe(setup, &ring),
                        ring,
                        sends_zero_copy,
                    });
                }
                Err(error) => refused = error,
            }
            if refused.raw_os_error() != Some(libc::EINVAL) {
                break;
            }
        }
        if refused.raw_os_error() == Some(libc::ENOMEM) && entries > ENTRIES_MIN {
            // Before Linux 5.12 rings count against RLIMIT_MEMLOCK; a smaller one may fit.
            entries = (entries / 4).max(ENTRIES_MIN);
            completion_entries = (completion_entries / 4).max(entries);
            continue;
        }
        return Err(refusal("io_uring_setup", &refused));
    }
}

fn describe(setup: &Setup, ring: &IoUring) -> String {
    let mut flags = setup.flags.to_vec();
    if ring.params().is_feature_no_iowait() {
        flags.push("NO_IOWAIT");
    }
    format!(
        "io_uring: kernel {} grants {}; {} submission and {} completion entries",
        process::kernel_release(),
        flags.join(", "),
        ring.params().sq_entries(),
        ring.params().cq_entries(),
    )
}

/// Operations without which the backend is no use, each since Linux 5.11 or earlier.
const ESSENTIAL: &[(u8, &str)] = &[
    (opcode::PollAdd::CODE, "POLL_ADD"),
    (opcode::AsyncCancel::CODE, "ASYNC_CANCEL"),
    (opcode::Accept::CODE, "ACCEPT"),
    (opcode::Connect::CODE, "CONNECT"),
    (opcode::Recv::CODE, "RECV"),
    (opcode::Send::CODE, "SEND"),
    (opcode::RecvMsg::CODE, "RECVMSG"),
    (opcode::SendMsg::CODE, "SENDMSG"),
    (opcode::Read::CODE, "READ"),
    (opcode::Write::CODE, "WRITE"),
    (opcode::Fsync::CODE, "FSYNC"),
    (opcode::OpenAt::CODE, "OPENAT"),
    (opcode::Statx::CODE, "STATX"),
    (opcode::Shutdown::CODE, "SHUTDOWN"),
    (opcode::Close::CODE, "CLOSE"),
];

/// Checks that the kernel has all that the backend builds on, and says whether it sends without copying. Asked once per
/// process: kernels don't change under us.
fn check_features(ring: &IoUring) -> io::Result<bool> {
    static SENDS_ZERO_COPY: OnceLock<bool> = OnceLock::new();
    if let Some(known) = SENDS_ZERO_COPY.get() {
        return Ok(*known);
    }
    let lacks = |what: &str| {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("the kernel's io_uring lacks {what}"),
        ))
    };
    let params = ring.params();
    for (present, name) in [
        (params.is_feature_nodrop(), "NODROP"),
        (params.is_feature_fast_poll(), "FAST_POLL"),
        (params.is_feature_rw_cur_pos(), "RW_CUR_POS"),
        (params.is_feature_ext_arg(), "EXT_ARG"),
        (params.is_feature_skip_cqe_on_success(), "CQE_SKIP"),
    ] {
        if !present {
            return lacks(name);
        }
    }
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| refusal("io_uring_register", &error))?;
    for (code, name) in ESSENTIAL {
        if !probe.is_supported(*code) {
            return lacks(name);
        }
    }
    // The operation came with Linux 6.0, and with 6.2 the report of whether it copied (IORING_SEND_ZC_REPORT_USAGE), which
    // no probe knows.
    let sends_zero_copy =
        probe.is_supported(opcode::SendZc::CODE) && process::kernel_is_at_least(6, 2);
    Ok(*SENDS_ZERO_COPY.get_or_init(|| sends_zero_copy))
}
