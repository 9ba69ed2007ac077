//! The generator's connections, and the loop that serves them.
//!
//! In the closed loop a connection sends its next request when an answer is complete. Both happen at the same instant, so the
//! clock is read once for both. In the open loop requests have intended instants, evenly distributed over time and connections. A
//! request waits while its connection is busy, and its latency counts from the intended instant. With --churn a request begins when
//! its connection is opened. With --idle each connection sends one when it is open, and no others.
//!
//! Sockets are edge-triggered, except for streams: each is read once per answer, and a short read means that nothing is left.
//! A connection is ready for requests after TLS and the protocol's greeting, if it has these.
//!
//! The file is long because it is one state machine: connecting, sending, receiving and closing all change the same counts of what is
//! in flight.

use std::io::{self, Write};
use std::time::Duration;

use crate::connection::{Connection, State};
use crate::control::{Control, Progress, REST_NS, Record};
use crate::exchange::{Exchange, READ_BYTES, STREAM_WRITE_BYTES, outstanding_limit};
use crate::failure::{Failure, Kind, connect_failure};
use crate::link::Link;
use crate::measured::Measured;
use crate::pattern::Unsent;
use crate::schedule::Schedule;
use crate::settings::Settings;
use crate::shared::{Phase, Shared};
use crate::system::{
    EDGE_TRIGGERED, ENDED, Epoll, Event, NO_EVENT, READABLE, WRITABLE, Wait, now_ns,
    unacknowledged_bytes,
};

const EVENTS_PER_TURN: usize = 256;
/// The minimum time between opening two connections. On the same machine they are established at once, even before the server
/// accepts them. If its backlog is full, the kernel drops them and tries again only after a second.
const BETWEEN_CONNECTIONS_NS: u64 = 125_000;
/// How much is received at once of an answer to a greeting that is there when TCP is connected.
const GREETING_READ_BYTES: usize = 4096;
/// How often to check for late answers.
const TICK_NS: u64 = 50_000_000;
/// How often an idle worker checks whether to begin or to end.
const IDLE_NS: u64 = 1_000_000;

/// The connections of a run, and what was measured.
pub(crate) struct Worker<'a, E: Exchange> {
    settings: &'a Settings,
    shared: &'a Shared,
    control: Control<'a>,
    exchange: E,
    epoll: Epoll,
    connections: Vec<Connection<E::Partial>>,
    /// When the requests in flight were started, with `pipeline` entries for each connection.
    starts_ns: Vec<u64>,
    schedule: Option<Schedule>,
    /// The maximum of outstanding bytes on each stream.
    outstanding_limit: u64,
    /// Whether new requests may be started.
    sending: bool,
    /// Whether the acknowledged bytes at the beginning of the window are known (streams in one direction).
    measuring: bool,
    /// How many connections were begun, how many of these are neither open nor dead yet, and when the first was begun.
    begun: usize,
    connecting: usize,
    begun_ns: u64,
    in_flight: u64,
    in_flight_since_ns: u64,
    progress: Progress,
    measured: Measured,
}

impl<'a, E: Exchange> Worker<'a, E> {
    pub(crate) fn new(
        settings: &'a Settings,
        shared: &'a Shared,
        control: Control<'a>,
        exchange: E,
    ) -> io::Result<Self> {
        let connections: Vec<_> = (0..settings.connections).map(Connection::new).collect();
        let schedule = settings
            .rate
            .map(|rate| Schedule::new(connections.len(), 1e9 / rate, settings.seed));
        Ok(Self {
            settings,
            shared,
            control,
            exchange,
            epoll: Epoll::new()?,
            starts_ns: vec![0; connections.len() * settings.pipeline as usize],
            connections,
            schedule,
            outstanding_limit: outstanding_limit(settings.connections),
            sending: false,
            measuring: false,
            begun: 0,
            connecting: 0,
            begun_ns: 0,
            in_flight: 0,
            in_flight_since_ns: 0,
            progress: Progress::default(),
            measured: Measured::default(),
        })
    }

