//! A minimal server, to find the generator's own maximum.
//!
//! It answers as fast as sockets allow: one read and one write per message, no checks, no waiting. The first thread accepts
//! connections and distributes them among the other threads, which never sleep.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use crate::arguments::{Protocol, Responder};
use crate::system::{self, EDGE_TRIGGERED, ENDED, Epoll, NO_EVENT, READABLE, WRITABLE, Wait};

const READ_BYTES: usize = 256 * 1024;
const RESPONSE: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, World!";
const REQUEST_END: &[u8] = b"\r\n\r\n";

/// One connection of a thread.
struct Client {
    stream: TcpStream,
    /// The bytes that are still to be sent.
    unsent: Vec<u8>,
    /// How many bytes of [`REQUEST_END`] the received bytes end with.
    matched: usize,
}

/// Serves until its stdin ends.
pub(crate) fn serve(responder: &Responder) -> io::Result<()> {
    system::raise_descriptor_limit()?;
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("listening on {}", listener.local_addr()?);
    thread::spawn(|| {
        // The process that started the responder has the other end. When it is gone, for any reason, the responder must end, too.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        process::exit(0);
    });
    let cpus = &responder.cpu;
    let threads = cpus.len().max(1);
    let senders: Vec<Sender<TcpStream>> = (0..threads)
        .map(|index| {
            let (sender, accepted) = mpsc::channel();
            let (cpu, protocol) = (cpus.get(index).copied(), responder.protocol);
            thread::spawn(move || {
                let ended = cpu
                    .map_or(Ok(()), system::pin_to_cpu)
                    .and_then(|()| work(&accepted, protocol));
                if let Err(error) = ended {
                    eprintln!("ringlab-load: the responder failed: {error}");
                    process::exit(1);
                }
            });
            sender
        })
        .collect();
    for (stream, sender) in listener.incoming().zip(senders.iter().cycle()) {
        let stream = stream?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        // A thread ends only with the process.
        let _ = sender.send(stream);
    }
    Ok(())
}

fn work(accepted: &Receiver<TcpStream>, protocol: Protocol) -> io::Result<()> {
    let epoll = Epoll::new()?;
    let mut clients: Vec<Option<Client>> = Vec::new();
    let mut buffer = vec![0; READ_BYTES];
    let responses = RESPONSE.repeat(READ_BYTES / 16);
    let mut events = [NO_EVENT; 256];
    loop {
        for stream in accepted.try_iter() {
            let events = READABLE | WRITABLE | ENDED | EDGE_TRIGGERED;
            epoll.add(&stream, events, clients.len() as u64)?;
            clients.push(Some(Client {
                stream,
                unsent: Vec::new(),
                matched: 0,
            }));
        }
        for event in epoll.wait(&mut events, Wait::Poll)? {
            let client = &mut clients[event.u64 as usize];
            if let Some(open) = client
                && open.answer(protocol, &mut buffer, &responses).is_err()
            {
                *client = None;
            }
        }
    }
}

impl Client {
    /// Answers what has come. Fails when the connection is over.
    fn answer(
        &mut self,
        protocol: Protocol,
        buffer: &mut [u8],
        responses: &[u8],
    ) -> io::Result<()> {
        loop {
            if !self.unsent.is_empty() {
                let unsent = std::mem::take(&mut self.unsent);
                self.send(&unsent)?;
                if !self.unsent.is_empty() {
                    return Ok(());
                }
            }
            let bytes = match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            match protocol {
                Protocol::Echo => self.send(&buffer[..bytes])?,
                Protocol::Http => {
                    let requests = self.count_requests(&buffer[..bytes]);
                    self.send(&responses[..requests * RESPONSE.len()])?;
                }
            }
            if bytes < buffer.len() && self.unsent.is_empty() {
                // What comes from now on causes a new edge.
                return Ok(());
            }
        }
    }

    fn count_requests(&mut self, received: &[u8]) -> usize {
        let mut requests = 0;
        for &byte in received {
            self.matched = if byte == REQUEST_END[self.matched] {
                self.matched + 1
            } else {
                usize::from(byte == REQUEST_END[0])
            };
            if self.matched == REQUEST_END.len() {
                requests += 1;
                self.matched = 0;
            }
        }
        requests
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.unsent.extend_from_slice(bytes);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
