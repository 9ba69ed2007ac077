//! Deadlines of connections: one queue for each kind of deadline.
//!
//! All deadlines of one kind have the same length, so a queue in the order in which they were set is also in the order
//! in which they expire. Setting or clearing one takes a few stores. The loop needs only one timer for each queue, for
//! its first deadline.

/// The activity that a connection is given a limited time for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// For the next request to begin, while what was made of the last one is kept.
    KeepAlive,
    /// For the next request to begin after that.
    Idle,
    /// For a request's head to be complete.
    Head,
    /// For more of a request's body.
    Body,
    /// For the peer to read more of a response.
    Write,
    /// Until a WebSocket is sent a ping.
    Ping,
    /// For the answer to a ping.
    Pong,
    /// For a WebSocket's client to close the connection, after a close frame.
    Close,
    /// For a client that has its last response to stop sending.
    Linger,
    /// For more of a body that is gathered before its request is started.
    Gather,
}

impl Kind {
    pub(super) const ALL: [Self; 10] = [
        Self::KeepAlive,
        Self::Idle,
        Self::Head,
        Self::Body,
        Self::Write,
        Self::Ping,
        Self::Pong,
        Self::Close,
        Self::Linger,
        Self::Gather,
    ];

    /// Writing has a deadline of its own; the others exclude one another.
    fn side(self) -> usize {
        usize::from(self == Self::Write)
    }
}

// Tables of one entry for each kind are made from ALL, and read by the kind's number.
const _: () = {
    let mut number = 0;
    while number < Kind::ALL.len() {
        assert!(Kind::ALL[number] as usize == number);
        number += 1;
    }
};

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    /// The queue that the node is in.
    kind: Option<Kind>,
    previous: u32,
    next: u32,
    at_ns: u64,
}

const FREE: Node = Node {
    kind: None,
    previous: NONE,
    next: NONE,
    at_ns: 0,
};

#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

/// The deadlines of all connections, which are known by small numbers.
pub(super) struct Deadlines {
    nodes: Vec<[Node; 2]>,
    queues: [Ends; Kind::ALL.len()],
}

impl Deadlines {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            queues: [Ends {
                first: NONE,
                last: NONE,
            }; Kind::ALL.len()],
        }
    }

    /// Sets the deadline of a connection, in place of the one it had for the same direction. Returns whether it is now the
    /// first of its queue.
    pub(super) fn set(&mut self, connection: usize, kind: Kind, at_ns: u64) -> bool {
        if self.nodes.len() <= connection {
            self.nodes.resize(connection + 1, [FREE; 2]);
        }
        let place = place(connection, kind);
        self.unlink(place);
        let last = self.queues[kind as usize].last;
        *self.node(place) = Node {
            kind: Some(kind),
            previous: last,
            next: NONE,
            at_ns,
        };
        self.queues[kind as usize].last = place;
        if last == NONE {
            self.queues[kind as usize].first = place;
        } else {
            self.node(last).next = place;
        }
        last == NONE
    }

    /// The kind of deadline that a connection has for reading.
    pub(super) fn reading(&self, connection: usize) -> Option<Kind> {
        self.nodes.get(connection).and_then(|nodes| nodes[0].kind)
    }

    /// Clears a connection's deadline for reading.
    pub(super) fn clear_reading(&mut self, connection: usize) {
        self.unlink(place(connection, Kind::KeepAlive));
    }

    /// Clears a connection's deadline for writing.
    pub(super) fn clear_writing(&mut self, connection: usize) {
        self.unlink(place(connection, Kind::Write));
    }

    /// When the first deadline of a kind expires.
    pub(super) fn first(&self, kind: Kind) -> Option<u64> {
        let first = self.queues[kind as usize].first;
        let nodes = self.nodes.get(first as usize / 2)?;
        Some(nodes[first as usize % 2].at_ns)
    }

    /// Takes a connection whose deadline of this kind has expired.
    pub(super) fn expire(&mut self, kind: Kind, now_ns: u64) -> Option<usize> {
        if self.first(kind)? > now_ns {
            return None;
        }
        let place = self.queues[kind as usize].first;
        self.unlink(place);
        Some(place as usize / 2)
    }

    fn node(&mut self, place: u32) -> &mut Node {
        &mut self.nodes[place as usize / 2][place as usize % 2]
    }

    fn unlink(&mut self, place: u32) {
        if self.nodes.len() <= place as usize / 2 {
            return;
        }
        let node = std::mem::replace(self.node(place), FREE);
        let Some(kind) = node.kind else {
            return;
        };
        if node.previous == NONE {
            self.queues[kind as usize].first = node.next;
        } else {
            self.node(node.previous).next = node.next;
        }
        if node.next == NONE {
            self.queues[kind as usize].last = node.previous;
        } else {
            self.node(node.next).previous = node.previous;
        }
    }
}

fn place(connection: usize, kind: Kind) -> u32 {
    (connection * 2 + kind.side()) as u32
}
