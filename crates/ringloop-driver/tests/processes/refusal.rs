//! Refusals of `io_uring`, each in a process of its own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use ringloop_driver::{
    BackendChoice, BackendKind, Bytes, Config, Driver, Interest, Mode, Op, Refused, SharedFd,
};

use crate::support::{driver, event_of, in_child, lend, pair, poll, raw};

/// Makes a system call fail with `errno` in this process from now on.
fn refuse(call: libc::c_long, errno: i32) {
    // The number of a system call is the first word of seccomp_data (seccomp(2)).
    let statement = |code: u32, jump_true, jump_false, k| libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: jump_false,
        k,
    };
    let filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            call as u32,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | errno as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies `program` and the `filter` that it points to; both outlive the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program
            ),
            0
        );
    }
}

fn falls_back(call: libc::c_long, errno: i32, names: [&str; 2]) {
    in_child(|| {
        refuse(call, errno);
        let mut driver = Driver::new(&Config::default()).map_err(|error| error.to_string())?;
        let reason = driver.backend_reason().to_owned();
        if driver.backend() != BackendKind::Epoll
            || !reason.starts_with("epoll: ")
            || !names.iter().all(|name| reason.contains(name))
        {
            return Err(format!("{} because {reason:?}", driver.backend()));
        }
        let (here, mut there) = pair();
        there.write_all(b"x").map_err(|error| error.to_string())?;
        let watch = driver
            .watch(raw(&here), Interest::READ, Mode::Edge)
            .map_err(|error| error.to_string())?;
        if event_of(&mut driver, watch).readiness().is_readable() {
            Ok(())
        } else {
            Err("not readable".to_owned())
        }
    });
}

/// A filter may refuse any of the three calls, with different errors.
#[test]
fn a_filter_of_any_call_leads_to_epoll() {
    for (call, name) in [
        (libc::SYS_io_uring_setup, "io_uring_setup"),
        (libc::SYS_io_uring_enter, "io_uring_enter"),
        (libc::SYS_io_uring_register, "io_uring_register"),
    ] {
        falls_back(call, libc::EPERM, [name, "EPERM"]);
        falls_back(call, libc::ENOSYS, [name, "ENOSYS"]);
    }
}

#[test]
fn a_filter_that_comes_after_a_driver_leads_to_epoll() {
    for call in [libc::SYS_io_uring_enter, libc::SYS_io_uring_register] {
        in_child(|| {
            drop(driver(BackendChoice::IoUring));
            refuse(call, libc::EPERM);
            let driver = Driver::new(&Config::default()).map_err(|error| error.to_string())?;
            match driver.backend() {
                BackendKind::Epoll => Ok(()),
                other => Err(other.to_string()),
            }
        });
    }
}

#[test]
fn too_little_memory_leads_to_epoll() {
    falls_back(
        libc::SYS_io_uring_setup,
        libc::ENOMEM,
        ["small ring", "ENOMEM"],
    );
}

#[test]
fn forced_io_uring_that_is_refused_is_an_error_that_says_what_to_do() {
    let (setup, enter, register) = (
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
    );
    let allow = ["EPERM", ": allow it, or choose epoll or auto there"];
    for (call, errno, end) in [
        (setup, libc::EPERM, allow),
        (enter, libc::EPERM, allow),
        (register, libc::EPERM, allow),
        (
            setup,
            libc::ENOMEM,
            ["ENOMEM", ": raise the limit, or choose epoll or auto there"],
        ),
        (
            setup,
            libc::EINVAL,
            [
                "EINVAL",
                ": use a newer kernel, or choose epoll or auto there",
            ],
        ),
        (setup, libc::EBUSY, ["busy", ": choose epoll or auto there"]),
        // epoll needs descriptors, too.
        (setup, libc::EMFILE, ["EMFILE", "files: raise ulimit -n)"]),
        (
            setup,
            libc::ENFILE,
            ["ENFILE", "machine: raise fs.file-max)"],
        ),
    ] {
        in_child(|| {
            refuse(call, errno);
            match Driver::new(&Config::with_backend(BackendChoice::IoUring)) {
                Ok(driver) => Err(format!("got {}", driver.backend())),
                Err(error) => {
                    let text = error.to_string();
                    let complete = text
                        .starts_with("io_uring is forced by the configuration, but ")
                        && text.contains(end[0])
                        && text.ends_with(end[1]);
                    if complete && Refused::of(&error).and_then(Refused::errno) == Some(errno) {
                        Ok(())
                    } else {
                        Err(text)
                    }
                }
            }
        });
    }
}

