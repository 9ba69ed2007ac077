//! Several datagrams per system call.

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use super::{UdpDatagram, UdpReceived, UdpSocket};
use crate::sys::messages::{self, BATCH_MAX, Envelope};

/// Room for several datagrams, to be filled by [`UdpSocket::recv_batch`] again and again.
///
/// ```
/// use ringloop::net::UdpBatch;
///
/// let batch = UdpBatch::new(32, 1500);
/// assert!(batch.is_empty());
/// ```
pub struct UdpBatch {
    bytes: Box<[u8]>,
    each: usize,
    envelopes: Box<[Envelope]>,
    filled: usize,
}

impl UdpBatch {
    /// The greatest number of datagrams in a batch.
    pub const DATAGRAMS_MAX: usize = BATCH_MAX;

    /// Allocates room for a number of datagrams, from 1 to [`DATAGRAMS_MAX`](Self::DATAGRAMS_MAX), of this many bytes each.
    ///
    /// # Panics
    /// Panics if one of them is 0, if there are too many datagrams, or if the bytes are more than memory can have.
    pub fn new(datagrams: usize, bytes_each: usize) -> Self {
        assert!(
            (1..=BATCH_MAX).contains(&datagrams) && bytes_each > 0,
            "a batch has from 1 to {BATCH_MAX} datagrams, of at least a byte each",
        );
        let bytes = datagrams
            .checked_mul(bytes_each)
            .expect("a batch fits into memory");
        Self {
            bytes: vec![0; bytes].into_boxed_slice(),
            each: bytes_each,
            envelopes: (0..datagrams).map(|_| Envelope::new()).collect(),
            filled: 0,
        }
    }

    /// How many datagrams were received last.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether nothing was received last.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// The datagrams that were received last, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (UdpReceived, &[u8])> {
        let filled = self.envelopes[..self.filled].iter();
        filled
            .zip(self.bytes.chunks_exact(self.each))
            .map(|(envelope, bytes)| {
                let received = UdpReceived::new(envelope, self.each)
                    .expect("it was checked when it was received");
                (received, &bytes[..received.count])
            })
    }

    fn receive(&mut self, socket: &impl AsFd) -> io::Result<usize> {
        let received = messages::receive_many(
            socket.as_fd(),
            &mut self.bytes,
            self.each,
            &mut self.envelopes,
        )?;
        let is_usable = |envelope: &Envelope| UdpReceived::new(envelope, self.each).is_ok();
        let mut envelopes = self.envelopes[..received].iter();
        // Nothing is lost because of one that has no address.
        self.filled = envelopes.position(|it| !is_usable(it)).unwrap_or(received);
        if self.filled == 0 && received > 0 {
            UdpReceived::new(&self.envelopes[0], self.each)?;
        }
        Ok(self.filled)
    }
}

impl fmt::Debug for UdpBatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("UdpBatch")
            .field("len", &self.filled)
            .field("datagrams", &self.envelopes.len())
            .field("bytes_each", &self.each)
            .finish_non_exhaustive()
    }
}

impl UdpSocket {
    /// Waits for datagrams, and receives as many as there are and the batch has room for, with one system call. Returns how
    /// many, which is at least one. What was in the batch is replaced. A dropped future has received nothing.
    ///
    /// # Errors
    /// Returns the errors of recvmmsg(2). An error that comes after some datagrams is returned by the next call.
    ///
    /// ```
    /// use ringloop::net::{UdpBatch, UdpDatagram, UdpSocket};
    ///
    /// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
    /// let near = UdpSocket::bind("127.0.0.1:0").await?;
    /// let far = UdpSocket::bind("127.0.0.1:0").await?;
    /// let to = far.local_addr()?;
    /// let datagrams = [&b"one"[..], b"two", b"three"].map(|bytes| UdpDatagram::new(bytes).to(to));
    /// assert_eq!(near.send_batch(&datagrams).await?, 3);
    ///
    /// let mut batch = UdpBatch::new(8, 1500);
    /// assert_eq!(far.recv_batch(&mut batch).await?, 3);
    /// for ((received, bytes), sent) in batch.iter().zip(&datagrams) {
    ///     assert_eq!((received.from, bytes), (near.local_addr()?, sent.bytes()));
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// # })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn recv_batch(&self, batch: &mut UdpBatch) -> io::Result<usize> {
        batch.filled = 0;
        self.datagrams.recv_by(|socket| batch.receive(socket)).await
    }

    /// Receives the datagrams that have already arrived, as [`recv_batch`](Self::recv_batch) does.
    ///
    /// # Errors
    /// Returns `WouldBlock` if there are none.
    pub fn try_recv_batch(&self, batch: &mut UdpBatch) -> io::Result<usize> {
        batch.filled = 0;
        self.datagrams.call(|socket| batch.receive(socket))
    }

    /// Sends as many of these datagrams as there is room for, with one system call, and returns how many: at least one, if
    /// there are any, and at most [`UdpBatch::DATAGRAMS_MAX`]. Waits if there is room for none. A dropped future has sent nothing.
    ///
    /// # Errors
    /// Returns the errors of [`send_message`](Self::send_message) for the first datagram. If a later one cannot be sent,
    /// those before it are, and the next call returns its error.
    pub async fn send_batch(&self, datagrams: &[UdpDatagram<'_>]) -> io::Result<usize> {
        self.datagrams
            .send_by(|socket| send(socket, datagrams))
            .await
    }

    /// Sends datagrams as [`send_batch`](Self::send_batch) does, without waiting.
    ///
    /// # Errors
    /// Returns `WouldBlock` if there is no room.
    pub fn try_send_batch(&self, datagrams: &[UdpDatagram<'_>]) -> io::Result<usize> {
        self.datagrams.call(|socket| send(socket, datagrams))
    }
}

fn send(socket: &socket2::Socket, datagrams: &[UdpDatagram<'_>]) -> io::Result<usize> {
    let is_v4 = || {
        let address = socket.local_addr()?.as_socket();
        Ok(address.is_some_and(|address| address.ip().to_canonical().is_ipv4()))
    };
    messages::send_many(
        socket.as_fd(),
        datagrams.iter().map(|datagram| &datagram.0),
        is_v4,
    )
}