    /// Runs until the phase is [`Phase::Over`].
    pub(crate) fn run(mut self) -> io::Result<(Measured, Record)> {
        let mut buffer = vec![0; READ_BYTES];
        let mut events = [NO_EVENT; EVENTS_PER_TURN];
        let mut next_tick_ns = now_ns() + TICK_NS;
        let mut now = now_ns();
        let mut idle_since_ns = now;
        loop {
            // Send what is due first, so that no request that is due in the window is left out.
            now = self.send_due(now);
            self.progress.alive = self.measured.alive + self.connecting as u64;
            now = self.control.advance(now, &self.progress);
            match self.shared.phase() {
                Phase::Connecting => self.connect_some(now),
                Phase::Window if E::ONE_WAY && !self.measuring => self.begin_measuring(),
                Phase::WarmUp | Phase::Window if self.control.finishing => self.drain(),
                Phase::WarmUp | Phase::Window if !self.sending => self.begin_sending(),
                Phase::WarmUp | Phase::Rest | Phase::Window => {}
                Phase::Drain => self.drain(),
                Phase::Over => return Ok(self.finish(now)),
            }
            if now >= next_tick_ns {
                self.tick(now);
                next_tick_ns = now + TICK_NS;
            }
            let mut until_ns = next_tick_ns.min(self.control.deadline_ns);
            if !self.sending || self.progress.drained {
                let resting = self.shared.phase() == Phase::Rest;
                until_ns = until_ns.min(now + if resting { REST_NS } else { IDLE_NS });
            }
            let wait = match &self.schedule {
                _ if now < idle_since_ns + self.settings.spin_ns => Wait::Poll,
                // Waking up takes tens of microseconds, which would delay requests.
                Some(schedule) if self.sending => {
                    let next_ns = until_ns.min(schedule.next_ns);
                    match next_ns.saturating_sub(now + self.settings.spin_ns) {
                        0 if self.settings.spin_ns > 0 || next_ns <= now => Wait::Poll,
                        left_ns => Wait::Precise(left_ns.max(1)),
                    }
                }
                _ => Wait::Coarse(until_ns.saturating_sub(now)),
            };
            let waiting_ns = now;
            let happened = self.epoll.wait(&mut events, wait)?;
            let woken_ns = now_ns();
            now = self.send_due(woken_ns);
            for event in happened {
                now = self.serve(*event, &mut buffer, now);
                now = self.send_due(now);
            }
            if now == woken_ns {
                // Nothing happened, and nothing was due.
                continue;
            }
            now = now_ns();
            idle_since_ns = now;
            if self.shared.phase() == Phase::Window {
                self.measured.turn_ns_max = self.measured.turn_ns_max.max(now - woken_ns);
                // A poll that finds something counts as work, sleeping does not.
                let asleep = !matches!(wait, Wait::Poll);
                let since_ns = if asleep { woken_ns } else { waiting_ns };
                let begin_ns = self.control.window_begin_ns;
                self.measured.busy_ns += now.saturating_sub(since_ns.max(begin_ns));
            }
        }
    }

    // --- connecting ---

    fn connect_some(&mut self, now: u64) {
        if self.begun == 0 {
            self.begun_ns = now;
        }
        self.progress.tried = self.begun as u64 - self.connecting as u64 - self.in_flight;
        while self.begun < self.connections.len() {
            let shortest_ns = u64::from(self.settings.connections) * BETWEEN_CONNECTIONS_NS;
            let ramp_ns = self.settings.ramp_ns.max(shortest_ns);
            let part = self.begun as f64 / self.connections.len() as f64;
            if now < self.begun_ns + (ramp_ns as f64 * part) as u64 {
                return;
            }
            let number = u64::from(self.connections[self.begun].number);
            if number >= self.control.connections_allowed {
                // The ramp goes on from here when this step's memory has been read.
                self.begun_ns = now.saturating_sub((ramp_ns as f64 * part) as u64);
                return;
            }
            self.begun += 1;
            self.open(self.begun - 1);
        }
        self.progress.ready = self.connecting == 0 && self.in_flight == 0;
    }

