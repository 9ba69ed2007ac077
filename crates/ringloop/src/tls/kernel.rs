//! Whether the kernel can do the work of a connection after its handshake (kernel TLS), and whether it does.

mod key;
pub(super) mod offload;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustls::{CipherSuite, ProtocolVersion, SupportedCipherSuite};
use socket2::{Domain, Socket, Type};

use crate::sys::PerProcess;
use crate::sys::kernel_tls::{self, Direction};
use crate::trace;
use key::{Cipher, Key, Version};

/// The answers are the same for all connections, so the kernel is asked once.
static SUPPORT: PerProcess<Result<(), Arc<str>>> = PerProcess::new();
/// One for each version and cipher.
static CIPHERS: [PerProcess<Result<(), Arc<str>>>; 6] = [const { PerProcess::new() }; 6];

/// How long a connection of a socket to itself may take. It takes microseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Who encrypts and decrypts a connection: the kernel or rustls, and if it is rustls, why.
///
/// ```
/// use ringloop::tls::KernelTls;
///
/// assert_eq!(KernelTls::On.to_string(), "kernel TLS is on");
/// assert!(!KernelTls::NotAsked.is_on());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelTls {
    /// The kernel.
    On,
    /// rustls, because nobody has asked for kernel TLS.
    NotAsked,
    /// rustls, because the handshake is not over yet.
    Handshaking,
    /// rustls, although kernel TLS was asked for. This says why.
    Refused(Arc<str>),
}

impl KernelTls {
    /// Whether the kernel encrypts and decrypts.
    pub fn is_on(&self) -> bool {
        *self == Self::On
    }
}

impl fmt::Display for KernelTls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => formatter.write_str("kernel TLS is on"),
            Self::NotAsked => formatter.write_str("kernel TLS is off: not asked for"),
            Self::Handshaking => formatter.write_str("kernel TLS is off until the handshake ends"),
            Self::Refused(reason) => write!(formatter, "kernel TLS is off: {reason}"),
        }
    }
}

/// Whether the kernel has kernel TLS at all.
pub(super) fn support() -> Result<(), Arc<str>> {
    let supported = SUPPORT.get(|| {
        let supported = ask_for_support();
        trace::kernel_tls("any", supported.as_ref().err().map(|reason| &**reason));
        supported
    });
    supported.clone()
}

/// Returns whether the kernel can be expected to take connections over.
pub(super) fn asked(is_asked: bool) -> KernelTls {
    if is_asked {
        support().map_or_else(KernelTls::Refused, |()| KernelTls::On)
    } else {
        KernelTls::NotAsked
    }
}

/// Whether the kernel has a version and a cipher, in both directions.
fn cipher_support(version: Version, cipher: Cipher) -> Result<(), Arc<str>> {
    let place = version as usize * 3 + cipher as usize;
    let supported = CIPHERS[place].get(|| {
        let supported = ask_for_cipher(version, cipher);
        trace::kernel_tls(
            &format!("{version} {cipher}"),
            supported.as_ref().err().map(|reason| &**reason),
        );
        supported
    });
    supported.clone()
}

/// The kernel looks for the protocol first, and then at the socket, which is not connected.
fn ask_for_support() -> Result<(), Arc<str>> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(|error| untested(&error))?;
    match kernel_tls::prepare(socket.as_fd()) {
        Ok(()) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOTCONN) => Ok(()),
            Some(libc::ENOENT) => Err(
                "the kernel has no module \"tls\" (CONFIG_TLS), or has not loaded it: TCP_ULP was refused with ENOENT".into(),
            ),
            Some(libc::EPERM) => Err(
                "TCP_ULP was refused with EPERM (a seccomp filter)".into(),
            ),
            _ => Err(format!("TCP_ULP was refused: {error}").into()),
        },
    }
}

/// Sets keys on a connection that nobody uses. If it only turned out on the real one that the kernel lacks the cipher,
/// rustls could not go on: it gives its keys away once.
fn ask_for_cipher(version: Version, cipher: Cipher) -> Result<(), Arc<str>> {
    let socket = connected_to_itself().map_err(|error| untested(&error))?;
    kernel_tls::prepare(socket.as_fd()).map_err(|error| format!("TCP_ULP was refused: {error}"))?;
    for direction in [Direction::Send, Direction::Receive] {
        let key = Key::blank(version, cipher);
        kernel_tls::set_key(socket.as_fd(), direction, key.bytes())
            .map_err(|error| format!("the kernel has no {cipher} for {version}: {error}"))?;
    }
    let mut read = [0; kernel_tls::KEY_BYTES_MAX];
    let read = &mut read[..Key::blank(version, cipher).bytes().len()];
    kernel_tls::sending_key(socket.as_fd(), read)
        .map_err(|error| format!("the kernel does not say what it has sent: {error}"))?;
    Ok(())
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

fn untested(error: &io::Error) -> Arc<str> {
    format!("kernel TLS could not be tried on a connection of this process to itself: {error}")
        .into()
}

/// The version and cipher of a connection, as the kernel names them. Fails if it has no name for them.
fn named(
    version: Option<ProtocolVersion>,
    suite: Option<SupportedCipherSuite>,
) -> Result<(Version, Cipher), Arc<str>> {
    let version = match version {
        Some(ProtocolVersion::TLSv1_2) => Version::Tls12,
        Some(ProtocolVersion::TLSv1_3) => Version::Tls13,
        other => return Err(format!("the kernel does not know the version {other:?}").into()),
    };
    let suite = suite.map(|suite| suite.suite());
    let cipher = match suite {
        Some(
            CipherSuite::TLS13_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        ) => Cipher::Aes128Gcm,
        Some(
            CipherSuite::TLS13_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        ) => Cipher::Aes256Gcm,
        Some(
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ) => Cipher::ChaCha20Poly1305,
        other => return Err(format!("no cipher of the kernel is used for {other:?}").into()),
    };
    Ok((version, cipher))
}
