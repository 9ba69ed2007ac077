//! Which files are on file systems that have to ask somebody: a server, or another process.
//!
//! Such a file system may take long even for open(2), fstat(2) and close(2), and statfs(2), which would tell what it is.
//! statx(2) does not wait if it is told so, and says on which mount the file is. The kernel has a list of these.

#![allow(unsafe_code)]

use std::fs;
use std::mem;
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

/// linux/stat.h, since Linux 6.8: the mount's number in `stx_mnt_id` is never used again.
const STATX_MNT_ID_UNIQUE: u32 = 0x4000;

/// File systems on which any call may wait. FUSE's are called "fuse", "fuseblk", or "fuse." and a name.
const REMOTE: [&str; 16] = [
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "gpfs", "lustre", "nfs", "nfs4",
    "ocfs2", "orangefs", "smb3", "vboxsf", "virtiofs",
];

/// The mounts that were looked up, and whether they are remote. Before Linux 6.8, the number of one that is unmounted is given
/// to the next mount, and the answer is then that of the old one.
static KNOWN: Mutex<Vec<(u64, bool)>> = Mutex::new(Vec::new());
const KNOWN_MAX: usize = 64;

/// The properties of an open file that are known without asking anybody.
#[derive(Clone, Copy)]
pub(super) struct Glance {
    pub(super) is_regular: bool,
    /// Calls on it may wait that otherwise do not.
    pub(super) is_remote: bool,
}

/// Looks at an open file. None if it is not open, or if the kernel refuses.
pub(super) fn glance(fd: RawFd) -> Option<Glance> {
    let status = statx(fd, libc::STATX_TYPE | STATX_MNT_ID_UNIQUE)?;
    let is_regular = u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    Some(Glance {
        is_regular,
        // Before Linux 5.8, nobody knows.
        is_remote: is_regular
            && status.stx_mask & (STATX_MNT_ID_UNIQUE | libc::STATX_MNT_ID) != 0
            && is_remote(fd, status.stx_mnt_id),
    })
}

fn statx(fd: RawFd, mask: u32) -> Option<libc::statx> {
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path is empty, and the struct plain data and large enough. musl has the function only since 1.2.5.
    let (result, status) = unsafe {
        let mut status: libc::statx = mem::zeroed();
        let result = libc::syscall(
            libc::SYS_statx,
            fd,
            c"".as_ptr(),
            flags,
            mask,
            &raw mut status,
        );
        (result, status)
    };
    (result == 0).then_some(status)
}

fn is_remote(fd: RawFd, mount: u64) -> bool {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&(_, is_remote)) = known.iter().find(|entry| entry.0 == mount) {
        return is_remote;
    }
    let Some(status) = statx(fd, libc::STATX_MNT_ID) else {
        return false;
    };
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    let is_remote = mounts
        .lines()
        .find_map(|line| kind_of(line, status.stx_mnt_id))
        .is_some_and(|kind| REMOTE.contains(&kind) || kind.starts_with("fuse"));
    if known.len() == KNOWN_MAX {
        known.clear();
    }
    known.push((mount, is_remote));
    is_remote
}

/// The kind of file system in a line of mountinfo, if the line is about this mount; see proc_pid_mountinfo(5).
fn kind_of(line: &str, mount: u64) -> Option<&str> {
    let mut fields = line.split(' ');
    if fields.next()?.parse() != Ok(mount) {
        return None;
    }
    fields.find(|&field| field == "-")?;
    fields.next()
}

/// Whether an open file is a regular one, and whether calls on it may wait that otherwise do not. None if nobody knows.
#[pyfunction]
#[pyo3(name = "_glance_at_file", signature = (fd, /))]
fn glance_at_file(fd: RawFd) -> Option<(bool, bool)> {
    glance(fd).map(|glance| (glance.is_regular, glance.is_remote))
}

pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(glance_at_file, module)?)
}