    /// Begins to open a connection.
    fn open(&mut self, index: usize) {
        let now = now_ns();
        if self.settings.churn {
            self.start_next(index, now);
        }
        let tls = self.settings.tls.as_ref();
        let connect = || -> io::Result<(Link, bool)> {
            let (socket, address) = self.settings.endpoint.socket()?;
            socket.set_nonblocking(true)?;
            if self.settings.churn || self.settings.steps > 0 {
                // Closing resets the connection, so that neither side keeps its port in TIME_WAIT.
                socket.set_linger(Some(Duration::ZERO))?;
            }
            let connected = match socket.connect(&address) {
                Ok(()) => true,
                Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => false,
                Err(error) => return Err(error),
            };
            let events = READABLE | WRITABLE | ENDED;
            if E::ONE_WAY {
                // Otherwise the kernel would keep up to 4 MB (tcp_wmem) for each connection, and say that these are sent.
                socket.set_tcp_notsent_lowat(STREAM_WRITE_BYTES as u32)?;
            }
            let trigger = if E::STREAMING { 0 } else { EDGE_TRIGGERED };
            self.epoll.add(&socket, events | trigger, index as u64)?;
            Ok((Link::new(socket, tls)?, connected))
        };
        self.connecting += 1;
        let begun = connect();
        let connection = &mut self.connections[index];
        connection.since_ns = now;
        match begun {
            Ok((link, connected)) => {
                connection.link = Some(link);
                connection.state = State::Connecting;
                connection.heard.clear();
                if connected {
                    self.greet(index, &mut [0; GREETING_READ_BYTES]);
                }
            }
            Err(error) => self.not_connected(index, &error),
        }
    }

    /// Goes on with TLS and with the protocol's greeting, as far as possible.
    #[cold]
    fn greet(&mut self, index: usize, buffer: &mut [u8]) {
        let connection = &mut self.connections[index];
        if connection.state == State::Connecting {
            connection.state = State::Securing;
        }
        let number = connection.number;
        match Self::greet_step(&self.exchange, connection, buffer) {
            Ok(true) => self.opened(index, now_ns()),
            Ok(false) => {}
            Err(failure) => {
                let message = format!("connection {number}: {failure}");
                self.not_opened(index, Failure::new(failure.kind, message));
            }
        }
    }

