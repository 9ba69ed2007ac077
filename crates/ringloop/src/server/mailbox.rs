//! Writing to a connection from outside of its handler.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;

use crate::budget;

/// How many bytes may wait for a connection.
const BYTES_MAX: usize = 1 << 20;

/// Writes to a connection from outside, until its task takes them.
#[derive(Default)]
struct Mailbox(Mutex<State>);

#[derive(Default)]
struct State {
    writes: VecDeque<Bytes>,
    bytes: usize,
    is_closing: bool,
    is_over: bool,
    waker: Option<Waker>,
}

impl State {
    /// Whether the task that polls is the one to be woken.
    fn is_known(&self, context: &Context<'_>) -> bool {
        let is_it = |waker: &Waker| waker.will_wake(context.waker());
        self.waker.as_ref().is_some_and(is_it)
    }
}

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the connection's task.
    fn change(&self, change: impl FnOnce(&mut State) -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state();
        if state.is_over {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the connection has ended",
            ));
        }
        change(&mut state)?;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

/// A connection's own end.
#[derive(Default)]
pub(super) struct Inbox(Arc<Mailbox>);

impl Inbox {
    pub(super) fn handle(&self) -> ConnectionHandle {
        ConnectionHandle(Arc::clone(&self.0))
    }

    /// Takes what was written, and whether the connection is to be closed afterwards.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<(VecDeque<Bytes>, bool)> {
        let is_empty = |state: &State| state.writes.is_empty() && !state.is_closing;
        let state = self.0.state();
        let (is_nothing_there, is_known) = (is_empty(&state), state.is_known(context));
        drop(state);
        if is_nothing_there {
            if is_known {
                return Poll::Pending;
            }
            // Cloning a waker may run user code, so it is done without the lock.
            let waker = context.waker().clone();
            let mut state = self.0.state();
            let before = state.waker.replace(waker);
            let is_empty = is_empty(&state);
            drop(state);
            drop(before);
            if is_empty {
                return Poll::Pending;
            }
        }
        ready!(budget::poll(context));
        let mut state = self.0.state();
        state.bytes = 0;
        Poll::Ready((std::mem::take(&mut state.writes), state.is_closing))
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_over = true;
        let left = (std::mem::take(&mut state.writes), state.waker.take());
        drop(state);
        drop(left);
    }
}

/// Writes to a connection from outside of its handler: from other connections' handlers, tasks, workers and threads. Created by
/// [`Connection::handle`](super::Connection::handle).
///
/// ```
/// use ringloop::server::{Connection, ConnectionHandle, Handler, Server};
/// use std::io::{self, Read};
/// use std::net::TcpStream;
/// use std::sync::{Arc, Mutex};
///
/// /// Everybody who is connected.
/// type Everybody = Arc<Mutex<Vec<ConnectionHandle>>>;
///
/// struct Member(Everybody);
///
/// impl Handler for Member {
///     fn connected(&mut self, connection: &mut Connection<'_>) -> io::Result<()> {
///         connection.write(b"welcome\n")?;
///         self.0.lock().unwrap().push(connection.handle());
///         Ok(())
///     }
///
///     fn data(&mut self, _: &mut Connection<'_>, bytes: &[u8]) -> io::Result<()> {
///         // Whoever is gone, or reads too slowly, is forgotten.
///         self.0.lock().unwrap().retain(|member| member.write(bytes.to_vec()).is_ok());
///         Ok(())
///     }
/// }
///
/// let everybody = Everybody::default();
/// let members = Arc::clone(&everybody);
/// let server = Server::new("127.0.0.1:0").start(move || Member(Arc::clone(&members)))?;
/// let mut client = TcpStream::connect(server.local_addr())?;
/// client.read_exact(&mut [0; 8])?;
/// # while everybody.lock().unwrap().is_empty() {
/// #     std::thread::yield_now();
/// # }
/// everybody.lock().unwrap()[0].write("goodbye\n")?;
/// everybody.lock().unwrap()[0].close();
/// let mut rest = String::new();
/// client.read_to_string(&mut rest)?;
/// assert_eq!(rest, "goodbye\n");
/// # Ok::<(), io::Error>(())
/// ```
#[derive(Clone)]
pub struct ConnectionHandle(Arc<Mailbox>);

impl ConnectionHandle {
    /// Writes bytes. They are queued, and sent by the connection's own task, in the order in which they were written.
    ///
    /// # Errors
    /// Returns `NotConnected` if the connection has ended, and `WouldBlock` if more than 1 MiB would be queued, because the
    /// peer does not read; none of the bytes are written then. If nothing is queued, any number of bytes is accepted.
    /// Accepted bytes are lost if the connection fails before they are sent.
    pub fn write(&self, bytes: impl Into<Bytes>) -> io::Result<()> {
        let bytes = bytes.into();
        self.0.change(|state| {
            if state.is_closing {
                return Err(io::Error::new(
                    io::ErrorKind::NotConnected,
                    "the connection was closed",
                ));
            }
            if !state.writes.is_empty() && state.bytes + bytes.len() > BYTES_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    "the peer does not read what was written before",
                ));
            }
            state.bytes += bytes.len();
            state.writes.push_back(bytes);
            Ok(())
        })
    }

    /// Closes the connection once everything is sent, see [`Connection::close`](super::Connection::close).
    pub fn close(&self) {
        let close = |state: &mut State| {
            state.is_closing = true;
            Ok(())
        };
        // If it has ended, it is closed.
        let _ = self.0.change(close);
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.0.state().is_over
    }
}

impl fmt::Debug for ConnectionHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ConnectionHandle")
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
