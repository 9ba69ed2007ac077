//! Where records end, for reading exactly up to the end of one.

const HEADER_BYTES: usize = 5;

/// A place in a stream of records. The kernel can take over a connection between two records only, so nothing must be
/// read beyond the last one of the handshake.
#[derive(Debug, Default)]
pub(super) struct Boundary {
    header: [u8; HEADER_BYTES],
    /// How much of the header is there.
    filled: usize,
    /// How much of the body is missing, if the header is complete.
    missing: usize,
}

impl Boundary {
    /// How many bytes may be read: the rest of the header, or of the body.
    pub(super) fn wanted(&self) -> usize {
        if self.filled < HEADER_BYTES {
            HEADER_BYTES - self.filled
        } else {
            self.missing
        }
    }

    /// Moves on by bytes that were read, at most as many as are [`wanted`](Self::wanted).
    pub(super) fn advance(&mut self, bytes: &[u8]) {
        if self.filled < HEADER_BYTES {
            let end = self.filled + bytes.len();
            self.header[self.filled..end].copy_from_slice(bytes);
            self.filled = end;
            if end == HEADER_BYTES {
                let [_, _, _, high, low] = self.header;
                self.missing = usize::from(u16::from_be_bytes([high, low]));
            }
        } else {
            self.missing -= bytes.len();
        }
        if self.filled == HEADER_BYTES && self.missing == 0 {
            *self = Self::default();
        }
    }

    /// Whether the next byte begins a record.
    pub(super) fn is_between_records(&self) -> bool {
        self.filled == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_end_where_their_headers_say() {
        let mut boundary = Boundary::default();
        let stream = [22, 3, 1, 0, 3, 7, 7, 7, 20, 3, 3, 0, 0, 23, 3, 3, 1, 0];
        let mut at = 0;
        let mut ends = vec![];
        while at < stream.len() {
            let count = boundary.wanted().min(2).min(stream.len() - at);
            boundary.advance(&stream[at..at + count]);
            at += count;
            if boundary.is_between_records() {
                ends.push(at);
            }
        }
        assert_eq!(ends, [8, 13]);
        assert_eq!(boundary.wanted(), 256);
    }
}