    /// Returns whether the connection is ready for requests.
    fn greet_step(
        exchange: &E,
        connection: &mut Connection<E::Partial>,
        buffer: &mut [u8],
    ) -> Result<bool, Failure> {
        let Some(link) = &mut connection.link else {
            return Ok(false);
        };
        let refused = |what: String| Failure::new(Kind::Handshake, what);
        match link.handshake() {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => return Err(refused(format!("no TLS: {error}"))),
        }
        let greeting = exchange.greeting();
        if greeting.is_empty() {
            return Ok(true);
        }
        let broke = |error: io::Error| refused(format!("the greeting failed: {error}"));
        if connection.state == State::Securing {
            connection.state = State::Greeting;
            link.write_all(greeting).map_err(broke)?;
        }
        loop {
            match link.receive(buffer) {
                Ok((0, _)) => {
                    return Err(refused(format!(
                        "the server closed it after {} bytes of its answer to the greeting",
                        connection.heard.len()
                    )));
                }
                Ok((bytes, _)) => connection.heard.extend_from_slice(&buffer[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(broke(error)),
            }
            if let Some(reply) = exchange.greeted(&connection.heard)? {
                link.write_all(reply).map_err(broke)?;
                connection.heard = Vec::new();
                return Ok(true);
            }
        }
    }

    fn opened(&mut self, index: usize, now: u64) {
        let connection = &mut self.connections[index];
        self.measured
            .connecting
            .record(now.saturating_sub(connection.since_ns));
        connection.state = State::Open;
        connection.since_ns = now;
        connection.answered_before = connection.answered;
        self.connecting -= 1;
        self.measured.alive += 1;
        if connection.opened {
            self.measured.reopened += 1;
        } else {
            connection.opened = true;
            self.measured.opened += 1;
        }
        if !self.sending {
            self.drop_requests(index, now);
        }
        self.start_all(index, now);
    }

    fn not_connected(&mut self, index: usize, error: &io::Error) {
        let number = self.connections[index].number;
        let failure = connect_failure(number, &self.settings.endpoint, error);
        self.not_opened(index, failure);
    }

    fn not_opened(&mut self, index: usize, failure: Failure) {
        let connection = &mut self.connections[index];
        connection.link = None;
        connection.state = State::Closed;
        self.drop_requests(index, now_ns());
        self.connecting -= 1;
        self.shared.fail(failure);
    }

    fn finish_connecting(&mut self, index: usize, event: u32, buffer: &mut [u8]) {
        let Some(link) = &self.connections[index].link else {
            return;
        };
        match link.socket().take_error() {
            Ok(None) if event & WRITABLE != 0 => self.greet(index, buffer),
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => self.not_connected(index, &error),
        }
    }

    // --- requests ---

    fn begin_sending(&mut self) {
        self.sending = true;
        self.progress.drained = false;
        if let Some(schedule) = &mut self.schedule {
            schedule.begin(self.control.sending_begin_ns);
            return;
        }
        for index in 0..self.connections.len() {
            if self.connections[index].state == State::Open {
                self.start_all(index, now_ns());
            }
        }
    }

    /// Starts the requests of the open loop that are due. Returns the time.
    #[inline]
    fn send_due(&mut self, mut now: u64) -> u64 {
        if !self.sending {
            return now;
        }
        while let Some(schedule) = &mut self.schedule
            && schedule.next_ns <= now
        {
            let intended_ns = schedule.next_ns;
            let index = schedule.step();
            let connection = &mut self.connections[index];
            connection.due = connection.due.wrapping_add(1);
            let free = connection.in_flight() < self.settings.pipeline
                && connection.due.wrapping_sub(connection.started) == 1
                && connection.state == State::Open
                && !connection.closing;
            if free {
                // The time spent on the requests before it belongs to its lateness. The clock is read only if something is sent,
                // because this loop must be faster than any rate.
                now = now_ns();
                if self.control.counts(intended_ns) {
                    self.measured
                        .lateness
                        .record(now.saturating_sub(intended_ns));
                }
                self.start_next(index, now);
                self.send(index);
            }
        }
        now
    }

    /// Starts as many requests on a connection as are allowed, and sends them.
    fn start_all(&mut self, index: usize, now: u64) {
        while self.start_next(index, now) {}
        self.send(index);
    }

    /// Starts the next request of a connection, if one more is allowed.
    #[inline]
    fn start_next(&mut self, index: usize, now: u64) -> bool {
        let pipeline = self.settings.pipeline;
        let open_loop = self.schedule.is_some();
        let connection = &mut self.connections[index];
        let wanted = if self.settings.idle {
            connection.started == 0
        } else {
            self.sending && (!open_loop || connection.started != connection.due)
        };
        if !wanted || connection.in_flight() >= pipeline || connection.closing {
            return false;
        }
        let place = index * pipeline as usize + (connection.started % pipeline) as usize;
        connection.started = connection.started.wrapping_add(1);
        self.starts_ns[place] = now;
        if E::STREAMING {
            connection.since_ns = now;
        }
        self.count_in_flight(now);
        self.in_flight += 1;
        true
    }

    /// Forgets the requests of a connection that have no answer.
    fn drop_requests(&mut self, index: usize, now: u64) {
        self.count_in_flight(now);
        let connection = &mut self.connections[index];
        self.in_flight -= u64::from(connection.in_flight());
        connection.started = connection.answered;
        connection.sent = connection.answered;
        connection.position = 0;
    }

    /// Adds the requests that were in flight since the last change to the integral, as far as that time was in the window.
    #[inline]
    fn count_in_flight(&mut self, now: u64) {
        let from_ns = self.in_flight_since_ns.max(self.control.window_begin_ns);
        let until_ns = now.min(self.control.window_end_ns);
        self.measured.in_flight_ns +=
            u128::from(self.in_flight) * u128::from(until_ns.saturating_sub(from_ns));
        self.in_flight_since_ns = now;
    }

    /// Sends started requests, as far as the socket takes them. An edge triggers sending the rest.
    fn send(&mut self, index: usize) {
        let request_bytes = self.exchange.request_bytes();
        loop {
            let connection = &mut self.connections[index];
            let unsent = Unsent {
                first: connection.frame(connection.sent),
                position: connection.position,
                count: connection.unsent() as usize,
            };
            if unsent.count == 0 || connection.state != State::Open {
                return;
            }
            let Some(link) = &mut connection.link else {
                return;
            };
            match self.exchange.send(link, unsent) {
                Ok(bytes) => {
                    let counting = self.shared.phase() == Phase::Window;
                    if counting {
                        self.measured.bytes_out += bytes as u64;
                        self.measured.writes += 1;
                    }
                    let sent = connection.position + bytes;
                    connection.position = sent % request_bytes;
                    if !E::STREAMING {
                        connection.sent =
                            connection.sent.wrapping_add((sent / request_bytes) as u32);
                        continue;
                    }
                    let before = connection.outstanding;
                    let outstanding = before + bytes as u64;
                    connection.outstanding = outstanding;
                    if E::ONE_WAY {
                        if counting {
                            let messages = |bytes: u64| bytes / request_bytes as u64;
                            self.progress.completed += messages(outstanding) - messages(before);
                        }
                        return;
                    }
                    self.measured.outstanding_max = self.measured.outstanding_max.max(outstanding);
                    if outstanding + STREAM_WRITE_BYTES as u64 > self.outstanding_limit {
                        self.measured.held_back += 1;
                        self.hold_stream(index, true);
                    }
                    return;
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted => {}
                    // There may still be data to read that the server sent before. The socket's event will bring it, and the end.
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                        connection.broken = true;
                        return;
                    }
                    _ => return self.ended(index, Some(&error)),
                },
            }
        }
    }

    /// Sends what TLS has encrypted and the socket didn't take.
    #[inline]
    fn flush(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.state == State::Open
            && let Some(link) = &mut connection.link
            && link.flush().is_err()
        {
            // The socket's event brings the end.
            connection.broken = true;
        }
    }

    /// Stops sending on a stream, or resumes it. It is level-triggered, so an event that is not handled would repeat at once.
    #[cold]
    fn hold_stream(&mut self, index: usize, held: bool) {
        let connection = &mut self.connections[index];
        let (sent, events) = if held {
            (connection.started, READABLE | ENDED)
        } else {
            (connection.answered, READABLE | WRITABLE | ENDED)
        };
        connection.sent = sent;
        let Some(link) = &connection.link else {
            return;
        };
        if let Err(error) = self.epoll.change(link.socket(), events, index as u64) {
            let number = connection.number;
            let words = format!("connection {number} can't be watched: {error}");
            self.fail(index, Failure::new(Kind::Other, words));
        }
    }

    /// How many bytes of a stream the server's kernel has acknowledged. 0 if the connection is gone.
    fn acknowledged(connection: &Connection<E::Partial>) -> u64 {
        let link = connection.link.as_ref();
        link.and_then(|link| unacknowledged_bytes(link.socket()).ok())
            .map_or(0, |bytes| connection.outstanding.saturating_sub(bytes))
    }

    /// Looks up at the beginning of the window what the server's kernel has acknowledged of each stream in one direction.
    #[cold]
    fn begin_measuring(&mut self) {
        self.measuring = true;
        for connection in &mut self.connections {
            connection.acknowledged_before = Self::acknowledged(connection);
        }
        if !self.sending {
            self.begin_sending();
        }
    }

    /// Counts at the end of the window what the server's kernel has acknowledged in it: what was written may still be in this machine's
    /// buffers.
    #[cold]
    fn end_measuring(&mut self) {
        self.measured.bytes_out = 0;
        for connection in &mut self.connections {
            let acknowledged = Self::acknowledged(connection);
            connection.operations = acknowledged.saturating_sub(connection.acknowledged_before);
            self.measured.bytes_out += connection.operations;
        }
    }

    /// Tells the servers of streams in one direction that these end.
    #[cold]
    fn end_sending(&mut self, now: u64) {
        for index in 0..self.connections.len() {
            if self.connections[index].state != State::Open {
                continue;
            }
            self.hold_stream(index, true);
            let connection = &mut self.connections[index];
            connection.since_ns = now;
            if let Some(link) = &connection.link
                && (self.exchange)
                    .end(link, &mut connection.partial, connection.outstanding)
                    .is_err()
            {
                // The socket's event brings the reason.
                connection.broken = true;
            }
        }
    }

    // --- answers ---

    /// Handles an event of a socket. Returns the time.
    #[inline]
    fn serve(&mut self, event: Event, buffer: &mut [u8], now: u64) -> u64 {
        let (events, index) = (event.events, event.u64 as usize);
        let mut now = now;
        match self.connections[index].state {
            State::Connecting => {
                now = now_ns();
                self.finish_connecting(index, events, buffer);
            }
            State::Securing | State::Greeting => {
                now = now_ns();
                self.greet(index, buffer);
            }
            _ => {}
        }
        if events & (READABLE | ENDED) != 0 && self.connections[index].state == State::Open {
            now = self.receive(index, events & ENDED != 0, buffer, now);
        }
        if events & WRITABLE != 0 {
            self.flush(index);
            self.send(index);
        }
        now
    }

    fn receive(&mut self, index: usize, ended: bool, buffer: &mut [u8], mut now: u64) -> u64 {
        loop {
            let connection = &mut self.connections[index];
            let Some(link) = &mut connection.link else {
                return now;
            };
            match link.receive(buffer) {
                Ok((0, _)) if !E::DATAGRAMS => {
                    self.ended(index, None);
                    return now;
                }
                Ok((bytes, more)) => {
                    now = now_ns();
                    if !self.take(index, &buffer[..bytes], now) {
                        return now;
                    }
                    self.send(index);
                    // Sending may have found the connection broken, and opened it again.
                    if self.connections[index].state != State::Open {
                        return now;
                    }
                    // Of several datagrams that have come, each call receives one.
                    if E::STREAMING || (!more && !ended && !E::DATAGRAMS) {
                        return now;
                    }
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return now,
                    io::ErrorKind::Interrupted => {}
                    _ => {
                        self.ended(index, Some(&error));
                        return now;
                    }
                },
            }
        }
    }

    /// Takes received bytes of a connection. Returns whether it is still open.
    #[inline]
    fn take(&mut self, index: usize, received: &[u8], now: u64) -> bool {
        let counting = self.shared.phase() == Phase::Window;
        if counting {
            self.measured.bytes_in += received.len() as u64;
            self.measured.reads += 1;
        }
        let mut rest = received;
        let empty_datagram = E::DATAGRAMS && received.is_empty();
        while !rest.is_empty() || empty_datagram || E::has_next(&self.connections[index].partial) {
            let connection = &mut self.connections[index];
            let nothing_asked = connection.answered == connection.sent && connection.position == 0;
            let unexpected = connection.in_flight() == 0 || (nothing_asked && !E::STREAMING);
            if unexpected && !E::CONTROL_FRAMES {
                let when = match connection.answered.checked_sub(1) {
                    Some(last) => format!("after the answer to its message {last}"),
                    None => "before its first message was sent".to_owned(),
                };
                let words = format!(
                    "{} bytes came on connection {} {when}, which nobody asked for",
                    rest.len(),
                    connection.number
                );
                self.fail(index, Failure::new(Kind::Unexpected, words));
                return false;
            }
            let request = connection.frame(connection.answered);
            let taken = match self.exchange.take(request, &mut connection.partial, rest) {
                Ok(taken) => taken,
                Err(failure) => {
                    self.fail(index, failure);
                    return false;
                }
            };
            rest = &rest[taken.bytes..];
            if E::ONE_WAY {
                if taken.answer.is_none() {
                    continue;
                }
                self.measured.counted += connection.outstanding;
                connection.link = None;
                self.drop_requests(index, now);
                return false;
            }
            if E::STREAMING {
                let Some(left) = connection.outstanding.checked_sub(taken.bytes as u64) else {
                    let words = format!(
                        "connection {} brought {} bytes more than were sent on it",
                        connection.number,
                        taken.bytes as u64 - connection.outstanding
                    );
                    self.fail(index, Failure::new(Kind::Unexpected, words));
                    return false;
                };
                connection.outstanding = left;
                connection.since_ns = now;
                if counting {
                    let message_bytes = self.exchange.request_bytes() as u64;
                    let before = connection.operations / message_bytes;
                    connection.operations += taken.bytes as u64;
                    self.progress.completed += connection.operations / message_bytes - before;
                }
                if self.sending && connection.unsent() == 0 && left <= self.outstanding_limit / 2 {
                    self.hold_stream(index, false);
                } else if !self.sending && left == 0 {
                    self.drop_requests(index, now);
                }
                continue;
            }
            let Some(answer) = taken.answer else {
                continue;
            };
            if answer.last && !connection.closing && !self.settings.idle {
                connection.closing = true;
                connection.since_ns = now;
            }
            if connection.answered == connection.sent {
                let words = format!("{request} was answered before it was sent completely");
                self.fail(index, Failure::new(Kind::Unexpected, words));
                return false;
            }
            let right = answer.wrong.is_none();
            if let Some(failure) = answer.wrong {
                self.shared.fail(failure);
            }
            self.complete(index, now, counting, right);
            if !self.settings.churn {
                self.start_next(index, now);
            }
        }
        if self.settings.churn && self.connections[index].in_flight() == 0 {
            if self.sending {
                self.reopen(index);
            } else {
                let connection = &mut self.connections[index];
                connection.link = None;
                connection.closing = false;
            }
            return false;
        }
        true
    }

    /// Completes the oldest request of a connection.
    #[inline]
    fn complete(&mut self, index: usize, now: u64, counting: bool, right: bool) {
        let pipeline = self.settings.pipeline;
        let connection = &mut self.connections[index];
        let sequence = connection.answered;
        let started_ns = self.starts_ns[index * pipeline as usize + (sequence % pipeline) as usize];
        connection.answered = sequence.wrapping_add(1);
        if right {
            if counting {
                connection.operations += 1;
                self.progress.completed += 1;
            }
            match &self.schedule {
                // It also counts if it was sent before the window. Otherwise the longest latencies would be missing: the longer
                // an answer takes, the less likely it is that it both begins and ends in the window.
                None => {
                    if counting {
                        self.measured.service.record(now - started_ns);
                    }
                }
                Some(schedule) => {
                    let intended_ns = schedule.intended_ns(index, sequence);
                    if self.control.counts(intended_ns) {
                        self.measured.service.record(now - started_ns);
                        self.measured
                            .corrected
                            .record(now.saturating_sub(intended_ns));
                    }
                }
            }
        }
        self.count_in_flight(now);
        self.in_flight -= 1;
    }

    /// Gives up the datagram that is in flight on a connection, and goes on with the next one, on a new socket: its echo may still
    /// come to the old one.
    #[cold]
    fn lose(&mut self, index: usize, now: u64) {
        let connection = &mut self.connections[index];
        let lost = connection.frame(connection.answered);
        let how = match connection.unsent() {
            0 => "no answer came to",
            _ => "no room was in the socket for",
        };
        connection.answered = connection.answered.wrapping_add(1);
        self.count_in_flight(now);
        self.in_flight -= 1;
        if let Some(schedule) = &self.schedule {
            let intended_ns = schedule.intended_ns(index, lost.sequence);
            if self.control.counts(intended_ns) {
                let waited_ns = now.saturating_sub(intended_ns);
                self.measured.corrected.record(waited_ns);
                self.measured.unfinished += 1;
            }
        }
        let words = format!(
            "{how} datagram {} of connection {} within {} s",
            lost.sequence,
            lost.connection,
            self.settings.timeout_ns as f64 / 1e9
        );
        self.shared.fail(Failure::new(Kind::Lost, words));
        self.reopen(index);
    }

    /// Handles a connection that the server has closed, or that broke.
    #[cold]
    fn ended(&mut self, index: usize, error: Option<&io::Error>) {
        let connection = &mut self.connections[index];
        let progress = self.exchange.describe(&connection.partial);
        let unasked = connection.in_flight() == 0 && progress.is_none();
        let between =
            unasked && error.is_none() && connection.answered != connection.answered_before;
        // A server that has announced the end may reset the connection, because it leaves later requests unread.
        if E::RECONNECTS && !self.settings.idle && (connection.closing || between) {
            return self.reopen(index);
        }
        let number = connection.number;
        if let Some(error) = error
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            // Of UDP: nobody listens there.
            let failure = connect_failure(number, &self.settings.endpoint, error);
            return self.fail(index, failure);
        }
        let code = error.and_then(io::Error::raw_os_error);
        let reset = connection.broken || matches!(code, Some(libc::ECONNRESET | libc::EPIPE));
        let (how, mut kind) = match error {
            _ if reset => ("the server reset".to_owned(), Kind::Reset),
            None => ("the server closed".to_owned(), Kind::Closed),
            Some(error) => (format!("an error ({error}) broke"), Kind::Other),
        };
        let answered = connection.answered;
        let when = match progress {
            _ if unasked => "with nothing to answer".to_owned(),
            Some(progress) => {
                kind = Kind::HalfAnswer;
                format!("after {progress}, in answer to message {answered}")
            }
            None => format!("without an answer to message {answered}"),
        };
        let words = format!("{how} connection {number} {when}");
        self.fail(index, Failure::new(kind, words));
    }

