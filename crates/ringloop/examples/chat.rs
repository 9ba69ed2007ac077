//! A chat room for lines of text, whose members are on several workers. Try it with `nc 127.0.0.1 7000`, twice.
//!
//! One task, the room, owns the list of members and decides the order of everything that is said. Each member sees that
//! order from the moment of joining on. Two kinds of bounded channels connect the room with the connections, across
//! workers:
//!
//! - Connections send events to the room. While that channel is full they wait, and read nothing from their peers. So
//!   TCP slows down whoever talks faster than the room can repeat it.
//! - The room sends to a queue for each member, and never waits. A member whose queue is full reads too slowly: it is
//!   dropped, and loses what it has not read. So nobody can hold up the others.

mod arguments;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::Parser;
use futures_util::future::{Either, select};
use ringloop::channel::{self, Receiver, Sender, TrySendError};
use ringloop::net::{OwnedReadHalf, OwnedWriteHalf, TcpStream};
use ringloop::server::Client;
use ringloop::time::timeout;
use ringloop::{Stopping, stopping};

/// A chat room: names, joining and leaving, /who, /quit; a member that reads too slowly is dropped.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    listening: arguments::Listening,
}

/// How many messages may wait for a member before it counts as too slow.
const QUEUE_MESSAGES: usize = 256;
/// How many events may wait for the room before connections wait.
const ROOM_EVENTS: usize = 1024;
/// The longest line, in bytes.
const LINE_MAX: usize = 1024;
/// The longest name, in bytes.
const NAME_MAX: usize = 20;
/// How long somebody may take to enter a name, and to read the last messages after leaving.
const PATIENCE: Duration = Duration::from_secs(60);

/// A message of a connection to the room.
enum Event {
    /// Somebody wants to join. The answer is the new member's number, or `None` if another member has that name.
    Join {
        member: Member,
        answer: Sender<Option<u64>>,
    },
    /// A member says something.
    Say { member: u64, text: String },
    /// A member asks who is there.
    Who { member: u64 },
    /// A member leaves.
    Leave { member: u64 },
    /// The room closes.
    Close,
}

/// A member, as the room knows it.
struct Member {
    name: String,
    queue: Sender<Bytes>,
    /// Kept to send the message that the member was too slow.
    too_slow: Sender<()>,
}

#[derive(Default)]
struct Room {
    /// Members by number, which is the order in which they joined.
    members: BTreeMap<u64, Member>,
    joined: u64,
}

impl Room {
    async fn run(mut self, events: Receiver<Event>) {
        // While the room holds it, a shutdown waits: members on other workers may still have something to say.
        let mut stopping = pin!(stopping());
        while let Some(event) = self.next(&events, stopping.as_mut()).await {
            match event {
                Event::Join { member, answer } => {
                    let is_taken = self.members.values().any(|other| other.name == member.name);
                    let number = (!is_taken).then(|| self.join(member));
                    // If the connection is gone, nobody waits for the answer, and the next message will notice.
                    let _ = answer.try_send(number);
                }
                Event::Say { member, text } => {
                    if let Some(Member { name, .. }) = self.members.get(&member) {
                        let line = format!("{name}: {text}\n");
                        self.tell_all(line);
                    }
                }
                Event::Who { member } => {
                    let names = self.names();
                    self.tell(member, format!("* Here are: {names}.\n"));
                }
                Event::Leave { member } => {
                    if let Some(Member { name, .. }) = self.members.remove(&member) {
                        self.tell_all(format!("* {name} has left.\n"));
                    }
                }
                Event::Close => {
                    self.tell_all("* The room closes.\n".to_owned());
                    break;
                }
            }
        }
    }

    /// Waits for an event. Returns `None` if none will come.
    async fn next(&self, events: &Receiver<Event>, stopping: Pin<&mut Stopping>) -> Option<Event> {
        if !stopping.has_begun()
            && let Either::Left((event, _)) = select(pin!(events.recv()), stopping).await
        {
            return event.ok();
        }
        // Members ask the room to close when the server ends. Without any, nobody does.
        if self.members.is_empty() {
            return None;
        }
        events.recv().await.ok()
    }

    fn join(&mut self, member: Member) -> u64 {
        let number = self.joined;
        self.joined += 1;
        let joined = format!("* {} has joined.\n", member.name);
        self.members.insert(number, member);
        let names = self.names();
        self.tell(number, format!("* Welcome! Here are: {names}.\n"));
        self.tell_all(joined);
        number
    }

    fn names(&self) -> String {
        let names: Vec<&str> = self.members.values().map(|m| m.name.as_str()).collect();
        names.join(", ")
    }

    /// Sends a message to one member. A failure is noticed when the next message is sent to all.
    fn tell(&self, member: u64, line: String) {
        if let Some(member) = self.members.get(&member) {
            let _ = member.queue.try_send(Bytes::from(line));
        }
    }

    /// Sends a message to all members, and drops those whose queue is full or gone. The others are told about that
    /// next.
    fn tell_all(&mut self, line: String) {
        let mut lines = VecDeque::from([Bytes::from(line)]);
        while let Some(line) = lines.pop_front() {
            self.members.retain(|_, member| {
                // All members share these bytes.
                let why = match member.queue.try_send(line.clone()) {
                    Ok(()) => return true,
                    Err(TrySendError::Full(_)) => {
                        let _ = member.too_slow.try_send(());
                        "was too slow, and is out"
                    }
                    Err(TrySendError::Closed(_)) => "has left",
                };
                lines.push_back(Bytes::from(format!("* {} {why}.\n", member.name)));
                false
            });
        }
    }
}

