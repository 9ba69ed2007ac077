//! System calls that the standard library lacks: epoll, clocks, limits, CPUs. The only file with `unsafe`.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

pub(crate) const NS_PER_S: u64 = 1_000_000_000;

/// Converts the return value of a system call.
fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

// --- clocks ---

/// A clock of the kernel, see `clock_gettime(2)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(libc::clockid_t);

impl Clock {
    /// Monotonic time, the same for all threads.
    pub(crate) const MONOTONIC: Self = Self(libc::CLOCK_MONOTONIC);
    /// The CPU time of this process, over all threads.
    pub(crate) const OWN_CPU: Self = Self(libc::CLOCK_PROCESS_CPUTIME_ID);

    /// The CPU time of another process: user and system time of all its threads, including ended ones and io_uring's workers,
    /// which are threads of the process. Fails if there is no such process.
    pub(crate) fn of_process(pid: i32) -> io::Result<Self> {
        let mut clock: libc::clockid_t = 0;
        // SAFETY: the pointer is to a local that outlives the call.
        match unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } {
            0 => Ok(Self(clock)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// The time of the clock, in ns.
    pub(crate) fn read_ns(self) -> io::Result<u64> {
        let mut now = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: the pointer is to a local that outlives the call.
        checked(unsafe { libc::clock_gettime(self.0, now.as_mut_ptr()) })?;
        // SAFETY: the call succeeded, so it has filled the structure in.
        let now = unsafe { now.assume_init() };
        Ok(now.tv_sec as u64 * NS_PER_S + now.tv_nsec as u64)
    }
}

/// The current time in ns. All measurements use it.
#[inline]
pub(crate) fn now_ns() -> u64 {
    Clock::MONOTONIC
        .read_ns()
        .expect("CLOCK_MONOTONIC exists on every Linux")
}

/// Makes waits end as precisely as the kernel can. By default it may delay them by 50 us.
pub(crate) fn ask_for_precise_waits() {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory. It can't fail with a positive one (prctl(2)).
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
}

// --- epoll ---

/// An event of a watched socket.
pub(crate) type Event = libc::epoll_event;

/// An empty event, to fill an array with.
pub(crate) const NO_EVENT: Event = Event { events: 0, u64: 0 };

pub(crate) const READABLE: u32 = libc::EPOLLIN as u32;
pub(crate) const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// The peer has closed, or the connection broke.
pub(crate) const ENDED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
pub(crate) const EDGE_TRIGGERED: u32 = libc::EPOLLET as u32;

/// How long to wait for an event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Not at all.
    Poll,
    /// This many ns, rounded up to a millisecond. The cheaper system call.
    Coarse(u64),
    /// This many ns.
    Precise(u64),
}

/// A set of watched sockets, see `epoll(7)`. Closing a socket removes it.
#[derive(Debug)]
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call takes no pointers, and the descriptor that it returns belongs to nobody else.
        let descriptor =
            unsafe { OwnedFd::from_raw_fd(checked(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Self(descriptor))
    }

    /// Watches a socket for `events`, which are reported with `token`.
    pub(crate) fn add(&self, socket: &impl AsRawFd, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, socket, events, token)
    }

    /// Changes the events that a socket is watched for.
    pub(crate) fn change(&self, socket: &impl AsRawFd, events: u32, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, socket, events, token)
    }

    fn control(
        &self,
        operation: libc::c_int,
        socket: &impl AsRawFd,
        events: u32,
        token: u64,
    ) -> io::Result<()> {
        let mut interest = Event { events, u64: token };
        // SAFETY: the pointer is to a local that outlives the call; a wrong descriptor would be an error.
        checked(unsafe {
            libc::epoll_ctl(
                self.0.as_raw_fd(),
                operation,
                socket.as_raw_fd(),
                &raw mut interest,
            )
        })?;
        Ok(())
    }

    /// Waits for events and returns them. There are none after a signal or at the timeout.
    pub(crate) fn wait<'a>(&self, events: &'a mut [Event], wait: Wait) -> io::Result<&'a [Event]> {
        let descriptor = self.0.as_raw_fd();
        let result = match wait {
            Wait::Poll => wait_ms(descriptor, events, 0),
            Wait::Coarse(ns) => {
                let ms = ns.div_ceil(1_000_000).min(i32::MAX as u64);
                wait_ms(descriptor, events, ms as libc::c_int)
            }
            Wait::Precise(ns) => wait_ns(descriptor, events, ns),
        };
        match result {
            Ok(count) => Ok(&events[..count as usize]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(&[]),
            Err(error) => Err(error),
        }
    }
}

fn wait_ms(descriptor: RawFd, events: &mut [Event], ms: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: the kernel writes at most as many events as the slice holds, and they are plain numbers.
    checked(unsafe {
        libc::epoll_wait(
            descriptor,
            events.as_mut_ptr(),
            events.len() as libc::c_int,
            ms,
        )
    })
}

/// Like epoll_pwait2(2), which kernels before 5.11 and older C libraries lack: ppoll(2) on the epoll set has a precision of ns,
/// too.
fn wait_ns(descriptor: RawFd, events: &mut [Event], ns: u64) -> io::Result<libc::c_int> {
    let mut watched = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    let timeout = libc::timespec {
        tv_sec: (ns / NS_PER_S) as libc::time_t,
        tv_nsec: (ns % NS_PER_S) as _,
    };
    // SAFETY: both pointers are to locals that outlive the call, and the signal mask may be null.
    if checked(unsafe { libc::ppoll(&raw mut watched, 1, &raw const timeout, std::ptr::null()) })?
        == 0
    {
        return Ok(0);
    }
    wait_ms(descriptor, events, 0)
}

// --- limits and CPUs ---

/// Raises the limit of open descriptors to its maximum, and returns it.
pub(crate) fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is to a local that outlives the call.
    checked(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the pointer is to a local that outlives the call.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(limit.rlim_cur)
}

/// Confines the calling thread to `cpu`.
pub(crate) fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the set is a valid one and `cpu` was just checked to lie in it.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the pointer is to a local of the size that is passed with it; 0 is the calling thread.
    checked(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) })?;
    Ok(())
}

/// How many bytes of a socket its peer's kernel has not acknowledged yet.
pub(crate) fn unacknowledged_bytes(socket: &impl AsRawFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the pointer is to a local that outlives the call. TIOCOUTQ is SIOCOUTQ, see tcp(7).
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) })?;
    Ok(bytes as u64)
}

/// The length of a tick, in which /proc counts CPU time, in ns.
pub(crate) fn tick_ns() -> u64 {
    // SAFETY: the call takes a number and touches no memory.
    let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    NS_PER_S / ticks_per_s.max(1) as u64
}

/// The size of a memory page in bytes.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: the call takes a number and touches no memory.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64
}

/// The number of ports that the kernel may use for outgoing connections.
pub(crate) fn local_ports() -> Option<u64> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut bounds = range.split_whitespace().map(str::parse::<u64>);
    let (low, high) = (bounds.next()?.ok()?, bounds.next()?.ok()?);
    Some(high.saturating_sub(low) + 1)
}

/// A `Duration` in ns. 64 bits are enough for 584 years.
pub(crate) fn ns(duration: Duration) -> u64 {
    duration.as_nanos().min(u128::from(u64::MAX)) as u64
}