    /// Opens a connection again that was closed in order.
    fn reopen(&mut self, index: usize) {
        self.forget(index);
        let connection = &mut self.connections[index];
        connection.closing = false;
        connection.broken = false;
        connection.partial = E::Partial::default();
        self.open(index);
    }

    /// Reports a failure and gives up its connection.
    #[cold]
    fn fail(&mut self, index: usize, failure: Failure) {
        self.forget(index);
        self.connections[index].state = State::Closed;
        self.shared.fail(failure);
    }

    /// Closes an open connection. Its requests are no longer in flight.
    fn forget(&mut self, index: usize) {
        self.drop_requests(index, now_ns());
        self.connections[index].link = None;
        self.measured.alive -= 1;
    }

    // --- time ---

    /// Gives up connections and requests that take too long.
    fn tick(&mut self, now: u64) {
        let timeout_ns = self.settings.timeout_ns;
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            if E::ONE_WAY && connection.state == State::Open && connection.in_flight() > 0 {
                // Nothing comes back, but the server goes on as long as its kernel acknowledges something.
                let acknowledged = Self::acknowledged(connection);
                if acknowledged != connection.acknowledged {
                    connection.acknowledged = acknowledged;
                    connection.since_ns = now;
                }
            }
            let waiting = connection.in_flight() > 0;
            let since_ns = match connection.state {
                State::Closed => continue,
                State::Open if !waiting && !connection.closing => continue,
                State::Open if waiting && !E::STREAMING => {
                    let pipeline = self.settings.pipeline;
                    let oldest = (connection.answered % pipeline) as usize;
                    self.starts_ns[index * pipeline as usize + oldest]
                }
                _ => connection.since_ns,
            };
            if now.saturating_sub(since_ns) <= timeout_ns {
                continue;
            }
            let (number, seconds) = (connection.number, timeout_ns as f64 / 1e9);
            match connection.state {
                State::Connecting => {
                    let error = io::Error::from_raw_os_error(libc::ETIMEDOUT);
                    self.not_connected(index, &error);
                }
                State::Open if E::DATAGRAMS => self.lose(index, now),
                State::Open => {
                    let words = if waiting {
                        let progress = self.exchange.describe(&connection.partial);
                        format!(
                            "no whole answer to message {} on connection {number} within {seconds} s; {} came",
                            connection.answered,
                            progress.unwrap_or_else(|| "nothing".to_owned())
                        )
                    } else {
                        format!(
                            "the server said that it closes connection {number}, and didn't within {seconds} s"
                        )
                    };
                    self.fail(index, Failure::new(Kind::Timeout, words));
                }
                _ => {
                    let words = format!(
                        "connection {number}: no answer to the greeting within {seconds} s"
                    );
                    self.not_opened(index, Failure::new(Kind::Handshake, words));
                }
            }
        }
    }

    /// Starts nothing new, and reports when everything is answered.
    fn drain(&mut self) {
        if self.sending {
            self.sending = false;
            self.count_in_flight(now_ns());
            if E::ONE_WAY {
                self.end_measuring();
                self.end_sending(now_ns());
            } else if E::STREAMING {
                for index in 0..self.connections.len() {
                    self.hold_stream(index, true);
                    if self.connections[index].outstanding == 0 {
                        self.drop_requests(index, now_ns());
                    }
                }
            }
        }
        let closing =
            |connection: &Connection<_>| connection.closing && connection.state == State::Open;
        if self.in_flight == 0 && self.connecting == 0 && !self.connections.iter().any(closing) {
            self.progress.drained = true;
        }
    }

    /// Requests that were due in the window and have no answer count with the time that they have waited so far.
    fn count_unfinished(&mut self, now: u64) {
        let Some(schedule) = &self.schedule else {
            return;
        };
        let end_ns = self.control.window_end_ns;
        self.measured.due = schedule.count_between(self.control.window_begin_ns, end_ns);
        for (index, connection) in self.connections.iter().enumerate() {
            let mut sequence = connection.answered;
            while sequence != connection.due {
                let intended_ns = schedule.intended_ns(index, sequence);
                let in_flight = sequence.wrapping_sub(connection.answered) < connection.in_flight();
                let waited_until_ns = if in_flight { now } else { end_ns };
                if self.control.counts(intended_ns) {
                    self.measured
                        .corrected
                        .record(waited_until_ns.saturating_sub(intended_ns));
                    self.measured.unfinished += 1;
                }
                sequence = sequence.wrapping_add(1);
            }
        }
    }

    fn finish(mut self, now: u64) -> (Measured, Record) {
        self.count_unfinished(now);
        let unit = if E::STREAMING {
            self.exchange.request_bytes() as u64
        } else {
            1
        };
        self.measured.operations = self
            .connections
            .iter()
            .filter(|connection| connection.opened)
            .map(|connection| connection.operations / unit)
            .collect();
        self.measured.operations.sort_unstable();
        (self.measured, self.control.record)
    }
}
