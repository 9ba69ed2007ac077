//! Where in the stream of arriving bytes the TLS records end.
//!
//! OpenSSL reports by an error that nothing more can be read, and making that exception costs as much as decrypting a
//! record. If we know where records end, we need not call OpenSSL: as long as no complete record is left, it would only
//! store the beginning of the next one and wait.

/// Bytes of a record's header: type, version, length.
const HEADER_LEN: usize = 5;
/// The longest record of TLS 1.2 that OpenSSL accepts (SSL3_RT_MAX_ENCRYPTED_LENGTH). It is asked at once about one
/// that claims to be longer.
const BODY_LEN_MAX: usize = 16 * 1024 + 320;

pub(super) struct Records {
    /// Bytes that have arrived so far.
    arrived: u64,
    /// Where the last complete record ended, and where it began.
    boundary: u64,
    boundary_before: u64,
    header: [u8; HEADER_LEN],
    header_len: usize,
    body_left: usize,
    /// How much had arrived when OpenSSL was last known to have read everything, including the beginning of a record.
    settled: u64,
    /// The stream doesn't look like records, or not all of it came by here: always ask OpenSSL.
    lost: bool,
}

impl Records {
    pub(super) const fn new() -> Self {
        Self {
            arrived: 0,
            boundary: 0,
            boundary_before: 0,
            header: [0; HEADER_LEN],
            header_len: 0,
            body_left: 0,
            settled: 0,
            lost: false,
        }
    }

    /// Follows the records through `bytes`, which have arrived next.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) {
        let end = self.arrived + bytes.len() as u64;
        self.arrived = end;
        while !self.lost && !bytes.is_empty() {
            if self.body_left > 0 {
                let taken = self.body_left.min(bytes.len());
                bytes = &bytes[taken..];
                self.body_left -= taken;
                if self.body_left == 0 {
                    self.boundary_before = self.boundary;
                    self.boundary = end - bytes.len() as u64;
                }
                continue;
            }
            let taken = (HEADER_LEN - self.header_len).min(bytes.len());
            self.header[self.header_len..][..taken].copy_from_slice(&bytes[..taken]);
            self.header_len += taken;
            bytes = &bytes[taken..];
            if self.header_len == HEADER_LEN {
                self.header_len = 0;
                self.body_left = usize::from(u16::from_be_bytes([self.header[3], self.header[4]]));
                self.lost = !matches!(self.header, [20..=24, 3, 0..=4, ..])
                    || !(1..=BODY_LEN_MAX).contains(&self.body_left);
            }
        }
    }

    /// Something else feeds OpenSSL too.
    pub(super) fn lose_track(&mut self) {
        self.lost = true;
    }

    /// Whether a complete record is left for OpenSSL to read, with `pending` bytes in its memory BIO.
    pub(super) fn is_any_complete(&self, pending: u64) -> bool {
        self.lost || self.arrived.saturating_sub(pending) < self.boundary
    }

    /// The length of the record that is left for OpenSSL to read, if exactly one complete record is.
    pub(super) fn only_complete(&self, pending: u64) -> Option<usize> {
        let taken = self.arrived.saturating_sub(pending);
        let one = !self.lost && (self.boundary_before..self.boundary).contains(&taken);
        // OpenSSL may have its beginning already.
        one.then(|| (self.boundary - self.boundary_before) as usize)
    }

    /// Bytes that have arrived of a record that isn't complete.
    pub(super) fn beyond_complete(&self) -> u64 {
        self.arrived - self.boundary
    }

    /// OpenSSL has read, or would have read, all there is.
    pub(super) fn settle(&mut self) {
        self.settled = self.arrived;
    }

    /// The bytes that asyncio finds in the memory BIO where we find `pending`: without the beginning of a record that
    /// OpenSSL would have set aside by now.
    pub(super) fn unread(&self, pending: u64) -> u64 {
        if self.lost {
            return pending;
        }
        pending.min(self.arrived - self.settled)
    }
}
