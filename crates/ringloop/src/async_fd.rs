//! Waiting for descriptors that this crate has no type for.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Context, Poll, ready};

use ringloop_driver::Interest;

use crate::source::{Direction, Reports, Source, reclaiming};

/// Waits until a descriptor is ready: for devices, eventfd, timerfd, inotify, and the sockets of C libraries.
///
/// This only reports readiness. The program reads and writes itself, by calls that must not block: put the descriptor into
/// non-blocking mode, or use flags such as `MSG_DONTWAIT`. A call that would have to wait fails with `WouldBlock`, and
/// [`ReadyGuard::try_io`] or [`async_io`](Self::async_io) then wait for the next report.
///
/// The kernel reports what is new (epoll(7), `EPOLLET`). So the descriptor counts as ready until a call within `try_io` or
/// `async_io` fails with `WouldBlock`, or until [`ReadyGuard::clear_ready`]. It may count as ready although it is not.
///
/// Any number of tasks may wait, and a report wakes all of them. Several `AsyncFd` may watch one descriptor.
///
/// **Closing.** This watches a duplicate of the descriptor (dup(2)), so it takes one more of `RLIMIT_NOFILE`. If the
/// descriptor is closed or replaced meanwhile, for example by the library that owns it, the duplicate still refers to the
/// original file. A new file that gets the same number is not affected. The peer of a closed socket learns of the close
/// only when the `AsyncFd` is dropped, too. To watch another file, create a new `AsyncFd`.
///
/// ```
/// use ringloop::{AsyncFd, Runtime, RuntimeConfig};
/// use std::io::{Read, Write};
///
/// # fn main() -> std::io::Result<()> {
/// Runtime::new(&RuntimeConfig::default())?.block_on(async {
///     let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
///     near.set_nonblocking(true)?;
///     let near = AsyncFd::new(near)?;
///     let thread = std::thread::spawn(move || far.write_all(b"hello"));
///     let mut buffer = [0; 16];
///     let count = loop {
///         let guard = near.readable().await?;
///         if let Ok(result) = guard.try_io(|mut near| near.read(&mut buffer)) {
///             break result?;
///         }
///     };
/// #   thread.join().unwrap()?;
///     assert_eq!(&buffer[..count], b"hello");
///     Ok(())
/// })
/// # }
/// ```
pub struct AsyncFd<T: AsFd> {
    /// The duplicate. It is closed before `inner` is dropped.
    source: Source<OwnedFd>,
    interest: Interest,
    inner: T,
}

impl<T: AsFd> AsyncFd<T> {
    /// Watches a descriptor for reading and writing. `inner` may own the descriptor or borrow it.
    ///
    /// # Errors
    /// Returns `PermissionDenied` (`EPERM`) for a file that is always ready: a regular file, a directory, `/dev/null`. Also
    /// returns the errors of dup(2), such as `EMFILE`.
    ///
    /// # Panics
    /// Panics outside of a runtime.
    pub fn new(inner: T) -> io::Result<Self> {
        Self::with_interest(inner, Interest::READ | Interest::WRITE)
    }

