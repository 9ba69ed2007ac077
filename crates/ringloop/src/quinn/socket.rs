//! A UDP socket of quinn's. Any thread may use it.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};

use super::readiness::Readiness;
use crate::runtime::Handle;
use crate::source::reclaiming;

/// The seat of whoever receives, of whom there is one. Those who send have the numbers above.
const RECEIVER: u64 = 0;

pub(super) struct Socket {
    udp: std::net::UdpSocket,
    state: UdpSocketState,
    /// Of a descriptor of its own, which is closed in the runtime's thread, when the kernel has been told.
    readiness: Readiness,
    seats: AtomicU64,
}

impl Socket {
    pub(super) fn new(home: &Handle, socket: std::net::UdpSocket) -> io::Result<Self> {
        // Makes it non-blocking, too.
        let state = UdpSocketState::new((&socket).into())?;
        let watched = reclaiming(|| socket.try_clone())?;
        Ok(Self {
            readiness: Readiness::new(home, watched.into())?,
            udp: socket,
            state,
            seats: AtomicU64::new(RECEIVER),
        })
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        let seat = self.seats.fetch_add(1, Ordering::Relaxed) + 1;
        Box::pin(Poller { socket: self, seat })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let reports = self.readiness.write().reports();
        let result = self.state.send((&self.udp).into(), transmit);
        if is_blocked(&result) {
            self.readiness.write().clear(reports);
        }
        result
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let reports = ready!(self.readiness.read().poll_ready(RECEIVER, context))?;
            let result = self.state.recv((&self.udp).into(), buffers, meta);
            if !is_blocked(&result) {
                return Poll::Ready(result);
            }
            self.readiness.read().clear(reports);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.udp.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

fn is_blocked<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

impl fmt::Debug for Socket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.udp.fmt(formatter)
    }
}

/// Has one task woken when there is room to send.
struct Poller {
    socket: Arc<Socket>,
    seat: u64,
}

impl UdpPoller for Poller {
    fn poll_writable(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let write = self.socket.readiness.write();
        write.poll_ready(self.seat, context).map_ok(drop)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.socket.readiness.write().leave(self.seat);
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Poller")
    }
}
