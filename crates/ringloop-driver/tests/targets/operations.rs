//! Any sequence of operations, cancels and closes on a few pairs of sockets, on each backend, compared with a model.
//!
//! The model knows what each direction of each pair has carried, what may still come, and why an operation may fail.
//! Byte `n` of a direction is always the same, so that bytes that are lost, repeated or exchanged are noticed.

use std::collections::HashMap;
use std::io::Read;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ringloop_driver::{
    BackendChoice, Buffer, Bytes, Config, Driver, Event, Interest, Mode, Op, SENT_BY_COPY,
    SharedFd, Token,
};

/// An input has at most this many steps: longer ones reach no other states.
const STEPS_MAX: usize = 120;

const PAIRS: usize = 3;

/// Only a failing input waits that long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the input on each backend that this machine has.
pub(crate) fn operations(input: &[u8]) {
    for choice in [BackendChoice::IoUring, BackendChoice::Epoll] {
        match Driver::new(&Config::with_backend(choice)) {
            Ok(driver) => World::new(driver).run(input),
            Err(error) if choice == BackendChoice::IoUring => drop(error),
            Err(error) => panic!("no driver: {error}"),
        }
    }
}

/// Byte `index` of the direction that starts at socket `from`.
fn byte(from: usize, index: usize) -> u8 {
    (index % 251) as u8 ^ (from as u8 + 1) << 3
}

/// The kind of what was submitted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Read,
    Send,
    Close,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    kind: Kind,
    end: usize,
    length: usize,
    is_cancelled: bool,
    never_waits: bool,
    /// For a send: whether its count has come.
    is_answered: bool,
}

impl Pending {
    fn new(kind: Kind, end: usize, length: usize, flags: i32) -> Pending {
        Pending {
            kind,
            end,
            length,
            is_cancelled: false,
            never_waits: flags & libc::MSG_DONTWAIT != 0,
            is_answered: false,
        }
    }
}

/// One end of a pair. The ends of a pair are `2 * n` and `2 * n + 1`.
#[derive(Debug, Default)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each says something else that may be unknown or over"
)]
struct End {
    /// `None` once a close has it.
    fd: Option<SharedFd>,
    /// Bytes that it has sent and received.
    sent: usize,
    received: usize,
    /// Whether one of its sends was discarded, so that nobody knows how much was sent; the same for its receives.
    sent_is_unknown: bool,
    received_is_unknown: bool,
    /// Whether it may have been shut down or closed; whether it was.
    may_have_ended: bool,
    has_ended: bool,
    watch: Option<Token>,
}

struct World {
    driver: Driver,
    ends: Vec<End>,
    pending: HashMap<Token, Pending>,
    /// Tokens whose last event has come, and those that were discarded or unwatched.
    gone: Vec<Token>,
}

impl World {
    fn new(driver: Driver) -> World {
        let mut ends = Vec::new();
        for _ in 0..PAIRS {
            let (one, other) = UnixStream::pair().unwrap();
            for socket in [one, other] {
                socket.set_nonblocking(true).unwrap();
                ends.push(End {
                    fd: Some(SharedFd::new(socket)),
                    ..End::default()
                });
            }
        }
        World {
            driver,
            ends,
            pending: HashMap::new(),
            gone: Vec::new(),
        }
    }

    fn run(mut self, input: &[u8]) {
        for step in input.chunks_exact(3).take(STEPS_MAX) {
            self.step(step[0], usize::from(step[1]), usize::from(step[2]));
        }
        self.finish();
    }

