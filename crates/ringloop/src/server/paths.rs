//! The paths of Unix sockets that a server listens on.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The device and the inode of a file.
pub(super) type Identity = (u64, u64);

/// The file of a socket at a path. While it is held, no other file can have its identity.
#[derive(Debug)]
pub(super) struct SocketFile {
    /// It has only the file's place, and cannot be read (`O_PATH`).
    file: File,
    pub(super) identity: Identity,
}

impl SocketFile {
    /// Fails if something other than a socket is there, such as a link.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
            .open(path)?;
        let found = file.metadata()?;
        if !found.file_type().is_socket() {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "something other than a socket is there",
            ));
        }
        Ok(Self {
            identity: (found.dev(), found.ino()),
            file,
        })
    }

    /// Whether this is what is at a path now.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
    }

    /// Changes the permissions of this very file, whatever is at the path by now.
    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        // fchmod(2) does not take a descriptor that has only the place.
        let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        fs::set_permissions(file, Permissions::from_mode(mode))
    }

    fn mode(&self) -> io::Result<u32> {
        Ok(self.file.metadata()?.permissions().mode() & 0o7777)
    }
}

/// Removes the path of a socket when it is dropped, unless it is another file by now, another process has taken the socket
/// over, or this is a child after fork(2).
///
/// A socket that was at the path before is kept beside it until the server has [started](Self::settle), and put back if it
/// does not.
#[derive(Debug)]
pub(super) struct PathGuard {
    path: PathBuf,
    /// `None` if nothing is bound there yet.
    file: Option<SocketFile>,
    /// Where the socket is that was there before.
    aside: Option<PathBuf>,
    /// Whether the socket was bound by this server, which has not started yet, so that nobody has taken it over.
    is_new: bool,
    has_successor: Arc<AtomicBool>,
    process: u32,
}