/// Serves a connection, from its name to its end.
async fn serve(stream: TcpStream, client: Client, room: Sender<Event>) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut lines = Lines::new(reader);
    let (queue, messages) = channel::bounded(QUEUE_MESSAGES);
    let (too_slow, is_too_slow) = channel::bounded(1);
    let member = |name| Member {
        name,
        queue: queue.clone(),
        too_slow: too_slow.clone(),
    };
    let entering = timeout(PATIENCE, enter(&mut lines, &mut writer, &room, member));
    let number = match select(pin!(entering), client.draining()).await {
        Either::Left((Ok(Ok(Some(number))), _)) => number,
        Either::Left((entered, _)) => return entered?.map(drop),
        Either::Right(_) => return Ok(()),
    };
    // The room has the only senders now, so dropping them ends the delivery.
    drop((queue, too_slow));

    let mut delivering = pin!(deliver(&messages, &mut writer));
    let talking = pin!(talk(&mut lines, &room, number, &client));
    let dropped = pin!(is_too_slow.recv());
    // Whichever ends first ends the others. It is one future, so that nothing of this connection outlives it.
    let result = match select(select(talking, dropped), &mut delivering).await {
        Either::Left((Either::Left((left, _)), _)) => left,
        Either::Left((Either::Right((Ok(()), _)), _)) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "a member was too slow",
        )),
        // The room has closed.
        Either::Left((Either::Right((Err(_), _)), _)) => Ok(()),
        Either::Right((delivered, _)) => return delivered,
    };
    // An error means that the room is closed.
    let _ = room.send(Event::Leave { member: number }).await;
    result?;
    timeout(PATIENCE, delivering).await?
}

/// Asks for a name until the room accepts it. Returns `None` if the peer takes too long, or the room is closed.
async fn enter(
    lines: &mut Lines,
    writer: &mut OwnedWriteHalf,
    room: &Sender<Event>,
    member: impl Fn(String) -> Member,
) -> io::Result<Option<u64>> {
    writer.write_all(&b"What is your name?\n"[..]).await.0?;
    while let Some(name) = lines.next().await? {
        let problem = if is_name(&name) {
            let (answer, answered) = channel::bounded(1);
            let member = member(name);
            let _ = room.send(Event::Join { member, answer }).await;
            match answered.recv().await {
                Ok(Some(number)) => return Ok(Some(number)),
                Ok(None) => "That name is taken; another one?\n".to_owned(),
                Err(_) => return Ok(None),
            }
        } else {
            format!("A name has 1 to {NAME_MAX} letters, digits, - or _; another one?\n")
        };
        writer.write_all(problem.as_bytes()).await.0?;
    }
    Ok(None)
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

/// Forwards what a member says, until it has sent everything or wants to leave, or the server ends.
async fn talk(
    lines: &mut Lines,
    room: &Sender<Event>,
    member: u64,
    client: &Client,
) -> io::Result<()> {
    loop {
        let line = match select(pin!(lines.next()), client.draining()).await {
            Either::Left((line, _)) => line?,
            Either::Right(_) => {
                // The first connection to notice tells the room.
                let _ = room.send(Event::Close).await;
                break;
            }
        };
        let Some(line) = line else { break };
        // Terminals interpret control characters.
        let text: String = line.chars().filter(|c| !c.is_control()).collect();
        let event = match text.trim() {
            "" => continue,
            "/quit" => break,
            "/who" => Event::Who { member },
            text => Event::Say {
                member,
                text: text.to_owned(),
            },
        };
        if room.send(event).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Sends a member the room's messages, as many at a time as are queued.
async fn deliver(messages: &Receiver<Bytes>, writer: &mut OwnedWriteHalf) -> io::Result<()> {
    let mut batch = Vec::new();
    while let Ok(message) = messages.recv().await {
        batch.clear();
        batch.extend_from_slice(&message);
        while let Ok(message) = messages.try_recv() {
            batch.extend_from_slice(&message);
        }
        writer.write_all(&batch[..]).await.0?;
    }
    Ok(())
}

/// Splits a stream into lines.
struct Lines {
    reader: OwnedReadHalf,
    bytes: Vec<u8>,
    /// Up to here there is no end of line.
    searched: usize,
}

impl Lines {
    fn new(reader: OwnedReadHalf) -> Self {
        Self {
            reader,
            bytes: Vec::new(),
            searched: 0,
        }
    }

    /// Returns the next line without its end, or `None` at the end of the stream. Invalid UTF-8 is replaced. Dropping
    /// the future loses nothing.
    async fn next(&mut self) -> io::Result<Option<String>> {
        loop {
            let end = memchr::memchr(b'\n', &self.bytes[self.searched..]);
            let length = end.map_or(self.bytes.len(), |end| self.searched + end);
            if length > LINE_MAX {
                let text = format!("a line has more than {LINE_MAX} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            if end.is_some() {
                let line = self.bytes[..length].trim_ascii_end();
                let line = String::from_utf8_lossy(line).into_owned();
                self.bytes.drain(..=length);
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = length;
            self.bytes.reserve(LINE_MAX);
            if self.reader.read(&mut self.bytes).await.0? == 0 {
                return Ok(None);
            }
        }
    }
}

fn run(listening: &arguments::Listening) -> io::Result<()> {
    let (room, events) = channel::bounded(ROOM_EVENTS);
    let server = listening.start(|server| {
        // Members may listen as long as they like.
        let server = server.idle_timeout(None);
        server.start_with(move |stream, client| serve(stream, client, room.clone()))
    })?;
    // It ends when a member asks for it, or with the server if there is none.
    drop(server.pool().spawn_on(0, || Room::default().run(events)));
    listening.run(server)
}

fn main() -> ExitCode {
    arguments::exit_code(run(&Arguments::parse().listening))
}
