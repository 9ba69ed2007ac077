//! Handing the listening sockets over to a new process of the program, so that it is restarted without losing a connection.
//!
//! The old process listens on a Unix socket. The new one connects to it, receives the listening sockets, and accepts
//! connections from them. It then takes the place of the Unix socket, and says so, whereupon the old process drains. Until
//! then, either of them may fail, and the other one goes on.

use std::fs;
use std::io::{self, Read, Write};
use std::mem;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::{SockRef, Socket};

use super::listeners::Listening;
use super::paths::SocketFile;
use super::service::Service;
use crate::sys;

/// How long the process at the other end may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// How often to check whether the process is to end meanwhile, and to try again.
const TICK: Duration = Duration::from_millis(50);

/// The words of the new process: that it wants the sockets, and that it serves.
const TAKE: u8 = b't';
const READY: u8 = b'r';

/// The means of restarting a server without losing a connection.
#[derive(Debug)]
pub(super) struct Restart {
    path: PathBuf,
    predecessor: Option<UnixStream>,
    place: Place,
    listener: UnixListener,
}

impl Restart {
    /// Takes the listening sockets of the process that runs, if there is one.
    pub(super) fn begin(path: PathBuf) -> io::Result<(Self, Vec<Listening>)> {
        let (place, listener) = Place::bind_beside(&path).map_err(|error| at(&path, &error))?;
        let (predecessor, taken) = find(&path).map_err(|error| at(&path, &error))?.unzip();
        let restart = Self {
            path,
            predecessor,
            place,
            listener,
        };
        Ok((restart, taken.unwrap_or_default()))
    }

    /// Ends the process that ran before, and offers the sockets of this one to the next, in a thread. The server accepts
    /// from them already. `succeeded` is called when the next process does. If this fails, the process that ran before goes on.
    pub(super) fn offer(
        self,
        service: &mut Service,
        succeeded: impl FnOnce() + Send + 'static,
    ) -> io::Result<Offer> {
        let Self {
            path,
            predecessor,
            mut place,
            listener,
        } = self;
        let offering = Offering {
            listener: listener.try_clone()?,
            sockets: mem::take(&mut service.sockets),
            has_successor: Arc::clone(&service.has_successor),
            is_over: Arc::default(),
        };
        let has_successor = Arc::clone(&offering.has_successor);
        has_successor.store(predecessor.is_some(), Ordering::Release);
        let mut offer = Offer {
            listener,
            is_over: Arc::clone(&offering.is_over),
            place: None,
            thread: None,
        };
        let thread = thread::Builder::new().name("ringloop-handover".to_owned());
        offer.thread = Some(thread.spawn(move || offering.run(succeeded))?);
        // From here on, the next process finds this one. Nothing fails any more.
        place.move_to(&path).map_err(|error| at(&path, &error))?;
        offer.place = Some(place);
        if let Some(mut predecessor) = predecessor {
            // If it is gone, it has ended.
            let _ = predecessor.write_all(&[READY]);
            has_successor.store(false, Ordering::Release);
        }
        service.settle();
        Ok(offer)
    }
}

/// Takes the listening sockets of the process that offers them at a path. `None` if there is none. It goes on until it is
/// told that this one is ready.
fn find(path: &Path) -> io::Result<Option<(UnixStream, Vec<Listening>)>> {
    let start = Instant::now();
    loop {
        let link = match UnixStream::connect(path) {
            Ok(link) => link,
            Err(error) if is_nobody(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        match take(link) {
            // It ends, or has another successor, with which to try again.
            Err(error) if is_gone(&error) && start.elapsed() < ANSWER_MAX => thread::sleep(TICK),
            Err(error) if is_timeout(&error) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the process that runs does not answer",
                ));
            }
            taken => return taken.map(Some),
        }
    }
}

fn take(mut link: UnixStream) -> io::Result<(UnixStream, Vec<Listening>)> {
    check_user(&link)?;
    link.set_read_timeout(Some(ANSWER_MAX))?;
    link.write_all(&[TAKE])?;
    let mut count = [0; 4];
    link.read_exact(&mut count)?;
    let mut notes = vec![[0; NOTE_BYTES]; u32::from_le_bytes(count) as usize];
    link.read_exact(notes.as_flattened_mut())?;
    let received = sys::receive_descriptors(link.as_fd(), notes.len())?;
    let sockets = received.into_iter().zip(&notes);
    let sockets = sockets.map(|(socket, note)| read_note(socket.into(), note));
    Ok((link, sockets.collect()))
}