    /// Watches a descriptor for reading, writing or both.
    ///
    /// # Errors
    /// As [`new`](Self::new). Returns `InvalidInput` for [`Interest::PRIORITY`], which `io_uring` does not report.
    ///
    /// ```
    /// use ringloop::{AsyncFd, driver::Interest};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let (near, far) = std::os::unix::net::UnixStream::pair()?;
    /// let near = AsyncFd::with_interest(near, Interest::READ)?;
    /// drop(far);
    /// near.readable().await?; // the end of the stream
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn with_interest(inner: T, interest: Interest) -> io::Result<Self> {
        if interest.contains(Interest::PRIORITY) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "Interest::PRIORITY is not reported by io_uring: wait for READ or WRITE",
            ));
        }
        let duplicate = reclaiming(|| inner.as_fd().try_clone_to_owned())?;
        Ok(Self {
            source: Source::new(duplicate, interest)?,
            interest,
            inner,
        })
    }

    /// Waits until a read would not block: there is data, the end of it, or an error.
    ///
    /// # Errors
    /// Returns `InvalidInput` if reading is not watched, and in another runtime than the one in which this was created.
    ///
    /// ```
    /// use ringloop::AsyncFd;
    /// use std::io::Write;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// let near = AsyncFd::new(near)?;
    /// far.write_all(b"!")?;
    /// let guard = near.readable().await?;
    /// assert!(std::ptr::eq(guard.get_inner(), near.get_ref()));
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn readable(&self) -> io::Result<ReadyGuard<'_, T>> {
        self.ready(Direction::Read).await
    }

    /// Waits until a write would not block: there is room, or an error.
    ///
    /// # Errors
    /// See [`readable`](Self::readable).
    ///
    /// ```
    /// use ringloop::AsyncFd;
    /// use std::io::Write;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    /// near.set_nonblocking(true)?;
    /// let near = AsyncFd::new(near)?;
    /// let guard = near.writable().await?;
    /// assert_eq!(guard.try_io(|mut near| near.write(b"hello")).unwrap()?, 5);
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn writable(&self) -> io::Result<ReadyGuard<'_, T>> {
        self.ready(Direction::Write).await
    }

    async fn ready(&self, direction: Direction) -> io::Result<ReadyGuard<'_, T>> {
        self.check(direction)?;
        let seen = self.source.ready(direction).await?;
        Ok(self.guard(direction, seen))
    }

    /// As [`readable`](Self::readable), for a future of your own. Of the tasks that poll this, only the last one is woken.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<ReadyGuard<'_, T>>> {
        self.poll_ready(context, Direction::Read)
    }

    /// As [`writable`](Self::writable), for a future of your own. Of the tasks that poll this, only the last one is woken.
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<ReadyGuard<'_, T>>> {
        self.poll_ready(context, Direction::Write)
    }

    fn poll_ready(
        &self,
        context: &mut Context<'_>,
        direction: Direction,
    ) -> Poll<io::Result<ReadyGuard<'_, T>>> {
        self.check(direction)?;
        let seen = ready!(self.source.poll_ready(context, direction))?;
        Poll::Ready(Ok(self.guard(direction, seen)))
    }

    fn guard(&self, direction: Direction, seen: Reports) -> ReadyGuard<'_, T> {
        ReadyGuard {
            fd: self,
            direction,
            seen,
        }
    }

    /// Calls `call` when the descriptor is ready, and again after each `WouldBlock`, until it returns something else.
    /// `interest` is `READ` or `WRITE`.
    ///
    /// Dropping the future loses nothing: `call` has then only failed with `WouldBlock`.
    ///
    /// # Errors
    /// Returns the errors of `call`, and `InvalidInput` as [`readable`](Self::readable) does.
    ///
    /// ```
    /// use ringloop::{AsyncFd, driver::Interest};
    /// use std::io::{Read, Write};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// near.set_nonblocking(true)?;
    /// let near = AsyncFd::new(near)?;
    /// far.write_all(b"hello")?;
    /// let mut buffer = [0; 16];
    /// let count = near.async_io(Interest::READ, |mut near| near.read(&mut buffer)).await?;
    /// assert_eq!(&buffer[..count], b"hello");
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn async_io<R>(
        &self,
        interest: Interest,
        mut call: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        let direction = match interest {
            Interest::READ => Direction::Read,
            Interest::WRITE => Direction::Write,
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "async_io waits for one direction: Interest::READ or Interest::WRITE",
                ));
            }
        };
        loop {
            let guard = self.ready(direction).await?;
            if let Ok(result) = guard.try_io(&mut call) {
                return result;
            }
        }
    }

    fn check(&self, direction: Direction) -> io::Result<()> {
        let (wanted, message) = match direction {
            Direction::Read => (
                Interest::READ,
                "this AsyncFd does not watch for reading: add Interest::READ",
            ),
            Direction::Write => (
                Interest::WRITE,
                "this AsyncFd does not watch for writing: add Interest::WRITE",
            ),
        };
        if self.interest.contains(wanted) {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
    }

    /// The value that the descriptor belongs to.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// The value that the descriptor belongs to. If it is replaced, this still watches the former one.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Ends the watch, and returns what the descriptor belongs to.
    ///
    /// ```
    /// use ringloop::AsyncFd;
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let (near, _far) = std::os::unix::net::UnixStream::pair()?;
    /// let near: std::os::unix::net::UnixStream = AsyncFd::new(near)?.into_inner();
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_inner(self) -> T {
        // If the kernel cannot be told now, the duplicate is closed in a later turn.
        drop(self.source.into_inner());
        self.inner
    }
}

