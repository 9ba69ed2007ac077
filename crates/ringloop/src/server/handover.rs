//! Handing the listening sockets over to a new process of the program, so that it is restarted without losing a connection.
//!
//! The old process listens on a Unix socket. The new one connects to it, receives the listening sockets, and accepts
//! connections from them. It then takes the place of the Unix socket, and says so, whereupon the old process drains. Until
//! then, either of them may fail, and the other one goes on.

use std::fs;
use std::io::{self, Read, Write};
use std::mem;
use std::net::TcpListener as StdListener;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use socket2::SockRef;

use super::service::Service;
use crate::sys;

/// How long the process at the other end may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// How often a process that has handed its sockets over checks whether it is to end meanwhile.
const TICK: Duration = Duration::from_millis(100);

/// Says that the new process serves.
const READY: u8 = b'r';

/// The process that the sockets were taken from, and that still serves.
#[derive(Debug)]
struct Predecessor {
    link: UnixStream,
}

impl Predecessor {
    /// Takes the listening sockets of the process that offers them at a path. `None` if there is none.
    fn find(path: &Path) -> io::Result<Option<(Vec<StdListener>, Self)>> {
        let mut link = match UnixStream::connect(path) {
            Ok(link) => link,
            Err(error) if is_nobody(&error) => return Ok(None),
            Err(error) => return Err(at(path, &error)),
        };
        let listeners = receive(&mut link).map_err(|error| at(path, &error))?;
        Ok(Some((listeners, Self { link })))
    }

    /// Lets it end.
    fn release(mut self) {
        // If it is gone, it has ended.
        let _ = self.link.write_all(&[READY]);
    }
}

fn receive(link: &mut UnixStream) -> io::Result<Vec<StdListener>> {
    check_user(link)?;
    link.set_read_timeout(Some(ANSWER_MAX))?;
    let mut count = [0; 4];
    link.read_exact(&mut count)?;
    let count = u32::from_le_bytes(count) as usize;
    let received = sys::receive_descriptors(link.as_fd(), count)?;
    Ok(received.into_iter().map(StdListener::from).collect())
}

/// What a server needs to be restarted without losing a connection.
#[derive(Debug)]
pub(super) struct Restart {
    path: PathBuf,
    predecessor: Option<Predecessor>,
}

impl Restart {
    /// Takes the listening sockets of the process that runs, if there is one.
    pub(super) fn begin(path: PathBuf) -> io::Result<(Self, Vec<StdListener>)> {
        let (sockets, predecessor) = Predecessor::find(&path)?.unzip();
        let restart = Self { path, predecessor };
        Ok((restart, sockets.unwrap_or_default()))
    }

    /// Ends the process that ran before, and offers the sockets of this one to the next. The server accepts from them.
    pub(super) fn offer(
        self,
        service: &mut Service,
        succeeded: impl FnOnce() + Send + 'static,
    ) -> io::Result<Offer> {
        let sockets = mem::take(&mut service.sockets);
        let has_successor = Arc::clone(&service.has_successor);
        let offer = Offer::new(&self.path, sockets, has_successor, succeeded)?;
        if let Some(predecessor) = self.predecessor {
            predecessor.release();
        }
        Ok(offer)
    }
}

/// Offers the listening sockets to a successor, in a thread of its own, until it is stopped.
#[derive(Debug)]
pub(super) struct Offer {
    place: Place,
    listener: UnixListener,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Offer {
    /// `has_successor` is set while another process may accept from the sockets. `succeeded` is called when one does.
    fn new(
        path: &Path,
        sockets: Vec<StdListener>,
        has_successor: Arc<AtomicBool>,
        succeeded: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let (place, listener) = Place::take(path).map_err(|error| at(path, &error))?;
        let waiting = listener.try_clone()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = thread::Builder::new()
            .name("ringloop-handover".to_owned())
            .spawn(move || {
                while let Ok((link, _)) = waiting.accept() {
                    if ends.load(Ordering::Acquire) {
                        return;
                    }
                    has_successor.store(true, Ordering::Release);
                    match hand_over(link, &sockets, &ends) {
                        Ok(true) => return succeeded(),
                        // It is to end while the new process begins, which has the sockets, and may use them.
                        Ok(false) => return,
                        // It is gone, or was none.
                        Err(_) => has_successor.store(false, Ordering::Release),
                    }
                }
            })?;
        Ok(Self {
            place,
            listener,
            is_over,
            thread,
        })
    }

    /// Stops offering, and removes the Unix socket, unless it is the successor's by now.
    pub(super) fn stop(self) {
        self.is_over.store(true, Ordering::Release);
        // Ends its wait.
        let _ = SockRef::from(&self.listener).shutdown(std::net::Shutdown::Both);
        drop(self.place);
        let _ = self.thread.join();
    }
}

/// Returns true if the new process serves, and false if this one is to end before that.
fn hand_over(
    mut link: UnixStream,
    sockets: &[StdListener],
    is_over: &AtomicBool,
) -> io::Result<bool> {
    check_user(&link)?;
    link.set_write_timeout(Some(ANSWER_MAX))?;
    let count = u32::try_from(sockets.len()).unwrap_or(u32::MAX);
    link.write_all(&count.to_le_bytes())?;
    let lent: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    sys::send_descriptors(link.as_fd(), &lent)?;
    // It may take long to start.
    link.set_read_timeout(Some(TICK))?;
    let mut answer = [0];
    loop {
        match link.read(&mut answer) {
            Ok(1) if answer[0] == READY => return Ok(true),
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if is_timeout(&error) => {
                if is_over.load(Ordering::Acquire) {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// The path of a Unix socket of ours.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    /// Its device and inode.
    identity: (u64, u64),
}

impl Place {
    /// Binds a socket, and puts it in the place of whatever socket is there.
    fn take(path: &Path) -> io::Result<(Self, UnixListener)> {
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "there is a file that is no socket",
                ));
            }
            _ => {}
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}", process::id()));
        let temporary = PathBuf::from(temporary);
        let listener = UnixListener::bind(&temporary)?;
        // Removes it, should the rest fail.
        let mut place = Self {
            identity: identify(&temporary)?,
            path: temporary,
        };
        // Each end also checks the other one's user.
        fs::set_permissions(&place.path, fs::Permissions::from_mode(0o600))?;
        fs::rename(&place.path, path)?;
        path.clone_into(&mut place.path);
        Ok((place, listener))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if identify(&self.path).is_ok_and(|identity| identity == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identify(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Nobody else may take the sockets, or pass some to us.
fn check_user(link: &UnixStream) -> io::Result<()> {
    let (_, user, _) = sys::peer_credentials(link.as_fd())?;
    if user == sys::user() {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("the process at the other end belongs to user {user}"),
    ))
}

/// Whether nobody listens at a path.
fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