    fn step(&mut self, step: u8, which: usize, amount: usize) {
        let end = which % self.ends.len();
        let flags = if which & 128 == 0 {
            0
        } else {
            libc::MSG_DONTWAIT
        };
        match step % 16 {
            0 | 1 => self.read(end, 1 + amount),
            2 => self.read(end, 1 + amount * 300),
            3 | 4 => self.send(end, amount, 0),
            5 => self.send(end, amount * 2000, flags),
            6 => self.shut_down(end),
            7 => self.close(end),
            8 => {
                if let Some(token) = self.chosen(amount) {
                    self.cancel(token);
                }
            }
            9 => self.cancel_all_of(end),
            10 => self.discard(amount),
            11 => self.driver.flush().unwrap(),
            12 => self.watch(end, amount),
            13 => self.use_what_is_gone(amount),
            _ => self.poll(Duration::ZERO),
        }
    }

    // ---- what a step does

    /// Two of a kind on one socket may end in any order, and the model could not tell what each should get.
    fn is_busy(&self, end: usize, kind: Kind) -> bool {
        self.pending
            .values()
            .any(|pending| pending.end == end && pending.kind == kind)
    }

    fn submit(&mut self, op: Op, pending: Pending) {
        let token = self.driver.submit(op).unwrap();
        assert!(self.driver.take(token).is_none(), "it has not ended yet");
        assert!(!self.gone.contains(&token), "a token is used again");
        assert!(self.pending.insert(token, pending).is_none());
    }

    fn read(&mut self, end: usize, length: usize) {
        let Some(fd) = self.ends[end].fd.clone() else {
            return;
        };
        if self.is_busy(end, Kind::Read) {
            return;
        }
        let buffer = Buffer::new(Vec::with_capacity(length));
        let op = Op::Read {
            fd,
            buffer,
            offset: None,
        };
        self.submit(op, Pending::new(Kind::Read, end, length, 0));
    }

    fn send(&mut self, end: usize, length: usize, flags: i32) {
        let Some(fd) = self.ends[end].fd.clone() else {
            return;
        };
        if self.is_busy(end, Kind::Send) {
            return;
        }
        let sent = self.ends[end].sent;
        let bytes: Vec<u8> = (sent..sent + length)
            .map(|index| byte(end, index))
            .collect();
        let op = Op::SendZeroCopy {
            fd,
            bytes: Bytes::new(bytes),
            flags,
        };
        self.submit(op, Pending::new(Kind::Send, end, length, flags));
    }

    fn shut_down(&mut self, end: usize) {
        let Some(fd) = self.ends[end].fd.clone() else {
            return;
        };
        let socket = UnixStream::from(fd.as_fd().try_clone_to_owned().unwrap());
        match socket.shutdown(Shutdown::Write) {
            Ok(()) => {
                self.ends[end].may_have_ended = true;
                self.ends[end].has_ended = true;
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
                assert!(self.ends[end ^ 1].may_have_ended);
            }
        }
    }

    /// Closes a socket that no operation has.
    fn close(&mut self, end: usize) {
        let Some(fd) = self.ends[end].fd.take() else {
            return;
        };
        match fd.try_unwrap() {
            Ok(fd) => {
                self.unwatch(end);
                self.ends[end].may_have_ended = true;
                self.submit(
                    Op::Close { fd: Some(fd) },
                    Pending::new(Kind::Close, end, 0, 0),
                );
            }
            Err(fd) => self.ends[end].fd = Some(fd),
        }
    }

    /// One of the operations that have not ended.
    fn chosen(&self, number: usize) -> Option<Token> {
        let mut tokens: Vec<Token> = self.pending.keys().copied().collect();
        tokens.sort_by_key(|token| token.index());
        tokens.get(number % tokens.len().max(1)).copied()
    }

    fn cancel(&mut self, token: Token) {
        self.pending.get_mut(&token).unwrap().is_cancelled = true;
        self.driver.cancel(token);
    }

    fn cancel_all_of(&mut self, end: usize) {
        let Some(fd) = &self.ends[end].fd else {
            return;
        };
        self.driver.cancel_fd(fd.as_raw_fd());
        for pending in self.pending.values_mut() {
            pending.is_cancelled |= pending.end == end;
        }
    }

