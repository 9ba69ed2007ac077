//! The paths of Unix sockets that a server listens on.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Removes the path of a socket when it is dropped, unless it is another file by now, another process has taken the socket
/// over, or this is a child after fork(2).
#[derive(Debug)]
pub(super) struct PathGuard {
    path: PathBuf,
    /// Its device and inode.
    identity: (u64, u64),
    has_successor: Arc<AtomicBool>,
    process: u32,
}

impl PathGuard {
    /// Removes a socket that is at a path, so that another one can be bound there, and returns its permissions. Leaves
    /// anything else: binding will fail.
    pub(super) fn make_way(path: &Path) -> io::Result<Option<u32>> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                fs::remove_file(path)?;
                Ok(Some(found.permissions().mode() & 0o7777))
            }
            _ => Ok(None),
        }
    }

    /// For the socket that is bound there.
    pub(super) fn new(path: &Path, has_successor: Arc<AtomicBool>) -> io::Result<Self> {
        // The working directory may be another one at the end.
        let path = std::path::absolute(path)?;
        Ok(Self {
            identity: identify(&path)?,
            path,
            has_successor,
            process: process::id(),
        })
    }
}

impl Drop for PathGuard {
    fn drop(&mut self) {
        let is_ours = self.process == process::id() && !self.has_successor.load(Ordering::Acquire);
        if is_ours && identify(&self.path).is_ok_and(|identity| identity == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The device and the inode of a file.
pub(super) fn identify(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}
