//! Memory that datagrams are received into, several with one recvmmsg(2).

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem::zeroed;
use std::os::fd::RawFd;

use crate::addresses::Address;
use crate::metrics;

/// Datagrams that one call receives at most. It bounds what a flooded socket may take of a turn.
const COUNT_MAX: usize = 16;
/// Larger than any UDP datagram, whose length field has 16 bits.
const UDP_SIZE: usize = 64 * 1024;
/// asyncio's `max_size`: larger datagrams are cut off.
const UNIX_SIZE: usize = 256 * 1024;
const MEMORY_SIZE: usize = COUNT_MAX * UDP_SIZE;

/// Room for a batch, kept warm by the loop. Only what datagrams have filled takes memory.
pub(crate) struct Batch(Box<Inner>);

struct Inner {
    memory: Vec<u8>,
    names: [libc::sockaddr_storage; COUNT_MAX],
    pieces: [libc::iovec; COUNT_MAX],
    headers: [libc::mmsghdr; COUNT_MAX],
    /// The size of a slot that the headers are made for.
    size: usize,
    /// Headers that the kernel may have written to.
    used: usize,
}

// SAFETY: the pointers in `pieces` and `headers` point into the box itself and into `memory`, which it owns.
unsafe impl Send for Batch {}

impl Batch {
    pub(crate) fn new() -> Self {
        // SAFETY: all-zero is valid for each of these types of C.
        let (names, pieces, headers) = unsafe { (zeroed(), zeroed(), zeroed()) };
        Self(Box::new(Inner {
            memory: Vec::with_capacity(MEMORY_SIZE),
            names,
            pieces,
            headers,
            size: 0,
            used: 0,
        }))
    }

    /// Datagrams that the last `receive` took at most.
    pub(crate) fn capacity(&self) -> usize {
        MEMORY_SIZE / self.0.size
    }

    /// Receives what the socket has, without waiting: the number of datagrams.
    pub(crate) fn receive(&mut self, fd: RawFd, family: c_int) -> io::Result<usize> {
        let size = slot_size(family);
        let inner = &mut *self.0;
        if inner.size != size {
            inner.prepare(size);
        }
        for header in &mut inner.headers[..inner.used] {
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        }
        inner.used = 0;
        metrics::count_system_call();
        // SAFETY: the headers point to names and slots of the sizes that they tell, which `self` owns and borrows.
        let count = unsafe {
            libc::recvmmsg(
                fd,
                inner.headers.as_mut_ptr(),
                (MEMORY_SIZE / size) as _,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            // An attempt that failed may have changed a header, too.
            inner.used = 1;
            return Err(io::Error::last_os_error());
        };
        inner.used = (count + 1).min(COUNT_MAX);
        Ok(count)
    }

    /// The content of a datagram of the last batch, and where it came from.
    pub(crate) fn datagram(&self, index: usize) -> (&[u8], Address) {
        let inner = &*self.0;
        let header = &inner.headers[index];
        let length = (header.msg_len as usize).min(inner.size);
        // SAFETY: the slot is within `memory`, and the kernel has written its first `length` bytes.
        let content = unsafe {
            std::slice::from_raw_parts(inner.memory.as_ptr().add(index * inner.size), length)
        };
        let address = Address::from_kernel(&inner.names[index], header.msg_hdr.msg_namelen);
        (content, address)
    }
}

impl Inner {
    fn prepare(&mut self, size: usize) {
        let memory = self.memory.as_mut_ptr();
        for index in 0..MEMORY_SIZE / size {
            self.pieces[index] = libc::iovec {
                // SAFETY: the slot is within the memory's capacity.
                iov_base: unsafe { memory.add(index * size) }.cast(),
                iov_len: size,
            };
            let header = &mut self.headers[index].msg_hdr;
            header.msg_name = (&raw mut self.names[index]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = &raw mut self.pieces[index];
            header.msg_iovlen = 1;
        }
        self.size = size;
        self.used = 0;
    }
}

fn slot_size(family: c_int) -> usize {
    if family == libc::AF_UNIX {
        UNIX_SIZE
    } else {
        UDP_SIZE
    }
}