    fn discard(&mut self, number: usize) {
        let Some(token) = self.chosen(number) else {
            return;
        };
        self.driver.discard(token);
        let pending = self.pending.remove(&token).unwrap();
        let end = &mut self.ends[pending.end];
        match pending.kind {
            Kind::Read => end.received_is_unknown = true,
            Kind::Send => end.sent_is_unknown = true,
            Kind::Close => {}
        }
        self.gone.push(token);
    }

    fn watch(&mut self, end: usize, how: usize) {
        let Some(fd) = &self.ends[end].fd else {
            return;
        };
        let interest = [
            Interest::READ,
            Interest::WRITE,
            Interest::READ | Interest::WRITE,
        ][how % 3];
        let mode = [Mode::Edge, Mode::OneShot, Mode::Level][how / 3 % 3];
        match self.ends[end].watch {
            None => {
                self.ends[end].watch =
                    Some(self.driver.watch(fd.as_raw_fd(), interest, mode).unwrap());
            }
            Some(token) if how & 64 == 0 => self.driver.rewatch(token, interest, mode).unwrap(),
            Some(_) => self.unwatch(end),
        }
    }

    fn unwatch(&mut self, end: usize) {
        if let Some(token) = self.ends[end].watch.take() {
            self.driver.unwatch(token);
            self.gone.push(token);
        }
    }

    fn use_what_is_gone(&mut self, number: usize) {
        if self.gone.is_empty() {
            return;
        }
        let token = self.gone[number % self.gone.len()];
        assert!(self.driver.take(token).is_none());
        self.driver.cancel(token);
        self.driver.discard(token);
        self.driver.unwatch(token);
        let error = self
            .driver
            .rewatch(token, Interest::READ, Mode::Edge)
            .unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }

    // ---- what comes of it

