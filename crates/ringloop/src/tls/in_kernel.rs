//! Reading and writing where the kernel encrypts and decrypts. Data is received into the reader's buffer and sent from
//! the writer's, as on a connection without TLS.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::TlsStream;
use super::kernel::offload::Offloaded;
use super::session::Session;
use crate::net::kernel_tls::Received;
use crate::net::stream::{Core, HasCore};
use crate::net::{ReadBuffer, Stream};
use crate::source::Seat;
use crate::sys;
use crate::time::{Sleep, sleep};

/// How long to wait before looking again whether TCP has everything: first, and at most.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(64));

/// A wait until TCP has everything.
pub(super) struct Settling {
    next: Sleep,
    delay: Duration,
}

impl Settling {
    fn after(delay: Duration) -> Self {
        Self {
            next: sleep(delay),
            delay,
        }
    }
}

impl<S: Stream> TlsStream<S> {
    pub(crate) fn is_in_kernel(&self) -> bool {
        self.session.borrow_mut().offloaded().is_some()
    }

    /// Gives the keys to the kernel after the handshake, if that was asked for and is possible.
    pub(super) fn offload(&self) -> io::Result<()> {
        let socket = self.stream.core().socket().as_fd();
        self.session.borrow_mut().offload(socket)
    }

    /// See [`poll_read_into`](Self::poll_read_into). The buffer has room.
    pub(super) fn poll_kernel_read_into(
        &self,
        context: &mut Context<'_>,
        buffer: &mut impl ReadBuffer,
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.poll_kernel_read(context, |core, context| {
            let received = ready!(core.poll_receive_into(context, buffer))?;
            Poll::Ready(Ok(match received {
                Received::Data(0) => Received::Data(None),
                Received::Data(count) => Received::Data(Some(count)),
                Received::Record { kind, bytes } => Received::Record { kind, bytes },
            }))
        }))?;
        Poll::Ready(Ok(count.unwrap_or(0)))
    }

    /// See [`poll_read_with`](Self::poll_read_with).
    pub(super) fn poll_kernel_read_with<T>(
        &self,
        context: &mut Context<'_>,
        use_bytes: impl FnOnce(&[u8], &Self) -> T,
    ) -> Poll<io::Result<T>> {
        let mut use_bytes = Some(use_bytes);
        let result = ready!(self.poll_kernel_read(context, |core, context| {
            core.poll_receive_with(context, |bytes| {
                if bytes.is_empty() {
                    return None;
                }
                use_bytes.take().map(|use_bytes| use_bytes(bytes, self))
            })
        }))?;
        match (result, use_bytes) {
            (Some(result), _) => Poll::Ready(Ok(result)),
            (None, Some(use_bytes)) => Poll::Ready(Ok(use_bytes(&[], self))),
            (None, None) => unreachable!("a call has a result"),
        }
    }

    /// Receives data by `receive`, and handles records that are no data. `None` at the end of the stream.
    fn poll_kernel_read<T>(
        &self,
        context: &mut Context<'_>,
        mut receive: impl FnMut(&Core, &mut Context<'_>) -> Poll<io::Result<Received<Option<T>>>>,
    ) -> Poll<io::Result<Option<T>>> {
        let core = self.stream.core();
        loop {
            let session = self.session.borrow();
            if session.is_ended {
                return Poll::Ready(Ok(None));
            }
            session.check()?;
            drop(session);
            let Poll::Ready(received) = receive(core, context) else {
                // Queued bytes must not wait for the next write. An error is reported by the next write.
                let _ = self.poll_flush_in(context, &self.flushing);
                return Poll::Pending;
            };
            let mut session = self.session.borrow_mut();
            let handled = match received {
                Ok(Received::Data(Some(result))) => {
                    session.data_is_received().map(|()| Some(result))
                }
                Ok(Received::Data(None)) => return Poll::Ready(Err(super::stream::cut_off())),
                Ok(Received::Record { kind, bytes }) => {
                    let received = session.receive_record(core.socket().as_fd(), kind, &bytes);
                    received.map(|()| None)
                }
                Err(error) => match error.raw_os_error() {
                    Some(errno @ (libc::EBADMSG | libc::EMSGSIZE | libc::EINVAL)) => {
                        // The socket has it as its error as well, and would send nothing.
                        let _ = core.socket().take_error();
                        Err(session.fail_to_decrypt(errno))
                    }
                    _ => return Poll::Ready(Err(error)),
                },
            };
            // An answer or an alert, if there is room.
            if session.next_to_send().is_some() {
                let _ = self.send_now(&mut session);
            }
            if let Some(result) = handled? {
                return Poll::Ready(Ok(Some(result)));
            }
        }
    }

    /// Writes data by `write`.
    pub(crate) fn poll_kernel_write(
        &self,
        context: &mut Context<'_>,
        write: impl FnOnce(&Core, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let core = self.stream.core();
        core.check_here()?;
        let mut session = self.session.borrow_mut();
        let prepared = session.before_sending(core.socket().as_fd());
        if prepared.is_err() {
            // The end, or an alert, if there is room.
            let _ = self.send_now(&mut session);
        }
        drop(session);
        prepared?;
        ready!(self.poll_send(context, &Seat::alone(), Session::next_before_data))?;
        let written = ready!(write(core, context));
        let written = self.session.borrow_mut().after_sending(written);
        Poll::Ready(written)
    }

    /// Sends data by a call of the caller's, such as sendfile(2), which moves up to `wanted` bytes without waiting. It is
    /// called again until it fails with `WouldBlock`.
    pub(crate) fn poll_send_by(
        &self,
        context: &mut Context<'_>,
        wanted: usize,
        call: &mut dyn FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let mut of_source = None;
        let sent = ready!(self.poll_kernel_write(context, |core, context| {
            core.poll_write_by(context, |socket| match call(socket) {
                // Nothing of the connection has failed: it may go on, and still has to end in order.
                Err(error) if !is_of_socket(&error) => {
                    of_source = Some(error);
                    Ok(0)
                }
                sent => sent,
            })
        }))?;
        if let Some(error) = of_source {
            return Poll::Ready(Err(error));
        }
        if let Some(offloaded) = self.session.borrow_mut().offloaded()
            && (1..wanted).contains(&sent)
        {
            offloaded.note_cut_short(self.stream.core().socket().as_fd());
        }
        Poll::Ready(Ok(sent))
    }

    /// Sends what is queued, and what the kernel holds back.
    pub(super) fn poll_kernel_flush(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
    ) -> Poll<io::Result<()>> {
        self.poll_send(context, seat, Session::next_to_send)
    }

    /// Sends until there is nothing `next`.
    fn poll_send(
        &self,
        context: &mut Context<'_>,
        seat: &Seat,
        next: fn(&mut Session) -> Option<Next>,
    ) -> Poll<io::Result<()>> {
        let core = self.stream.core();
        // Wakers are the user's code, which may use the session, so it is borrowed for the calls only.
        while next(&mut self.session.borrow_mut()).is_some() {
            ready!(core.poll_call_to_write(context, seat, |_| {
                self.send_next(&mut self.session.borrow_mut())
            }))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends what is queued, as far as there is room.
    pub(super) fn kernel_send_now(&self, session: &mut Session) -> io::Result<()> {
        self.stream.core().check_here()?;
        while session.next_to_send().is_some() {
            match self.send_next(session) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => sent?,
            }
        }
        Ok(())
    }

    /// Sends what is next. Fails with `WouldBlock` if there is no room.
    fn send_next(&self, session: &mut Session) -> io::Result<()> {
        let core = self.stream.core();
        match session.next_to_send() {
            None => Ok(()),
            Some(Next::KeyUpdate) => {
                let (kind, bytes) = Offloaded::key_update();
                core.try_send_record(kind, bytes)?;
                session.key_update_is_sent(core.socket().as_fd())
            }
            Some(Next::Data) => match sys::send(core.socket().as_fd(), session.outgoing.rest()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
                sent => {
                    let count = session.after_sending(sent)?;
                    session.outgoing.advance(count);
                    Ok(())
                }
            },
            Some(Next::Alert(kind, bytes)) => {
                core.try_send_record(kind, &bytes)?;
                session.alert_is_sent(bytes.len());
                Ok(())
            }
            Some(Next::HeldBack) => {
                let (kind, bytes) = Offloaded::nothing();
                core.try_send_record(kind, bytes)?;
                session.nothing_is_held_back();
                Ok(())
            }
        }
    }

    /// Writes up to all of the bytes without waiting.
    pub(super) fn kernel_try_write(
        &self,
        session: &mut Session,
        bytes: &[u8],
    ) -> io::Result<usize> {
        let prepared = session.before_sending(self.stream.core().socket().as_fd());
        let sent = self.kernel_send_now(session);
        prepared?;
        sent?;
        if session.next_to_send().is_some() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match self.stream.core().try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            sent => session.after_sending(sent),
        }
    }

    /// Ready when TCP has everything that was sent, so that the socket can be shut down. The kernel keeps records for
    /// which TCP has no room, and reports neither that it does nor when it no longer does.
    pub(super) fn poll_settled(&self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut session = self.session.borrow_mut();
            let is_settled = self.is_settled(&mut session);
            let waiting = session.settling.take();
            // Wakers are the user's code, which may use the session.
            drop(session);
            if is_settled {
                return Poll::Ready(());
            }
            let mut waiting = waiting.unwrap_or_else(|| Box::new(Settling::after(LOOK_AGAIN.0)));
            let polled = Pin::new(&mut waiting.next).poll(context);
            if polled.is_ready() {
                let delay = (waiting.delay * 2).min(LOOK_AGAIN.1);
                *waiting = Settling::after(delay);
            }
            self.session.borrow_mut().settling = Some(waiting);
            ready!(polled);
        }
    }

    /// Whether TCP has everything that was sent.
    pub(super) fn is_settled(&self, session: &mut Session) -> bool {
        let socket = self.stream.core().socket().as_fd();
        let offloaded = session.offloaded();
        offloaded.is_none_or(|offloaded| offloaded.is_with_tcp(socket))
    }
}

