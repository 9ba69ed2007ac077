//! Finds out what the kernel grants, by asking it and by trying: `tools/kernels.py grants` runs this on several kernels,
//! and makes the tables of docs/backends.md from it.

use std::io::Write;
use std::net::TcpStream;

use io_uring::{Builder, IoUring, Probe, cqueue, opcode, squeue, types};
use ringloop_driver::{BackendChoice, BackendKind, Config, Driver};

use crate::support::{listener, pair, pairs, raw, tcp_pair};

/// A setting of a ring, and the rest that it needs.
type Setting = (&'static str, fn(&mut Builder));

const SETTINGS: &[Setting] = &[
    ("R_DISABLED", |builder| {
        builder.setup_r_disabled();
    }),
    ("SQPOLL", |builder| {
        builder.setup_sqpoll(10);
    }),
    ("SUBMIT_ALL", |builder| {
        builder.setup_submit_all();
    }),
    ("COOP_TASKRUN", |builder| {
        builder.setup_coop_taskrun();
    }),
    ("TASKRUN_FLAG", |builder| {
        builder.setup_coop_taskrun().setup_taskrun_flag();
    }),
    ("SINGLE_ISSUER", |builder| {
        builder.setup_single_issuer();
    }),
    ("DEFER_TASKRUN", deferring),
    ("NO_SQARRAY", |builder| {
        builder.setup_no_sqarray();
    }),
];

fn deferring(builder: &mut Builder) {
    builder.setup_single_issuer().setup_defer_taskrun();
}

/// Operations that are no older than some of the kernels.
const OPERATIONS: &[(&str, u8)] = &[
    ("SPLICE", opcode::Splice::CODE),
    ("SHUTDOWN", opcode::Shutdown::CODE),
    ("RENAMEAT", opcode::RenameAt::CODE),
    ("UNLINKAT", opcode::UnlinkAt::CODE),
    ("MKDIRAT", opcode::MkDirAt::CODE),
    ("MSG_RING", opcode::MsgRingData::CODE),
    ("SOCKET", opcode::Socket::CODE),
    ("URING_CMD", opcode::UringCmd16::CODE),
    ("SEND_ZC", opcode::SendZc::CODE),
    ("SENDMSG_ZC", opcode::SendMsgZc::CODE),
    ("READ_MULTISHOT", opcode::ReadMulti::CODE),
    ("WAITID", opcode::WaitId::CODE),
    ("FUTEX_WAIT", opcode::FutexWait::CODE),
    ("FIXED_FD_INSTALL", opcode::FixedFdInstall::CODE),
    ("FTRUNCATE", opcode::Ftruncate::CODE),
    ("BIND", opcode::Bind::CODE),
    ("LISTEN", opcode::Listen::CODE),
    ("RECV_ZC", opcode::RecvZc::CODE),
    ("EPOLL_WAIT", opcode::EpollWait::CODE),
    ("READV_FIXED", opcode::ReadvFixed::CODE),
    ("PIPE", opcode::Pipe::CODE),
];

/// `IORING_SEND_ZC_REPORT_USAGE`.
const REPORT_USAGE: u16 = 1 << 3;
/// `IOU_PBUF_RING_INC`.
const INCREMENTAL: u16 = 2;
/// `IORING_ENTER_GETEVENTS`.
const GET_EVENTS: u32 = 1;

/// Sets up a ring, if the kernel does.
fn ring(settings: impl FnOnce(&mut Builder)) -> std::io::Result<IoUring> {
    let mut builder = IoUring::builder();
    settings(&mut builder);
    builder.build(256)
}

/// Submits an entry to a ring of its own, and returns the first completion.
fn try_out(ring: &mut IoUring, entry: &squeue::Entry) -> cqueue::Entry {
    // SAFETY: what the entries here point to is static, or outlives the ring.
    unsafe { ring.submission().push(entry).unwrap() };
    ring.submit_and_wait(1).unwrap();
    ring.completion().next().unwrap()
}

/// Whether a multishot request succeeds, and goes on.
fn goes_on(ring: &mut IoUring, entry: &squeue::Entry) -> bool {
    let completion = try_out(ring, entry);
    completion.result() >= 0 && cqueue::more(completion.flags())
}

fn polls_multishot() -> bool {
    let (here, mut there) = pair();
    there.write_all(b"x").unwrap();
    let request = opcode::PollAdd::new(types::Fd(raw(&here)), libc::POLLIN as u32);
    let mut ring = ring(|_| {}).unwrap();
    goes_on(&mut ring, &request.multi(true).build())
}

fn accepts_multishot() -> bool {
    let (listener, address) = listener();
    let _client = TcpStream::connect(address).unwrap();
    let request = opcode::AcceptMulti::new(types::Fd(raw(&listener)));
    // The accepted connection is closed with the process.
    let mut ring = ring(|_| {}).unwrap();
    goes_on(&mut ring, &request.build())
}

fn receives_multishot() -> bool {
    const SIZE: usize = 64;
    let mut memory = [0_u8; 4 * SIZE];
    let mut ring = ring(|_| {}).unwrap();
    let provided = opcode::ProvideBuffers::new(memory.as_mut_ptr(), SIZE as i32, 4, 1, 0);
    assert!(try_out(&mut ring, &provided.build()).result() >= 0);
    let (here, mut there) = pair();
    there.write_all(b"x").unwrap();
    let request = opcode::RecvMulti::new(types::Fd(raw(&here)), 1);
    goes_on(&mut ring, &request.build())
}

fn has_buffer_rings(flags: u16) -> bool {
    /// Where the kernel finds the buffers.
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let page = Box::new(Page([0; 4096]));
    let ring = ring(|_| {}).unwrap();
    let address = page.0.as_ptr() as u64;
    // SAFETY: eight entries fit into the page, which outlives the ring.
    unsafe {
        ring.submitter()
            .register_buf_ring_with_flags(address, 8, 1, flags)
    }
    .is_ok()
}

fn reports_copies() -> bool {
    static BYTES: [u8; 16] = [7; 16];
    let (near, _far) = tcp_pair();
    let request = opcode::SendZc::new(types::Fd(raw(&near)), BYTES.as_ptr(), 16);
    let mut ring = ring(|_| {}).unwrap();
    try_out(&mut ring, &request.zc_flags(REPORT_USAGE).build()).result() == 16
}

/// How many completions one enter brings of 100 that are due. `None` if the kernel does not wait for an enter.
fn completions_of_one_enter() -> Option<usize> {
    let mut ring = ring(deferring).ok()?;
    let mut pairs = pairs(100);
    for (here, _) in &pairs {
        let request = opcode::PollAdd::new(types::Fd(raw(here)), libc::POLLIN as u32).build();
        // SAFETY: it points to no memory.
        unsafe { ring.submission().push(&request).unwrap() };
    }
    ring.submit().unwrap();
    for (_, there) in &mut pairs {
        there.write_all(b"x").unwrap();
    }
    // SAFETY: no argument is passed.
    unsafe { ring.submitter().enter::<()>(0, 0, GET_EVENTS, None) }.unwrap();
    Some(ring.completion().len())
}

/// Whether epoll waits with nanosecond precision.
fn has_epoll_pwait2() -> bool {
    let null = std::ptr::null::<u8>();
    // SAFETY: there is no such descriptor, so no memory is accessed.
    let result = unsafe { libc::syscall(libc::SYS_epoll_pwait2, -1, null, 1, null, null, 0) };
    assert_eq!(result, -1);
    std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

/// Prints all answers, for `tools/kernels.py`.
#[test]
#[ignore = "output for the documentation"]
fn what_is_granted() {
    // The harness has begun a line.
    println!();
    let tell = |group: &str, what: &str, answer: &str| {
        println!("grants\t{group}\t{what}\t{answer}");
    };
    let tell_whether = |group: &str, what: &str, is_granted: bool| {
        tell(group, what, if is_granted { "yes" } else { "no" });
    };
    let driver = Driver::new(&Config::with_backend(BackendChoice::Auto)).unwrap();
    let (_, reason) = driver.backend_reason().split_once(": ").unwrap();
    let reason = reason
        .split_once(" grants ")
        .map_or(reason, |halves| halves.1);
    let reason = reason.split_once("; ").map_or(reason, |halves| halves.0);
    let choice = format!("{}: {reason}", driver.backend());
    tell("ringloop", "`auto` chooses", &choice);

    for (name, settings) in SETTINGS {
        tell_whether("setup of a ring", name, ring(settings).is_ok());
    }
    let ring = ring(|_| {}).unwrap();
    let params = ring.params();
    for (name, is_granted) in [
        ("NODROP", params.is_feature_nodrop()),
        ("FAST_POLL", params.is_feature_fast_poll()),
        ("RW_CUR_POS", params.is_feature_rw_cur_pos()),
        ("EXT_ARG", params.is_feature_ext_arg()),
        ("CQE_SKIP", params.is_feature_skip_cqe_on_success()),
        ("LINKED_FILE", params.is_feature_linked_file()),
        ("RECVSEND_BUNDLE", params.is_feature_recvsend_bundle()),
        ("MIN_TIMEOUT", params.is_feature_min_timeout()),
        ("NO_IOWAIT", params.is_feature_no_iowait()),
    ] {
        tell_whether("features", name, is_granted);
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).unwrap();
    for (name, code) in OPERATIONS {
        tell_whether("operations", name, probe.is_supported(*code));
    }
    let submitter = ring.submitter();
    let stdin: &[_] = &[0];
    for (what, is_granted) in [
        ("multishot poll", polls_multishot()),
        ("multishot accept", accepts_multishot()),
        ("multishot receive", receives_multishot()),
        ("rings of provided buffers", has_buffer_rings(0)),
        (
            "provided buffers consumed in parts",
            has_buffer_rings(INCREMENTAL),
        ),
        ("zero-copy sends say whether they copied", reports_copies()),
        ("registered files", submitter.register_files(stdin).is_ok()),
    ] {
        tell_whether("tried", what, is_granted);
    }
    let completions = completions_of_one_enter();
    let completions = completions.map_or("-".to_owned(), |count| count.to_string());
    tell("tried", "completions of 100 by one enter", &completions);
    tell_whether("epoll", "epoll_pwait2", has_epoll_pwait2());
}

/// The driver takes what the kernel grants.
#[test]
fn a_driver_is_set_up_with_what_is_granted() {
    let Ok(driver) = Driver::new(&Config::with_backend(BackendChoice::IoUring)) else {
        return;
    };
    assert_eq!(driver.backend(), BackendKind::IoUring);
    let reason = driver.backend_reason();
    let used = [
        "SINGLE_ISSUER",
        "DEFER_TASKRUN",
        "TASKRUN_FLAG",
        "NO_SQARRAY",
    ];
    for (name, settings) in SETTINGS.iter().filter(|(name, _)| used.contains(name)) {
        assert_eq!(
            reason.contains(name),
            ring(settings).is_ok(),
            "{name}: {reason}"
        );
    }
}