    fn poll(&mut self, timeout: Duration) {
        let mut events = Vec::new();
        match self.driver.poll(Some(timeout), &mut events) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => result.unwrap(),
        }
        for event in events {
            assert!(
                !self.gone.contains(&event.token()),
                "{event:?} comes too late"
            );
            if event.is_watch() {
                let is_known = |end: &End| end.watch == Some(event.token());
                assert!(self.ends.iter().any(is_known), "nobody watches: {event:?}");
            } else {
                self.end_of_operation(event);
            }
        }
    }

    fn end_of_operation(&mut self, event: Event) {
        if event.is_more() {
            return self.sent(event);
        }
        let pending = self
            .pending
            .remove(&event.token())
            .expect("nobody submitted it");
        self.gone.push(event.token());
        let op = self.driver.take(event.token()).expect("it has just ended");
        assert!(self.driver.take(event.token()).is_none());
        let (end, peer) = (pending.end, pending.end ^ 1);
        let peer_may_have_ended = self.ends[peer].may_have_ended;
        match event.io_result() {
            Ok(count) => self.succeeded(pending, count as usize, op),
            Err(error) => {
                let is_possible = match error.raw_os_error().unwrap() {
                    _ if pending.is_answered => false,
                    libc::ECANCELED => pending.is_cancelled,
                    libc::EAGAIN => pending.never_waits,
                    libc::EPIPE => {
                        pending.kind == Kind::Send
                            && (peer_may_have_ended || self.ends[end].may_have_ended)
                    }
                    libc::ECONNRESET => peer_may_have_ended,
                    _ => false,
                };
                assert!(is_possible, "{pending:?} ended with {error}");
                match op {
                    Op::Read { buffer, .. } => assert!(buffer.filled().is_empty()),
                    // A close that is cancelled closes all the same, at the latest when the operation is dropped.
                    Op::Close { .. } => self.ends[end].has_ended = true,
                    _ => {}
                }
            }
        }
    }

    /// The first event of a send.
    fn sent(&mut self, event: Event) {
        let pending = self.pending.get_mut(&event.token());
        let pending = pending.expect("nobody submitted it");
        let count = event.io_result().unwrap() as usize;
        assert!(pending.kind == Kind::Send && !pending.is_answered);
        assert!(count <= pending.length && (count > 0 || pending.length == 0));
        pending.is_answered = true;
        self.ends[pending.end].sent += count;
    }

    fn succeeded(&mut self, pending: Pending, count: usize, op: Op) {
        let (end, peer) = (pending.end, pending.end ^ 1);
        match (pending.kind, op) {
            (Kind::Read, Op::Read { buffer, .. }) => {
                assert!(count <= pending.length && buffer.filled().len() == count);
                assert!(
                    count > 0 || self.ends[peer].may_have_ended,
                    "an end that was not sent"
                );
                self.received(end, buffer.filled());
            }
            (Kind::Send, Op::SendZeroCopy { bytes, .. }) => {
                assert_eq!(bytes.as_slice().len(), pending.length);
                assert!(pending.is_answered && count == SENT_BY_COPY as usize);
            }
            (Kind::Close, Op::Close { fd: None }) => {
                self.ends[end].has_ended = true;
            }
            (kind, op) => panic!("{kind:?} gave {op:?} back"),
        }
    }

    /// An end has received these bytes: they must be the next ones that its peer has sent.
    fn received(&mut self, end: usize, bytes: &[u8]) {
        let before = self.ends[end].received;
        if !self.ends[end].received_is_unknown && !self.ends[end ^ 1].sent_is_unknown {
            for (index, found) in bytes.iter().enumerate() {
                assert_eq!(
                    *found,
                    byte(end ^ 1, before + index),
                    "byte {}",
                    before + index
                );
            }
        }
        self.ends[end].received += bytes.len();
    }

    // ---- the end

    /// Whether an operation must end without a cancel: what it waits for has happened.
    fn must_end(&self, pending: &Pending) -> bool {
        let (end, peer) = (&self.ends[pending.end], &self.ends[pending.end ^ 1]);
        match pending.kind {
            Kind::Close => true,
            Kind::Send => pending.is_answered || peer.has_ended && peer.fd.is_none(),
            Kind::Read if end.received_is_unknown || peer.sent_is_unknown => peer.has_ended,
            Kind::Read => peer.has_ended || peer.sent > end.received,
        }
    }

    fn finish(mut self) {
        let deadline = Instant::now() + PATIENCE;
        for is_cancelled in [false, true] {
            if is_cancelled {
                for token in self.pending.keys().copied().collect::<Vec<_>>() {
                    self.cancel(token);
                }
            }
            while self
                .pending
                .values()
                .any(|pending| is_cancelled || self.must_end(pending))
            {
                assert!(Instant::now() < deadline, "never ended: {:?}", self.pending);
                self.poll(PATIENCE);
            }
        }
        for end in 0..self.ends.len() {
            self.unwatch(end);
        }
        // Sockets of discarded operations are released here at the latest.
        self.driver.flush().unwrap();
        self.poll(Duration::ZERO);
        let World { driver, ends, .. } = self;
        drop(driver);
        let mut sockets = Vec::new();
        let mut ends = ends;
        for end in &mut ends {
            let fd = end.fd.take();
            sockets
                .push(fd.map(|fd| UnixStream::from(fd.try_unwrap().expect("a descriptor leaks"))));
        }
        for (number, socket) in sockets.iter_mut().enumerate() {
            let (end, peer) = (&ends[number], &ends[number ^ 1]);
            let Some(socket) = socket else { continue };
            let mut rest = Vec::new();
            // It ends with the last byte, with an end, or with the error of a peer that closed without reading.
            let _ = socket.read_to_end(&mut rest);
            if !end.received_is_unknown && !peer.sent_is_unknown {
                assert_eq!(
                    end.received + rest.len(),
                    peer.sent,
                    "bytes are lost or repeated"
                );
                for (index, found) in rest.iter().enumerate() {
                    assert_eq!(*found, byte(number ^ 1, end.received + index));
                }
            }
        }
    }
}
