//! Questions to the kernel, by trying on connections that nobody uses. The answers are the same for all connections, so
//! they are remembered.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::key::{Cipher, Key, Version};
use crate::sys::PerProcess;
use crate::sys::kernel_tls::{self, Direction};
use crate::trace;

static SUPPORT: PerProcess<Memory<()>> = PerProcess::new();
/// One for each version and cipher.
static CIPHERS: [PerProcess<Memory<Abilities>>; 6] = [const { PerProcess::new() }; 6];

/// How long a connection of a socket to itself may take. It takes microseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a refusal counts that says nothing about the kernel.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// The abilities of a kernel that has a cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Abilities {
    /// Whether a connection's keys can be replaced (Linux 6.14).
    pub(super) renews_keys: bool,
}

/// The reason for a refusal.
struct Refusal {
    reason: Arc<str>,
    /// Whether it is due to the process's state at this moment: descriptors, memory, time.
    is_passing: bool,
}

impl Refusal {
    fn new(what: &str, error: &io::Error) -> Self {
        let is_passing = match error.raw_os_error() {
            Some(code) => matches!(
                code,
                libc::EMFILE
                    | libc::ENFILE
                    | libc::ENOBUFS
                    | libc::ENOMEM
                    | libc::EAGAIN
                    | libc::EINTR
                    | libc::EADDRNOTAVAIL
                    | libc::ETIMEDOUT
            ),
            None => error.kind() == io::ErrorKind::TimedOut,
        };
        Self {
            reason: format!("{what}: {error}").into(),
            is_passing,
        }
    }

    fn untested(error: &io::Error) -> Self {
        let what = "kernel TLS could not be tried on a connection of this process to itself";
        Self::new(what, error)
    }

    fn final_one(reason: &str) -> Self {
        Self {
            reason: reason.into(),
            is_passing: false,
        }
    }
}

/// An answer, once there is one.
struct Memory<T>(Mutex<Option<Known<T>>>);

struct Known<T> {
    answer: Result<T, Arc<str>>,
    /// When to ask again.
    end: Option<Instant>,
}

impl<T: Clone> Memory<T> {
    fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn recall(&self, ask: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Arc<str>> {
        // Nothing that may panic runs under this lock, and nothing that takes long.
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*lock()
            && known.end.is_none_or(|end| Instant::now() < end)
        {
            return known.answer.clone();
        }
        let answer = ask();
        let is_passing = answer.as_ref().is_err_and(|refusal| refusal.is_passing);
        let answer = answer.map_err(|refusal| refusal.reason);
        *lock() = Some(Known {
            answer: answer.clone(),
            end: is_passing.then(|| Instant::now() + ASK_AGAIN_AFTER),
        });
        answer
    }
}

/// Whether the kernel has kernel TLS at all.
pub(super) fn support() -> Result<(), Arc<str>> {
    SUPPORT.get(Memory::new).recall(|| {
        let supported = ask_for_support();
        trace::kernel_tls(
            "any",
            supported.as_ref().err().map(|refusal| &*refusal.reason),
        );
        supported
    })
}

/// Whether the kernel has a version and a cipher, in both directions.
pub(super) fn cipher_support(version: Version, cipher: Cipher) -> Result<Abilities, Arc<str>> {
    let place = version as usize * 3 + cipher as usize;
    CIPHERS[place].get(Memory::new).recall(|| {
        let supported = ask_for_cipher(version, cipher);
        trace::kernel_tls(
            &format!("{version} {cipher}"),
            supported.as_ref().err().map(|refusal| &*refusal.reason),
        );
        supported
    })
}

/// The kernel looks for the protocol first, and then at the socket, which is not connected.
fn ask_for_support() -> Result<(), Refusal> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), None)
        .map_err(|error| Refusal::untested(&error))?;
    match kernel_tls::prepare(socket.as_fd()) {
        Ok(()) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOTCONN) => Ok(()),
            Some(libc::ENOENT) => Err(Refusal::final_one(
                "the kernel has no module \"tls\" (CONFIG_TLS), or has not loaded it: TCP_ULP was refused with ENOENT",
            )),
            Some(libc::EPERM) => Err(Refusal::final_one(
                "TCP_ULP was refused with EPERM (a seccomp filter)",
            )),
            _ => Err(Refusal::new("TCP_ULP was refused", &error)),
        },
    }
}

/// Sets keys on a connection that nobody uses. If it only turned out on the real one that the kernel lacks the cipher,
/// rustls could not go on: it gives its keys away once.
fn ask_for_cipher(version: Version, cipher: Cipher) -> Result<Abilities, Refusal> {
    let socket = connected_to_itself().map_err(|error| Refusal::untested(&error))?;
    kernel_tls::prepare(socket.as_fd())
        .map_err(|error| Refusal::new("TCP_ULP was refused", &error))?;
    let key = Key::blank(version, cipher);
    for direction in [Direction::Send, Direction::Receive] {
        kernel_tls::set_key(socket.as_fd(), direction, key.bytes()).map_err(|error| {
            Refusal::new(&format!("the kernel has no {cipher} for {version}"), &error)
        })?;
    }
    let mut read = [0; kernel_tls::KEY_BYTES_MAX];
    let read = &mut read[..key.bytes().len()];
    kernel_tls::sending_key(socket.as_fd(), read)
        .map_err(|error| Refusal::new("the kernel does not say what it has sent", &error))?;
    // TLS 1.2 cannot.
    let renewed = kernel_tls::set_key(socket.as_fd(), Direction::Send, key.bytes());
    Ok(Abilities {
        renews_keys: version == Version::Tls13 && renewed.is_ok(),
    })
}

/// A TCP connection with one end.
fn connected_to_itself() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), None)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.connect_timeout(&socket.local_addr()?, CONNECT_TIMEOUT)?;
    // Leaves no TIME_WAIT behind.
    socket.set_linger(Some(Duration::ZERO))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_what_the_kernel_says_is_remembered() {
        let asked = Cell::new(0);
        let memory = Memory::new();
        let ask = |code| {
            memory.recall(|| {
                asked.set(asked.get() + 1);
                match code {
                    0 => Ok(()),
                    code => {
                        let error = io::Error::from_raw_os_error(code);
                        Err(Refusal::new("refused", &error))
                    }
                }
            })
        };
        // As if much time had passed.
        let later = || {
            if let Some(known) = &mut *memory.0.lock().unwrap()
                && let Some(end) = &mut known.end
            {
                *end = Instant::now();
            }
        };
        ask(libc::EMFILE).unwrap_err();
        ask(libc::EMFILE).unwrap_err();
        assert_eq!(
            asked.get(),
            1,
            "a failing probe must not be repeated at once"
        );
        later();
        ask(0).unwrap();
        later();
        ask(libc::ENOENT).unwrap();
        assert_eq!(asked.get(), 2);
        let timed_out = io::Error::from(io::ErrorKind::TimedOut);
        assert!(Refusal::untested(&timed_out).is_passing);
        assert!(!Refusal::untested(&io::Error::from_raw_os_error(libc::ENOENT)).is_passing);
    }
}