impl<T: AsFd> AsFd for AsyncFd<T> {
    /// The descriptor of the inner value.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl<T: AsFd> AsRawFd for AsyncFd<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl<T: AsFd + fmt::Debug> fmt::Debug for AsyncFd<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AsyncFd")
            .field("inner", &self.inner)
            .field("interest", &self.interest)
            .finish_non_exhaustive()
    }
}

/// Says that an [`AsyncFd`] counts as ready for reading or writing. Dropping it changes nothing.
pub struct ReadyGuard<'a, T: AsFd> {
    fd: &'a AsyncFd<T>,
    direction: Direction,
    seen: Reports,
}

impl<'a, T: AsFd> ReadyGuard<'a, T> {
    /// Makes a call that reads or writes. If it fails with `WouldBlock`, the descriptor no longer counts as ready: wait
    /// again.
    ///
    /// # Errors
    /// Returns [`NotReady`] if the call failed with `WouldBlock`. Other errors of the call are in its result.
    ///
    /// ```
    /// use ringloop::AsyncFd;
    /// use std::io::{Read, Write};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
    /// near.set_nonblocking(true)?;
    /// let near = AsyncFd::new(near)?;
    /// far.write_all(b"!")?;
    /// let guard = near.readable().await?;
    /// assert_eq!(guard.try_io(|mut near| near.read(&mut [0; 16])).unwrap()?, 1);
    /// assert!(guard.try_io(|mut near| near.read(&mut [0; 16])).is_err());
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn try_io<R>(
        &self,
        call: impl FnOnce(&'a T) -> io::Result<R>,
    ) -> Result<io::Result<R>, NotReady> {
        let fd = self.fd;
        let result = fd.source.unless_blocked(self.direction, || call(&fd.inner));
        match result {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(NotReady(())),
            result => Ok(result),
        }
    }

    /// Notes that the descriptor is not ready, for calls that do not say so by `WouldBlock`. If it was reported again
    /// since this guard was created, it stays ready.
    ///
    /// Call this only if the program has seen that nothing is left to read, or no room to write. Otherwise the next
    /// wait may never end, because the kernel reports only what is new.
    pub fn clear_ready(&self) {
        self.fd.source.clear_ready(self.direction, self.seen);
    }

    /// The value that the descriptor belongs to.
    pub fn get_inner(&self) -> &'a T {
        &self.fd.inner
    }
}

impl<T: AsFd + fmt::Debug> fmt::Debug for ReadyGuard<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ReadyGuard")
            .field("fd", self.fd)
            .field("direction", &self.direction)
            .finish_non_exhaustive()
    }
}

/// The descriptor was not ready: the call of [`ReadyGuard::try_io`] failed with `WouldBlock`.
#[derive(Debug)]
pub struct NotReady(());

impl fmt::Display for NotReady {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the descriptor was not ready: wait for it again")
    }
}

impl std::error::Error for NotReady {}

impl From<NotReady> for io::Error {
    fn from(_: NotReady) -> Self {
        io::ErrorKind::WouldBlock.into()
    }
}
