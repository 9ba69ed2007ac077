//! The setup of a ring: what is requested, what the kernel grants, and why it refuses.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use io_uring::{IoUring, Probe, opcode};

use crate::config::{COMPLETION_ENTRIES_MAX, Config, Refused};
use crate::process;
use crate::sys;
use crate::workers::THREADS_MAX;

/// The smallest submission queue to try when memory is short.
const ENTRIES_MIN: u32 = 8;

/// One way to set up a ring.
pub(super) struct Setup {
    flags: &'static [&'static str],
    apply: fn(&mut io_uring::Builder),
}

/// The setups, from the best to the least that is sufficient.
///
/// `DEFER_TASKRUN` needs Linux 6.1, `NO_SQARRAY` 6.6, `SINGLE_ISSUER` 6.0, `COOP_TASKRUN` and `TASKRUN_FLAG` 5.19.
/// Without the last one it takes a system call to find out whether there is work, so it is required.
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

/// With a submission thread, task work is run by that thread.
pub(super) const SETUPS_SQ_POLL: &[Setup] = &[Setup {
    flags: &["SQPOLL"],
    apply: |builder| {
        builder.setup_sqpoll(SQ_POLL_IDLE_MS);
    },
}];

/// How long the kernel's submission thread spins before it sleeps.
const SQ_POLL_IDLE_MS: u32 = 10;

/// A ring, and the features that it was granted.
pub(super) struct Granted {
    pub(super) ring: IoUring,
    /// The features, as one line of text.
    pub(super) description: String,
    /// Whether the kernel can send without copying.
    pub(super) sends_zero_copy: bool,
}

/// The error for a refused system call: which one it was, and what has probably refused it.
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
        Some(libc::ENFILE) => "ENFILE (too many open files on this machine: raise fs.file-max)",
        _ => &error.to_string(),
    };
    let text = format!("{call} was refused with {why}");
    io::Error::new(error.kind(), Refused::new(error.raw_os_error(), text))
}

/// Checks that the other system calls are allowed as well, the last one for the registry: a seccomp filter may allow only
/// some of them. No call has anything to do, and together they cost a hundredth of setting up the ring.
fn check_calls(ring: &IoUring) -> io::Result<()> {
    match sys::probe_enter(ring.as_raw_fd()) {
        // The ring is still disabled, so it cannot be entered.
        Err(error) if error.raw_os_error() != Some(libc::EBADFD) => {
            return Err(refusal("io_uring_enter", &error));
        }
        _ => {}
    }
    sys::probe_register(ring.as_raw_fd()).map_err(|error| refusal("io_uring_register", &error))?;
    sys::probe_epoll_wait().map_err(|error| refusal("epoll_wait", &error))
}

/// Makes a disabled ring, with the first setup that the kernel grants. The error message is meant for users.
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
                    // The default is four for each CPU (Linux 5.15). It stays if this fails.
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

/// Operations that the backend requires. All of them exist since Linux 5.15 or earlier.
const ESSENTIAL: &[(u8, &str)] = &[
    (opcode::PollAdd::CODE, "POLL_ADD"),
    (opcode::AsyncCancel::CODE, "ASYNC_CANCEL"),
    (opcode::Send::CODE, "SEND"),
    (opcode::Read::CODE, "READ"),
    (opcode::Write::CODE, "WRITE"),
    (opcode::Fsync::CODE, "FSYNC"),
    (opcode::OpenAt::CODE, "OPENAT"),
    (opcode::Statx::CODE, "STATX"),
    (opcode::RenameAt::CODE, "RENAMEAT"),
    (opcode::UnlinkAt::CODE, "UNLINKAT"),
    (opcode::MkDirAt::CODE, "MKDIRAT"),
    (opcode::Close::CODE, "CLOSE"),
];

/// Checks that the kernel has everything that the backend requires, and returns whether it can send without copying.
/// Done once per process, because the kernel does not change.
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
    // The operation exists since Linux 6.0. The report of whether it has copied (IORING_SEND_ZC_REPORT_USAGE) came with
    // 6.2 and cannot be probed.
    let sends_zero_copy =
        probe.is_supported(opcode::SendZc::CODE) && process::kernel_is_at_least(6, 2);
    Ok(*SENDS_ZERO_COPY.get_or_init(|| sends_zero_copy))
}