/// The size of what is said about each socket: whether it is shared, and the device and the inode of its file, or zeroes.
const NOTE_BYTES: usize = 17;

fn note(own: &Listening) -> [u8; NOTE_BYTES] {
    let (device, inode) = own.file.unwrap_or_default();
    let mut note = [0; NOTE_BYTES];
    note[0] = u8::from(own.is_shared);
    note[1..9].copy_from_slice(&device.to_le_bytes());
    note[9..].copy_from_slice(&inode.to_le_bytes());
    note
}

fn read_note(socket: Socket, note: &[u8; NOTE_BYTES]) -> Listening {
    let number = |from: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&note[from..from + 8]);
        u64::from_le_bytes(bytes)
    };
    let file = (number(1), number(9));
    Listening {
        socket,
        is_shared: note[0] != 0,
        is_copy: false,
        file: (file != (0, 0)).then_some(file),
    }
}

/// The thread that offers the sockets.
struct Offering {
    listener: UnixListener,
    sockets: Vec<Listening>,
    /// Set while another process may accept from the sockets.
    has_successor: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

impl Offering {
    /// Returns whether another process has taken the place of the Unix socket, or may do so.
    fn run(self, succeeded: impl FnOnce()) -> bool {
        while !self.is_over() {
            let Ok((link, _)) = self.listener.accept() else {
                // There may be too few descriptors, for a while.
                thread::sleep(TICK);
                continue;
            };
            match self.hand_over(link) {
                Ok(true) => {
                    succeeded();
                    return true;
                }
                // It has the sockets, and may use them, so that it matters what is done to them.
                Ok(false) => return true,
                // It is gone, or was none.
                Err(_) => self.has_successor.store(false, Ordering::Release),
            }
        }
        false
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Returns true if the new process serves, and false if this one is to end before that.
    fn hand_over(&self, mut link: UnixStream) -> io::Result<bool> {
        check_user(&link)?;
        link.set_write_timeout(Some(ANSWER_MAX))?;
        link.set_read_timeout(Some(TICK))?;
        if !self.hear(&mut link, TAKE, Some(ANSWER_MAX))? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.has_successor.store(true, Ordering::Release);
        let count = u32::try_from(self.sockets.len()).unwrap_or(u32::MAX);
        link.write_all(&count.to_le_bytes())?;
        let notes: Vec<_> = self.sockets.iter().map(note).collect();
        link.write_all(notes.as_flattened())?;
        let lent: Vec<_> = self.sockets.iter().map(|own| own.socket.as_fd()).collect();
        sys::send_descriptors(link.as_fd(), &lent)?;
        // It may take long to start.
        self.hear(&mut link, READY, None)
    }

    /// Waits for a word. False if this process is to end, or the time is over.
    fn hear(&self, link: &mut UnixStream, word: u8, limit: Option<Duration>) -> io::Result<bool> {
        let start = Instant::now();
        let mut heard = [0];
        while !self.is_over() && limit.is_none_or(|limit| start.elapsed() < limit) {
            match link.read(&mut heard) {
                Ok(1) if heard[0] == word => return Ok(true),
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// The sockets are offered until this is dropped.
#[derive(Debug)]
pub(super) struct Offer {
    listener: UnixListener,
    is_over: Arc<AtomicBool>,
    place: Option<Place>,
    thread: Option<JoinHandle<bool>>,
}

impl Drop for Offer {
    /// Removes the Unix socket, unless it is the successor's by now, or may be soon.
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // Ends its wait.
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
        let thread = self.thread.take();
        let is_left = thread.is_some_and(|thread| thread.join().unwrap_or(false));
        if is_left {
            mem::forget(self.place.take());
        }
    }
}

/// The path of a Unix socket of ours, which is removed with this.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    file: SocketFile,
}

impl Place {
    /// Binds a socket beside the path that it is for, where the other process may still listen.
    fn bind_beside(path: &Path) -> io::Result<(Self, UnixListener)> {
        if fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "something other than a socket is there",
            ));
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", process::id()));
        let beside = PathBuf::from(beside);
        // Of a process that was killed, and had the same number.
        if fs::symlink_metadata(&beside).is_ok_and(|found| found.file_type().is_socket()) {
            fs::remove_file(&beside)?;
        }
        let listener = UnixListener::bind(&beside)?;
        let place = Self {
            file: SocketFile::open(&beside)?,
            path: beside,
        };
        // Each end also checks the other one's user.
        place.file.set_mode(0o600)?;
        Ok((place, listener))
    }

    /// Puts the socket in the place of the one that is there.
    fn move_to(&mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        path.clone_into(&mut self.path);
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.file.is_at(&self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
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

/// Whether the other end has closed the connection.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
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

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::sync::mpsc;

    use async_channel as channel;

    use super::super::paths::tests::Folder;
    use super::super::service::Stop;
    use super::*;

    /// A server that only holds sockets.
    fn service(sockets: Vec<Listening>) -> Service {
        Service {
            addresses: addresses(&sockets),
            unix_addresses: Vec::new(),
            paths: Vec::new(),
            left: Vec::new(),
            stop: Stop::new(channel::bounded(1).0),
            counters: Vec::new(),
            sockets,
            has_successor: Arc::default(),
        }
    }

    fn addresses(sockets: &[Listening]) -> Vec<SocketAddr> {
        let address = |own: &Listening| {
            let address = own.socket.local_addr().unwrap();
            address.as_socket().unwrap()
        };
        sockets.iter().map(address).collect()
    }

    /// One that runs and offers two sockets, of which the second is shared.
    fn first(path: &Path) -> (Service, Offer, mpsc::Receiver<()>) {
        let sockets = [false, true].map(|is_shared| Listening {
            socket: TcpListener::bind("127.0.0.1:0").unwrap().into(),
            is_shared,
            is_copy: false,
            file: None,
        });
        let mut service = service(sockets.into());
        let (restart, taken) = Restart::begin(path.to_owned()).unwrap();
        assert!(taken.is_empty());
        let (ended, ends) = mpsc::channel();
        let offer = restart.offer(&mut service, move || ended.send(()).unwrap());
        (service, offer.unwrap(), ends)
    }

    fn until(condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < Duration::from_secs(60), "it never comes");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_successor_has_all_sockets_and_then_takes_the_place() {
        let folder = Folder::new("place");
        let path = folder.0.join("socket");
        let (old, offer, ends) = first(&path);
        let (restart, taken) = Restart::begin(path.clone()).unwrap();
        assert_eq!(addresses(&taken), old.addresses);
        assert_eq!(
            taken.iter().map(|own| own.is_shared).collect::<Vec<_>>(),
            [false, true]
        );
        assert!(old.has_successor.load(Ordering::Acquire));
        ends.try_recv().expect_err("it is not ready yet");
        let mut new = service(taken);
        let new_offer = restart.offer(&mut new, || {}).unwrap();
        ends.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(!new.has_successor.load(Ordering::Acquire));
        // The old one leaves the path, and the new one removes it.
        drop(offer);
        assert!(path.exists());
        drop(new_offer);
        assert!(!path.exists());
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    }

    #[test]
    fn a_successor_that_fails_late_touches_nothing_of_the_old_one() {
        let folder = Folder::new("late");
        let path = folder.0.join("socket");
        let (old, _offer, ends) = first(&path);
        let (restart, taken) = Restart::begin(path.clone()).unwrap();
        // Now it cannot be replaced.
        let aside = folder.0.join("aside");
        fs::rename(&path, &aside).unwrap();
        fs::create_dir(&path).unwrap();
        let mut new = service(taken);
        restart.offer(&mut new, || {}).unwrap_err();
        // It must not refuse connections at sockets that are the old one's.
        assert!(new.has_successor.load(Ordering::Acquire));
        until(|| !old.has_successor.load(Ordering::Acquire));
        ends.try_recv().expect_err("it goes on");
        fs::remove_dir(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
        let (_, taken) = Restart::begin(path).unwrap();
        assert_eq!(addresses(&taken), old.addresses);
    }

    #[test]
    fn who_says_nothing_gets_nothing_and_delays_no_end() {
        let folder = Folder::new("silent");
        let path = folder.0.join("socket");
        let (old, offer, _ends) = first(&path);
        let mut silent = UnixStream::connect(&path).unwrap();
        thread::sleep(TICK);
        assert!(!old.has_successor.load(Ordering::Acquire));
        drop(offer);
        assert_eq!(silent.read(&mut [0]).unwrap(), 0);
        assert!(!path.exists());
    }

    #[test]
    fn a_process_that_ends_instead_of_answering_is_none() {
        let folder = Folder::new("hung");
        let path = folder.0.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let answering = thread::spawn(move || {
            // It ends instead of answering, and then there is nobody.
            let (link, _) = listener.accept().unwrap();
            drop(listener);
            drop(link);
        });
        let (restart, taken) = Restart::begin(path).unwrap();
        assert!(taken.is_empty());
        assert!(restart.predecessor.is_none());
        answering.join().unwrap();
    }
}