#[test]
fn forced_epoll_says_who_forced_it() {
    let driver = Driver::new(&Config::with_backend(BackendChoice::Epoll)).unwrap();
    assert_eq!(driver.backend(), BackendKind::Epoll);
    assert_eq!(
        driver.backend_reason(),
        "epoll: forced by the configuration"
    );
}

#[test]
fn io_uring_says_what_was_granted() {
    if let Some(driver) = driver(BackendChoice::IoUring) {
        assert_eq!(driver.backend(), BackendKind::IoUring);
        let reason = driver.backend_reason();
        assert!(
            reason.starts_with("io_uring: kernel ") && reason.contains("TASKRUN"),
            "{reason}"
        );
    }
}

/// A user who flushes in order to close a lent descriptor must learn that the kernel may still look it up.
#[test]
fn a_flush_that_the_kernel_refuses_says_so_and_the_socket_stays_open() {
    for errno in [libc::EAGAIN, libc::EBUSY] {
        in_child(|| {
            let Some(mut driver) = driver(BackendChoice::IoUring) else {
                return Ok(());
            };
            let is_busy = |driver: &mut Driver| match driver.flush() {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => Ok(()),
                other => Err(format!("{other:?}, where nothing could be flushed")),
            };
            let (near, mut far) = pair();
            let near = SharedFd::new(near);
            poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
            driver.flush().map_err(|error| error.to_string())?;
            refuse(libc::SYS_io_uring_enter, errno);
            driver.flush().map_err(|error| error.to_string())?;
            let token = driver.submit(Op::SendZeroCopy {
                fd: near,
                bytes: Bytes::new("x"),
                flags: 0,
            });
            let token = token.map_err(|error| error.to_string())?;
            is_busy(&mut driver)?;
            driver.discard(token);
            is_busy(&mut driver)?;
            poll(&mut driver, Some(Duration::ZERO), &mut Vec::new());
            // It is open: there is nothing to read, and no end.
            match far.read(&mut [0]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                other => return Err(format!("{other:?}, where the kernel may still look it up")),
            }
            drop(driver);
            match far.read(&mut [0]) {
                Ok(0) => Ok(()),
                other => Err(format!("{other:?}, where nobody has it any more")),
            }
        });
    }
}

/// Zero-copy sends count against RLIMIT_MEMLOCK, for users without privileges.
#[test]
fn a_zero_copy_send_beyond_the_limit_of_locked_memory_copies() {
    const BYTES: usize = 128 * 1024;
    in_child(|| {
        let limit = libc::rlimit {
            rlim_cur: 4096,
            rlim_max: 4096,
        };
        // SAFETY: the kernel reads one rlimit from `limit`, which outlives the call; the other two take no memory of ours.
        let is_refused = unsafe {
            libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) != 0
                || libc::geteuid() == 0 && libc::setuid(65_534) != 0
        };
        if is_refused {
            return Err(std::io::Error::last_os_error().to_string());
        }
        let Some(mut driver) = driver(BackendChoice::IoUring) else {
            return Ok(());
        };
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let near = TcpStream::connect(address).map_err(|error| error.to_string())?;
        let token = driver
            .submit(Op::SendZeroCopy {
                fd: lend(raw(&near)),
                bytes: Bytes::new(vec![7; BYTES]),
                flags: 0,
            })
            .map_err(|error| error.to_string())?;
        let sent = event_of(&mut driver, token).io_result();
        let sent = sent.map_err(|error| error.to_string())?;
        while driver.counters().operations > 0 {
            poll(&mut driver, None, &mut Vec::new());
        }
        let counters = driver.counters();
        if sent > 0 && counters.zero_copy_copies == 1 {
            Ok(())
        } else {
            Err(format!("{sent} bytes, {counters:?}"))
        }
    });
}
