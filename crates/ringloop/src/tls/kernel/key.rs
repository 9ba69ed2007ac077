//! Keys as the kernel takes them: the structures `tls12_crypto_info_*` of `linux/tls.h`.

use std::fmt;

use rustls::ConnectionTrafficSecrets;

use crate::sys::kernel_tls;

/// `TLS_1_2_VERSION` and `TLS_1_3_VERSION`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Tls12,
    Tls13,
}

impl Version {
    fn number(self) -> u16 {
        match self {
            Self::Tls12 => 0x0303,
            Self::Tls13 => 0x0304,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tls12 => "TLS 1.2",
            Self::Tls13 => "TLS 1.3",
        })
    }
}

/// The ciphers that rustls and the kernel share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cipher {
    Aes128Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
}

impl Cipher {
    /// `TLS_CIPHER_*`.
    fn number(self) -> u16 {
        match self {
            Self::Aes128Gcm => 51,
            Self::Aes256Gcm => 52,
            Self::ChaCha20Poly1305 => 54,
        }
    }

    fn key_bytes(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }

    /// How much a record is longer than its plaintext: header, explicit nonce, content type and tag.
    pub(super) fn overhead(self, version: Version) -> u64 {
        match (version, self) {
            (Version::Tls13, _) => 5 + 1 + 16,
            (Version::Tls12, Self::ChaCha20Poly1305) => 5 + 16,
            (Version::Tls12, _) => 5 + 8 + 16,
        }
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Aes128Gcm => "AES-128-GCM",
            Self::Aes256Gcm => "AES-256-GCM",
            Self::ChaCha20Poly1305 => "ChaCha20-Poly1305",
        })
    }
}

/// A key with its nonce and the number of the next record. It is overwritten when it is dropped.
pub(super) struct Key(Vec<u8>);

impl Key {
    /// A key for trying out what the kernel takes.
    pub(super) fn blank(version: Version, cipher: Cipher) -> Self {
        let key = [0; 32];
        Self::encode(version, cipher, &key[..cipher.key_bytes()], &[0; 12], 0)
    }

    /// `None` if rustls has a key of another cipher.
    pub(super) fn new(
        version: Version,
        cipher: Cipher,
        sequence: u64,
        secrets: &ConnectionTrafficSecrets,
    ) -> Option<Self> {
        let (key, iv, is_gcm) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv }
            | ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (key, iv, true),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv, false),
            _ => return None,
        };
        let key = key.as_ref();
        let iv = iv.as_ref().try_into().ok()?;
        if is_gcm == (cipher == Cipher::ChaCha20Poly1305) || key.len() != cipher.key_bytes() {
            return None;
        }
        let iv = if version == Version::Tls12 && is_gcm {
            beyond_used_nonces(iv, sequence)
        } else {
            iv
        };
        Some(Self::encode(version, cipher, key, &iv, sequence))
    }

    fn encode(version: Version, cipher: Cipher, key: &[u8], iv: &[u8; 12], sequence: u64) -> Self {
        let mut bytes = Vec::with_capacity(kernel_tls::KEY_BYTES_MAX);
        bytes.extend_from_slice(&version.number().to_ne_bytes());
        bytes.extend_from_slice(&cipher.number().to_ne_bytes());
        if cipher == Cipher::ChaCha20Poly1305 {
            bytes.extend_from_slice(iv);
            bytes.extend_from_slice(key);
        } else {
            // The first four bytes are the salt.
            bytes.extend_from_slice(&iv[4..]);
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(&iv[..4]);
        }
        bytes.extend_from_slice(&sequence.to_be_bytes());
        Self(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// For reading into.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// The number of the next record.
    pub(super) fn sequence(&self) -> u64 {
        let number = self.0.last_chunk().copied();
        number.map_or(0, u64::from_be_bytes)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        kernel_tls::wipe(&mut self.0);
    }
}

/// The nonce from which the kernel may count, in TLS 1.2 with GCM. There, a record carries the last eight bytes of its
/// nonce, and a key must never encrypt two records with the same one. rustls uses the exclusive or of its first nonce
/// and the record's number; the kernel adds one for each record. So the kernel begins where rustls' last nonce is not
/// reached before all others have been used.
fn beyond_used_nonces(mut iv: [u8; 12], sequence: u64) -> [u8; 12] {
    let (_, explicit) = iv.split_at_mut(4);
    let first = u64::from_be_bytes((&*explicit).try_into().unwrap_or_default());
    // All used nonces have the same upper bits.
    let bits = 64 - sequence.leading_zeros();
    let block = 1_u64.checked_shl(bits).unwrap_or(0);
    let next = (first & !block.wrapping_sub(1)).wrapping_add(block);
    explicit.copy_from_slice(&next.to_be_bytes());
    iv
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel_and_their_parts_in_place() {
        for (cipher, size) in [
            (Cipher::Aes128Gcm, 40),
            (Cipher::Aes256Gcm, 56),
            (Cipher::ChaCha20Poly1305, 56),
        ] {
            assert_eq!(Key::blank(Version::Tls13, cipher).bytes().len(), size);
        }
        let iv: [u8; 12] = std::array::from_fn(|at| at as u8);
        let key = Key::encode(Version::Tls13, Cipher::Aes128Gcm, &[99; 16], &iv, 258);
        assert_eq!(key.bytes()[..4], [4, 3, 51, 0], "on little-endian machines");
        assert_eq!(key.bytes()[4..12], iv[4..]);
        assert_eq!(key.bytes()[28..32], iv[..4]);
        assert_eq!(key.bytes()[32..], [0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(key.sequence(), 258);
        let key = Key::encode(Version::Tls12, Cipher::ChaCha20Poly1305, &[9; 32], &iv, 1);
        assert_eq!(key.bytes()[4..16], iv);
    }

    proptest! {
        /// Whatever rustls began with, the kernel uses none of its nonces for a very long time.
        #[test]
        fn no_nonce_is_used_twice(iv: [u8; 12], sequence in 0_u64..70_000, later: u32) {
            let number = |iv: [u8; 12]| u64::from_be_bytes(iv[4..].try_into().unwrap());
            let begin = beyond_used_nonces(iv, sequence);
            prop_assert_eq!(&begin[..4], &iv[..4]);
            for used in [0, sequence / 2, sequence.saturating_sub(1)] {
                if used < sequence {
                    let used = number(iv) ^ used;
                    prop_assert!(used.wrapping_sub(number(begin)) > u64::from(later));
                }
            }
        }
    }
}
