//! Operations in flight: the user's part, and the headers that only the kernel needs.
//!
//! All of it stays at the same address from [`submit`](crate::Driver::submit) to the operation's last completion.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;

use crate::address::SocketAddress;
use crate::op::{DESCRIPTORS_MAX, Op};
use crate::sys;

/// An operation in flight: the user's part, and the headers that only the kernel needs.
///
/// Once the operation is prepared, it is accessed only through the raw pointer in its [`Parked`], because the kernel
/// writes to it.
pub(crate) struct Operation {
    pub(crate) op: Op,
    /// For the epoll backend: whether a connect was started.
    pub(crate) started: bool,
    /// For the `io_uring` backend: whether to use an ordinary send in place of a zero-copy one.
    pub(crate) copies: bool,
    /// Whether opening may wait after all, for another process to release a lease.
    pub(crate) waits_to_open: bool,
    header: libc::msghdr,
    vector: libc::iovec,
    addr: SocketAddress,
    control: Vec<u64>,
}

// SAFETY: the pointers in `header` and `vector` point into the operation itself and are set each time it is prepared.
// Nothing else in it is bound to a thread.
unsafe impl Send for Operation {}

/// An operation on the heap. It does not move, and no Rust reference to it exists while the kernel may write to it.
pub(crate) struct Parked(ptr::NonNull<Operation>);

// SAFETY: a Parked owns its Operation, which is Send.
unsafe impl Send for Parked {}

impl Parked {
    pub(crate) fn new(mut op: Op) -> Parked {
        op.initialise();
        let operation = Operation {
            op,
            started: false,
            copies: false,
            waits_to_open: false,
            // SAFETY: a msghdr consists of integers and pointers, for which all zeroes are valid.
            header: unsafe { mem::zeroed() },
            vector: libc::iovec {
                iov_base: ptr::null_mut(),
                iov_len: 0,
            },
            addr: SocketAddress::empty(),
            control: Vec::new(),
        };
        // SAFETY: a Box's pointer is never null.
        Parked(unsafe { ptr::NonNull::new_unchecked(Box::into_raw(Box::new(operation))) })
    }

    /// The operation. Must not be called while the kernel may write to it.
    pub(crate) fn get_mut(&mut self) -> &mut Operation {
        // SAFETY: the pointer came from a Box that this Parked owns. The backends call this only before the operation
        // is submitted and after its last completion (or in between for a multishot accept, which has no memory, and a
        // zero-copy send, whose bytes the kernel only reads).
        unsafe { self.0.as_mut() }
    }

    /// The user's part, to release its file.
    fn op_in_flight(&mut self) -> &mut Op {
        // SAFETY: the pointer came from a Box that this Parked owns. The kernel may write meanwhile to what `op` points
        // to and to its neighbours, but not to `op` itself.
        unsafe { &mut (*self.0.as_ptr()).op }
    }

    /// Releases the socket that the operation works on. Call it only after the kernel has looked the socket up, and
    /// only if nobody will take the operation.
    pub(crate) fn release_socket(&mut self) {
        let op = self.op_in_flight();
        if op.is_on_socket()
            && let Some(fd) = op.file_mut()
        {
            fd.release();
        }
    }

    pub(crate) fn into_op(self) -> Op {
        // SAFETY: the pointer came from Box::into_raw, and `self` is forgotten, so that it is freed once.
        let operation = unsafe { Box::from_raw(self.0.as_ptr()) };
        mem::forget(self);
        operation.op
    }

