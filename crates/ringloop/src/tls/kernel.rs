//! Whether the kernel can do the work of a connection after its handshake (kernel TLS), and whether it does.

mod incoming;
mod key;
pub(super) mod offload;
mod probe;

use std::fmt;
use std::sync::Arc;

use rustls::{CipherSuite, ProtocolVersion, SupportedCipherSuite};

use key::{Cipher, Version};

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

/// Returns whether the kernel can be expected to take connections over.
pub(super) fn asked(is_asked: bool) -> KernelTls {
    if is_asked {
        probe::support().map_or_else(KernelTls::Refused, |()| KernelTls::On)
    } else {
        KernelTls::NotAsked
    }
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