/// Whether an error of a call that moves bytes from a file or a pipe to a socket is the socket's, or only says to call again.
/// All others are errors of the source, such as `EIO`. If one of them is the socket's after all, the next call says so.
fn is_of_socket(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EPIPE
                | libc::ECONNRESET
                | libc::ECONNABORTED
                | libc::ECONNREFUSED
                | libc::ETIMEDOUT
                | libc::ENOTCONN
                | libc::ESHUTDOWN
                | libc::ENETDOWN
                | libc::ENETUNREACH
                | libc::ENETRESET
                | libc::EHOSTDOWN
                | libc::EHOSTUNREACH
                | libc::EPROTO
                | libc::EBADMSG
                | libc::EMSGSIZE
        )
    ) || matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Something to send.
pub(super) enum Next {
    /// New keys are announced.
    KeyUpdate,
    /// Queued bytes.
    Data,
    /// The content type of an alert, and the alert.
    Alert(u8, [u8; 2]),
    /// The part of a record that the kernel has, and for which it waits for more.
    HeldBack,
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::Arc;

    use rustls::crypto::ring;
    use rustls::{ClientConfig, RootCertStore};

    use super::*;
    use crate::net::UnixStream;
    use crate::{Runtime, RuntimeConfig};

    #[test]
    fn only_an_error_of_the_socket_ends_writing() {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let config = Arc::new(config);
        Runtime::new(&RuntimeConfig::default())
            .unwrap()
            .block_on(async {
                for (errno, ends) in [
                    (libc::EIO, false),
                    (libc::EISDIR, false),
                    (libc::ESTALE, false),
                    (libc::EPIPE, true),
                    (libc::ECONNRESET, true),
                    (libc::ETIMEDOUT, true),
                ] {
                    let (near, _far) = UnixStream::pair().unwrap();
                    let name = "localhost".try_into().unwrap();
                    let session = Session::client(Arc::clone(&config), name, false).unwrap();
                    let stream = TlsStream::new(near, session);
                    let mut results = [libc::EINTR, errno].into_iter();
                    let mut call = |_: BorrowedFd<'_>| {
                        Err(io::Error::from_raw_os_error(results.next().unwrap()))
                    };
                    let sent = poll_fn(|context| stream.poll_send_by(context, 1, &mut call)).await;
                    assert_eq!(sent.unwrap_err().raw_os_error(), Some(errno));
                    assert_eq!(stream.session.borrow().check_writing().is_err(), ends);
                }
            });
    }
}
