//! Opening by openat2(2): what it has that open(2) has not, above all names that do not lead out of a folder.

#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::mounts;
use crate::objects;
use crate::support;

/// Opens a regular file below a folder for reading: the descriptor. No symbolic link may lead out of the folder, whatever
/// is renamed meanwhile; an absolute one always does. If `is_cached`, only what is in the directory cache is opened, and
/// `BlockingIOError` raised for the rest; otherwise this may wait for a disk, without the GIL.
#[pyfunction]
#[pyo3(name = "_open_beneath", signature = (folder, path, is_cached, /))]
fn open_beneath(py: Python<'_>, folder: &[u8], path: &[u8], is_cached: bool) -> PyResult<RawFd> {
    let null = |_| objects::error::<PyValueError>(py, "embedded null byte");
    let folder = CString::new(folder).map_err(null)?;
    let path = CString::new(path).map_err(null)?;
    let opened = if is_cached {
        open(&folder, &path, true)
    } else {
        py.detach(|| open(&folder, &path, false))
    };
    match opened {
        Ok(fd) => Ok(fd.into_raw_fd()),
        Err(error) => Err(support::os_error(py, &error)),
    }
}

fn open(folder: &CString, path: &CString, is_cached: bool) -> io::Result<OwnedFd> {
    let cached = if is_cached { libc::RESOLVE_CACHED } else { 0 };
    let beneath = cached | libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS;
    let in_error = |error: io::Error| match error.raw_os_error() {
        // Linux before 5.12 doesn't know RESOLVE_CACHED.
        Some(libc::EINVAL) if is_cached => io::Error::from_raw_os_error(libc::EAGAIN),
        _ => error,
    };
    let at_folder = libc::O_PATH | libc::O_DIRECTORY;
    let folder = openat2(libc::AT_FDCWD, folder, at_folder, cached).map_err(in_error)?;
    let at = |flags| openat2(folder.as_raw_fd(), path, flags, beneath).map_err(in_error);
    // Opening a FIFO or a device may wait, and has effects. So the file is looked at first. If it is replaced meanwhile,
    // O_NONBLOCK keeps the open from waiting.
    let glance = mounts::glance(at(libc::O_PATH)?.as_raw_fd());
    if !glance.as_ref().is_some_and(|glance| glance.is_regular) {
        let is_folder = at(libc::O_PATH | libc::O_DIRECTORY).is_ok();
        let code = if is_folder {
            libc::EISDIR
        } else {
            libc::EACCES
        };
        return Err(io::Error::from_raw_os_error(code));
    }
    if is_cached && glance.is_some_and(|glance| glance.is_remote) {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    let file = at(libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY)?;
    match mounts::glance(file.as_raw_fd()) {
        Some(glance) if glance.is_regular => Ok(file),
        _ => Err(io::Error::from_raw_os_error(libc::EACCES)),
    }
}

/// `openat2(2)`, with the flag that closes the descriptor in programs that this one becomes.
pub(super) fn openat2(
    folder: RawFd,
    path: &CString,
    flags: i32,
    resolve: u64,
) -> io::Result<OwnedFd> {
    // SAFETY: the struct is plain data, for which zeros are right; the path ends with a NUL.
    let result = unsafe {
        let mut how: libc::open_how = mem::zeroed();
        how.flags = (flags | libc::O_CLOEXEC) as u64;
        how.resolve = resolve;
        libc::syscall(
            libc::SYS_openat2,
            folder,
            path.as_ptr(),
            &raw const how,
            mem::size_of::<libc::open_how>(),
        )
    };
    match RawFd::try_from(result) {
        // SAFETY: the descriptor was just opened, and nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(open_beneath, module)?)
}
