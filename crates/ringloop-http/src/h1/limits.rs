//! The limits of a request.

use std::mem::MaybeUninit;

/// The limits of a request. One that exceeds them is refused.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Size of a head in bytes, from the request line to the empty line at its end. Larger heads get a 431. Default:
    /// 64 KiB; values above 16 MiB count as 16 MiB.
    pub head_bytes: usize,
    /// Length of the request line in bytes, including its line end. Longer ones get a 414. Default: 16 KiB.
    pub request_line_bytes: usize,
    /// Number of header fields. More get a 431. Default: 128. Above 256, parsing a head allocates memory for the
    /// fields.
    pub fields: usize,
    /// Total size of a body's chunk extensions in bytes. Nothing uses them, but reading them costs time. Default: 4
    /// KiB.
    pub chunk_extension_bytes: usize,
    /// Size of the trailer section in bytes. Larger ones get a 431. Default: 8 KiB.
    pub trailer_bytes: usize,
    /// Size in bytes of the largest head that a connection remembers. A head that is equal to the remembered one is not
    /// parsed again. 0 turns this off. Default: 1 KiB.
    pub remembered_bytes: usize,
    /// Whether a connection may start with the preface of HTTP/2 ([`Event::Http2`](super::Event::Http2)). Default: true.
    pub http2: bool,
}

impl Limits {
    /// The number of header fields for which there is room on the stack.
    pub(super) const FIELDS_ON_STACK: usize = 256;
    /// The largest possible value of [`Limits::head_bytes`].
    pub(super) const HEAD_BYTES_MAX: usize = 16 << 20;

    /// Memory for as many fields as there may be in `length` bytes. `on_heap` is used only if `on_stack` is too small.
    pub(super) fn room_for_fields<'a, T>(
        &self,
        length: usize,
        on_stack: &'a mut [MaybeUninit<T>; Self::FIELDS_ON_STACK],
        on_heap: &'a mut Vec<T>,
    ) -> &'a mut [MaybeUninit<T>] {
        // A field has at least a name, a colon and a line feed.
        let fields = self.fields.min(Self::FIELDS_ON_STACK.max(length / 3));
        if fields <= Self::FIELDS_ON_STACK {
            return &mut on_stack[..fields];
        }
        on_heap.reserve_exact(fields);
        &mut on_heap.spare_capacity_mut()[..fields]
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            head_bytes: 64 << 10,
            request_line_bytes: 16 << 10,
            fields: 128,
            chunk_extension_bytes: 4 << 10,
            trailer_bytes: 8 << 10,
            remembered_bytes: 1 << 10,
            http2: true,
        }
    }
}