    /// Leaks the memory, because the kernel may still write to it. The file is released: the kernel has a reference to
    /// it, or will never look it up.
    pub(crate) fn leak(mut self) {
        if let Some(fd) = self.op_in_flight().file_mut() {
            fd.release();
        }
        mem::forget(self);
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        // SAFETY: the pointer came from Box::into_raw and nobody else frees it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The size of a control message with `count` descriptors, in words, so that it is aligned for a cmsghdr.
fn control_words(count: usize) -> usize {
    // SAFETY: CMSG_SPACE only computes.
    let bytes = unsafe { libc::CMSG_SPACE((count * size_of::<RawFd>()) as libc::c_uint) } as usize;
    bytes.div_ceil(size_of::<u64>())
}

impl Operation {
    /// The header for recvmsg or sendmsg. It and what it points to are valid as long as the operation lives, does not
    /// move, and its message is not changed.
    pub(crate) fn message_header(&mut self) -> *mut libc::msghdr {
        let (receive, message) = match &mut self.op {
            Op::RecvMsg { message, .. } => (true, message),
            Op::SendMsg { message, .. } => (false, message),
            _ => return ptr::null_mut(),
        };
        // SAFETY: a msghdr consists of integers and pointers, for which all zeroes are valid.
        self.header = unsafe { mem::zeroed() };
        self.control.clear();
        if receive {
            let spare = message.buffer.spare_capacity_mut();
            self.vector = libc::iovec {
                iov_base: spare.as_mut_ptr().cast(),
                iov_len: spare.len(),
            };
            self.addr = SocketAddress::empty();
            self.header.msg_name = self.addr.as_mut_ptr().cast();
            self.header.msg_namelen = SocketAddress::CAPACITY;
            if message.descriptors_max > 0 {
                self.control.resize(
                    control_words(message.descriptors_max.min(DESCRIPTORS_MAX)),
                    0,
                );
            }
        } else {
            self.vector = libc::iovec {
                iov_base: message.buffer.as_mut_ptr().cast(),
                iov_len: message.buffer.len(),
            };
            if let Some(address) = message.addr {
                self.addr = address;
                self.header.msg_name = self.addr.as_mut_ptr().cast();
                self.header.msg_namelen = address.length();
            }
            if !message.descriptors.is_empty() {
                self.control
                    .resize(control_words(message.descriptors.len()), 0);
            }
        }
        self.header.msg_iov = &raw mut self.vector;
        self.header.msg_iovlen = 1;
        if !self.control.is_empty() {
            self.header.msg_control = self.control.as_mut_ptr().cast();
            self.header.msg_controllen = (self.control.len() * size_of::<u64>()) as _;
        }
        if !receive && !message.descriptors.is_empty() {
            let payload = message.descriptors.len() * size_of::<RawFd>();
            // SAFETY: CMSG_LEN only computes. `header` names control memory that has room for one message of this
            // payload (`control_words`), aligned and zeroed, so CMSG_FIRSTHDR is not null and CMSG_DATA lies within.
            unsafe {
                let first = libc::CMSG_FIRSTHDR(&raw const self.header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(payload as libc::c_uint) as _;
                let data = libc::CMSG_DATA(first).cast::<[u8; size_of::<RawFd>()]>();
                for (index, descriptor) in message.descriptors.iter().enumerate() {
                    data.add(index).write(descriptor.as_raw_fd().to_ne_bytes());
                }
                self.header.msg_controllen = libc::CMSG_SPACE(payload as libc::c_uint) as _;
            }
        }
        &raw mut self.header
    }

    /// Receives or sends the message now. Only for `RecvMsg` and `SendMsg`.
    pub(crate) fn transfer_message(&mut self) -> io::Result<usize> {
        let header = self.message_header();
        // SAFETY: the header was just made and points to memory of this operation.
        unsafe {
            match &self.op {
                Op::RecvMsg { fd, flags, .. } => sys::receive_message(
                    fd.as_raw_fd(),
                    header,
                    flags | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC,
                ),
                Op::SendMsg { fd, flags, .. } => sys::send_message(
                    fd.as_raw_fd(),
                    header,
                    flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                ),
                _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            }
        }
    }

    /// Starts connecting now. Only for `Connect`.
    pub(crate) fn connect(&mut self) -> io::Result<()> {
        let Op::Connect { fd, addr } = &self.op else {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        };
        // SAFETY: the address lives in the operation and is as long as it says.
        unsafe { sys::connect(fd.as_raw_fd(), addr.as_ptr(), addr.length()) }
    }

    /// The flags to open with. Only for `OpenAt`.
    pub(crate) fn open_flags(&self) -> i32 {
        let Op::OpenAt { flags, .. } = self.op else {
            return 0;
        };
        let patience = if self.waits_to_open {
            0
        } else {
            libc::O_NONBLOCK
        };
        flags | libc::O_CLOEXEC | patience
    }

    /// Whether opening failed because it would have to wait for another process to release a lease (fcntl(2)). The next
    /// try then waits.
    pub(crate) fn opens_again(&mut self, result: i32) -> bool {
        let again = matches!(self.op, Op::OpenAt { flags, .. } if flags & libc::O_NONBLOCK == 0)
            && result == -libc::EAGAIN
            && !self.waits_to_open;
        self.waits_to_open |= again;
        again
    }

    /// Sets the flags of an opened file to those that the user asked for.
    pub(crate) fn finish_opening(&self, result: i32) {
        if let Op::OpenAt { flags, .. } = self.op
            && result >= 0
            && flags & (libc::O_NONBLOCK | libc::O_PATH) == 0
        {
            sys::set_status_flags(result, flags);
        }
    }

    /// Gives up the descriptor to close, which the kernel closes by its number. Only for `Close`, once.
    pub(crate) fn hand_over(&mut self) -> Option<RawFd> {
        match &mut self.op {
            Op::Close { fd } => fd.take().map(IntoRawFd::into_raw_fd),
            _ => None,
        }
    }

    /// Does the kernel's part for a script: received bytes are zeroes, and a descriptor to close is closed.
    #[cfg(feature = "test-util")]
    pub(crate) fn play(&mut self) {
        let buffer = match &mut self.op {
            Op::Recv { buffer, .. } | Op::Read { buffer, .. } => buffer,
            Op::RecvMsg { message, .. } => &mut message.buffer,
            Op::Close { fd } => return drop(fd.take()),
            _ => return,
        };
        buffer.spare_capacity_mut().fill(mem::MaybeUninit::new(0));
    }

    /// Updates the user's part with what the kernel has written, after the last completion.
    pub(crate) fn settle(&mut self, result: i32) {
        if let Op::Close { fd } = &mut self.op {
            // It is still open if the operation was cancelled early.
            drop(fd.take());
        }
        let Ok(count) = usize::try_from(result) else {
            return;
        };
        match &mut self.op {
            Op::Recv { buffer, .. } | Op::Read { buffer, .. } => grow(buffer, count),
            Op::RecvMsg { message, .. } => {
                grow(&mut message.buffer, count);
                message.flags = self.header.msg_flags;
                self.addr.set_length(self.header.msg_namelen);
                message.addr = (self.addr.length() > 0).then_some(self.addr);
                receive_descriptors(&self.header, &mut message.descriptors);
            }
            _ => {}
        }
    }
}

/// Grows the buffer's length by `count`, at most to its capacity. With `MSG_TRUNC` the count may be larger than the
/// room.
fn grow(buffer: &mut Vec<u8>, count: usize) {
    let length = buffer.len().saturating_add(count).min(buffer.capacity());
    // SAFETY: the length is within the capacity. The kernel has filled the bytes that it counts, except with MSG_TRUNC,
    // and then `Op::initialise` has zeroed them.
    unsafe { buffer.set_len(length) };
}

/// A control message with a descriptor of the sending process, on sockets with `SO_PASSPIDFD` (Linux 6.5).
const SCM_PIDFD: i32 = 4;

/// Takes over the descriptors that a received message carries.
fn receive_descriptors(header: &libc::msghdr, descriptors: &mut Vec<OwnedFd>) {
    // SAFETY: the kernel has filled the control memory that the header names, and says in msg_controllen how much of
    // it; the CMSG macros stay within that, and the kernel's lengths do. Each descriptor is new and nobody else's.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while !control.is_null() {
            let kind = (*control).cmsg_type;
            if (*control).cmsg_level == libc::SOL_SOCKET
                && (kind == libc::SCM_RIGHTS || kind == SCM_PIDFD)
            {
                let data = libc::CMSG_DATA(control).cast::<[u8; size_of::<RawFd>()]>();
                let payload = (*control).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for index in 0..payload / size_of::<RawFd>() {
                    let fd = RawFd::from_ne_bytes(data.add(index).read());
                    let descriptor = (fd >= 0).then(|| OwnedFd::from_raw_fd(fd));
                    // The process is not wanted, so its descriptor is closed.
                    descriptors.extend(descriptor.filter(|_| kind == libc::SCM_RIGHTS));
                }
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
}