impl PathGuard {
    /// Binds a socket at a path, in place of one that is there, with its permissions unless there are others in `mode`.
    /// `bind` need not listen yet. Leaves anything else that is there: binding will fail.
    pub(super) fn bind<T>(
        path: &Path,
        mode: Option<u32>,
        has_successor: Arc<AtomicBool>,
        bind: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<(Self, T)> {
        let mut guard = Self::at(path, has_successor)?;
        guard.is_new = true;
        let mut before = None;
        if let Ok(found) = SocketFile::open(&guard.path) {
            before = Some(found.mode()?);
            let mut aside = guard.path.as_os_str().to_owned();
            aside.push(format!(".{}-{}", process::id(), found.identity.1));
            let aside = PathBuf::from(aside);
            fs::rename(&guard.path, &aside)?;
            guard.aside = Some(aside);
        }
        let bound = bind()?;
        let file = SocketFile::open(&guard.path).inspect_err(|_| {
            // There may be too few descriptors. It has just been bound.
            let _ = fs::remove_file(&guard.path);
        })?;
        guard
            .file
            .insert(file)
            .set_mode(mode.or(before).unwrap_or(MODE))?;
        Ok((guard, bound))
    }

    /// For the socket with this identity, which is bound there already, or for any one if it is not known. `None` if it is not
    /// there any more.
    pub(super) fn of_bound(
        path: &Path,
        identity: Option<Identity>,
        has_successor: Arc<AtomicBool>,
    ) -> io::Result<Option<Self>> {
        let mut guard = Self::at(path, has_successor)?;
        let file = match SocketFile::open(&guard.path) {
            Ok(file) => file,
            Err(error) if is_elsewhere(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if identity.is_some_and(|identity| identity != file.identity) {
            return Ok(None);
        }
        guard.file = Some(file);
        Ok(Some(guard))
    }

    fn at(path: &Path, has_successor: Arc<AtomicBool>) -> io::Result<Self> {
        Ok(Self {
            // The working directory may be another one at the end.
            path: std::path::absolute(path)?,
            file: None,
            aside: None,
            is_new: false,
            has_successor,
            process: process::id(),
        })
    }

    pub(super) fn identity(&self) -> Option<Identity> {
        self.file.as_ref().map(|file| file.identity)
    }

    /// Changes the permissions of the socket.
    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.file
            .as_ref()
            .map_or(Ok(()), |file| file.set_mode(mode))
    }

    /// The server has started: removes the socket that was there before for good.
    pub(super) fn settle(&mut self) {
        self.is_new = false;
        if let Some(aside) = self.aside.take() {
            let _ = fs::remove_file(aside);
        }
    }
}

impl Drop for PathGuard {
    fn drop(&mut self) {
        let is_anothers = !self.is_new && self.has_successor.load(Ordering::Acquire);
        if self.process != process::id() || is_anothers {
            return;
        }
        let file = mem::take(&mut self.file);
        if file.is_some_and(|file| file.is_at(&self.path)) {
            let _ = fs::remove_file(&self.path);
        }
        if let Some(aside) = self.aside.take() {
            // Not over the socket of somebody who was faster.
            let _ = match fs::symlink_metadata(&self.path) {
                Ok(_) => fs::remove_file(aside),
                Err(_) => fs::rename(aside, &self.path),
            };
        }
    }
}

/// The permissions of a new socket: everybody may connect who may enter its folder.
const MODE: u32 = 0o666;

/// Whether there is no socket at a path.
fn is_elsewhere(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists
    )
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    /// A folder of one test, removed with this.
    pub(in crate::server) struct Folder(pub(in crate::server) PathBuf);

    impl Folder {
        pub(in crate::server) fn new(test: &str) -> Self {
            let name = format!("ringloop-paths-{}-{test}", process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn bind(path: &Path, has_successor: bool) -> (PathGuard, UnixListener) {
        let has_successor = Arc::new(AtomicBool::new(has_successor));
        PathGuard::bind(path, None, has_successor, || UnixListener::bind(path)).unwrap()
    }

    #[test]
    fn what_was_there_comes_back_unless_the_server_has_started() {
        let folder = Folder::new("back");
        let path = folder.0.join("socket");
        let before = UnixListener::bind(&path).unwrap();
        let identity = SocketFile::open(&path).unwrap().identity;
        // Before it has started, nobody has taken over what it has bound.
        drop(bind(&path, true));
        assert_eq!(SocketFile::open(&path).unwrap().identity, identity);
        UnixStream::connect(&path).unwrap();
        PathGuard::bind(&path, None, Arc::default(), || {
            Err::<(), _>(io::Error::from(io::ErrorKind::OutOfMemory))
        })
        .unwrap_err();
        UnixStream::connect(&path).unwrap();
        drop(before);
        let (mut guard, _listener) = bind(&path, false);
        guard.settle();
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        drop(guard);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    }

    #[test]
    fn a_socket_that_is_bound_later_is_never_taken_for_the_servers() {
        let folder = Folder::new("later");
        let path = folder.0.join("socket");
        for _ in 0..20 {
            let (mut guard, listener) = bind(&path, false);
            guard.settle();
            let identity = guard.identity();
            drop(listener);
            // Its inode would be free from here on.
            fs::remove_file(&path).unwrap();
            let _later = UnixListener::bind(&path).unwrap();
            let found = PathGuard::of_bound(&path, identity, Arc::default());
            assert!(found.unwrap().is_none());
            drop(guard);
            fs::remove_file(&path).expect("it is another one's");
        }
        let nothing = PathGuard::of_bound(&path, None, Arc::default());
        assert!(nothing.unwrap().is_none());
    }

    #[test]
    fn permissions_are_those_of_the_socket_and_not_of_what_has_taken_its_path() {
        let folder = Folder::new("mode");
        let (path, aside) = (folder.0.join("socket"), folder.0.join("aside"));
        let target = folder.0.join("target");
        fs::write(&target, "private").unwrap();
        fs::set_permissions(&target, Permissions::from_mode(0o600)).unwrap();
        let _listener = UnixListener::bind(&path).unwrap();
        let file = SocketFile::open(&path).unwrap();
        fs::rename(&path, &aside).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        file.set_mode(0o666).unwrap();
        let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&target), mode(&aside)), (0o600, 0o666));
        SocketFile::open(&path).expect_err("it is a link");
    }
}
