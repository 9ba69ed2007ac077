//! Descriptors that come from other processes, or go to them.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first descriptor that is passed by `LISTEN_FDS`, see `sd_listen_fds(3)`.
const FIRST_INHERITED: RawFd = 3;

/// How many descriptors fit into one message (`SCM_MAX_FD`), see `unix(7)`.
const DESCRIPTORS_PER_MESSAGE: usize = 253;

/// The user that this process acts as, see `geteuid(2)`.
pub(crate) fn user() -> u32 {
    // SAFETY: it accesses no memory, and cannot fail.
    unsafe { libc::geteuid() }
}

/// Takes the descriptors that were passed to this process by `LISTEN_FDS` and `LISTEN_PID`; none once they are taken.
/// After an error, they are not.
pub(crate) fn inherited_descriptors() -> io::Result<Vec<OwnedFd>> {
    static ARE_TAKEN: AtomicBool = AtomicBool::new(false);
    let is_ours = env::var("LISTEN_PID").is_ok_and(|id| id.parse() == Ok(process::id()));
    let Some(count) = env::var_os("LISTEN_FDS").filter(|_| is_ours) else {
        return Ok(Vec::new());
    };
    if ARE_TAKEN.swap(true, Ordering::AcqRel) {
        return Ok(Vec::new());
    }
    let taken = take_inherited(&count);
    if taken.is_err() {
        ARE_TAKEN.store(false, Ordering::Release);
    }
    taken
}

/// Checks all of the descriptors before any of them is changed.
fn take_inherited(count: &OsStr) -> io::Result<Vec<OwnedFd>> {
    let count = count.to_str().and_then(|count| count.parse::<u16>().ok());
    let count = count.map(RawFd::from);
    let Some(end) = count.and_then(|count| FIRST_INHERITED.checked_add(count)) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "LISTEN_FDS is not a number of descriptors",
        ));
    };
    for descriptor in FIRST_INHERITED..end {
        // SAFETY: it accesses no memory, and changes nothing.
        if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("descriptor {descriptor} of LISTEN_FDS is not open"),
            ));
        }
    }
    for descriptor in FIRST_INHERITED..end {
        // SAFETY: it accesses no memory, and changes only a flag of what LISTEN_FDS says is for this process.
        unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: they are open, and whoever has started this process for it has passed them to it. The flag lets nobody else
    // take them from here.
    Ok((FIRST_INHERITED..end)
        .map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) })
        .collect())
}

/// The bytes of a message's descriptors, with the alignment that they need.
fn control_words(descriptors: usize) -> Vec<u64> {
    // SAFETY: it computes with a number.
    let bytes = unsafe { libc::CMSG_SPACE((descriptors * size_of::<RawFd>()) as u32) } as usize;
    vec![0; bytes.div_ceil(size_of::<u64>())]
}

/// A message of one byte, with room for descriptors.
fn message(byte: &mut libc::iovec, control: &mut [u64]) -> libc::msghdr {
    // SAFETY: a msghdr consists of numbers and pointers, for which all zeroes are valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = byte;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = mem::size_of_val(control) as _;
    message
}

/// Sends descriptors over a Unix stream socket that blocks. The receiver must know how many there are.
pub(crate) fn send_descriptors(
    socket: BorrowedFd<'_>,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    for some in descriptors.chunks(DESCRIPTORS_PER_MESSAGE) {
        let mut byte = 0_u8;
        let mut vector = libc::iovec {
            iov_base: ptr::from_mut(&mut byte).cast(),
            iov_len: 1,
        };
        let bytes = mem::size_of_val(some) as u32;
        let mut control = control_words(some.len());
        let mut message = message(&mut vector, &mut control);
        // SAFETY: `control` has the space for one header with this many descriptors. So the header is inside of it, and so
        // are the descriptors, which CMSG_DATA says where to write.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let numbers: Vec<RawFd> = some.iter().map(AsRawFd::as_raw_fd).collect();
            let data = libc::CMSG_DATA(header);
            ptr::copy_nonoverlapping(numbers.as_ptr().cast(), data, bytes as usize);
        }
        loop {
            // SAFETY: the message's pointers are valid for the call, and the descriptors are open.
            let sent = unsafe {
                libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
            };
            if sent >= 0 {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Receives this many descriptors from a Unix stream socket that blocks.
pub(crate) fn receive_descriptors(
    socket: BorrowedFd<'_>,
    count: usize,
) -> io::Result<Vec<OwnedFd>> {
    let mut received = Vec::new();
    while received.len() < count {
        let mut byte = 0_u8;
        let mut vector = libc::iovec {
            iov_base: ptr::from_mut(&mut byte).cast(),
            iov_len: 1,
        };
        let mut control = control_words(DESCRIPTORS_PER_MESSAGE);
        let mut message = message(&mut vector, &mut control);
        // SAFETY: the message's pointers are valid for the call.
        let bytes =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        if bytes < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        let before = received.len();
        // SAFETY: the kernel has filled in the headers, and CMSG_FIRSTHDR and CMSG_NXTHDR return only those that are inside
        // of `control`. Each descriptor is a new one that nobody else owns.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&raw const message);
            while let Some(found) = header.as_ref() {
                if found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_RIGHTS {
                    #[allow(clippy::unnecessary_cast, reason = "not every C library has this type")]
                    let bytes = found.cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                    let mut numbers: Vec<RawFd> = vec![-1; bytes / size_of::<RawFd>()];
                    let data = libc::CMSG_DATA(header);
                    ptr::copy_nonoverlapping(data, numbers.as_mut_ptr().cast(), bytes);
                    for number in numbers {
                        received.push(OwnedFd::from_raw_fd(number));
                    }
                }
                header = libc::CMSG_NXTHDR(&raw const message, header);
            }
        }
        let is_truncated = message.msg_flags & libc::MSG_CTRUNC != 0;
        if is_truncated || received.len() == before {
            // They were lost, for want of descriptors, or never came.
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("only {} of {count} descriptors arrived", received.len()),
            ));
        }
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    #[test]
    fn any_number_of_descriptors_arrives_in_order() {
        for count in [1, 253, 254, 600] {
            let (near, far) = UnixStream::pair().unwrap();
            let sent: Vec<_> = (0..count).map(|_| UnixStream::pair().unwrap().0).collect();
            let receiving = thread::spawn(move || receive_descriptors(far.as_fd(), count).unwrap());
            let lent: Vec<_> = sent.iter().map(AsFd::as_fd).collect();
            send_descriptors(near.as_fd(), &lent).unwrap();
            let received = receiving.join().unwrap();
            let inode = |descriptor: BorrowedFd<'_>| {
                let file = std::fs::File::from(descriptor.try_clone_to_owned().unwrap());
                file.metadata().unwrap().ino()
            };
            assert_eq!(received.len(), count);
            for (sent, received) in lent.iter().zip(&received) {
                assert_eq!(inode(*sent), inode(received.as_fd()));
                // SAFETY: accesses no memory.
                let flags = unsafe { libc::fcntl(received.as_raw_fd(), libc::F_GETFD) };
                assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
            }
        }
    }

    #[test]
    fn who_sends_none_is_found_out() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(near);
        let error = receive_descriptors(far.as_fd(), 2).unwrap_err();
        assert_eq!(error.to_string(), "only 0 of 2 descriptors arrived");
    }
}
