//! hyper's server, in memory.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use hyper::body::{Body, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};

/// A socket with fixed input, which discards its output.
pub(crate) struct Memory {
    input: io::Cursor<Vec<u8>>,
    /// Whether the input has arrived.
    answers: bool,
}

impl Memory {
    pub(crate) fn new(input: &[u8]) -> Self {
        Memory {
            input: io::Cursor::new(input.to_vec()),
            answers: true,
        }
    }

    /// A socket whose input arrives after the first write.
    pub(crate) fn answering(input: &[u8]) -> Self {
        Memory {
            answers: false,
            ..Memory::new(input)
        }
    }
}

impl Read for Memory {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.answers {
            return Poll::Pending;
        }
        let start = self.input.position() as usize;
        let end = self.input.get_ref().len().min(start + buffer.remaining());
        buffer.put_slice(&self.input.get_ref()[start..end]);
        self.input.set_position(end as u64);
        Poll::Ready(Ok(()))
    }
}

impl Write for Memory {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.answers = true;
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// A request as hyper read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Understood {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) fields: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    /// Whether the body is complete.
    pub(crate) complete: bool,
}

/// The requests that hyper's server reads from `input`.
pub(crate) fn requests(input: &[u8]) -> Vec<Understood> {
    let requests: Arc<Mutex<Vec<Understood>>> = Arc::default();
    let record = Arc::clone(&requests);
    let service = service_fn(move |request: Request<Incoming>| {
        let record = Arc::clone(&record);
        async move {
            let (head, mut body) = request.into_parts();
            let index = {
                let mut requests = record.lock().unwrap();
                requests.push(Understood {
                    method: head.method.to_string(),
                    target: head.uri.to_string(),
                    fields: head
                        .headers
                        .iter()
                        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
                        .collect(),
                    body: Vec::new(),
                    complete: false,
                });
                requests.len() - 1
            };
            while let Some(frame) =
                std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
            {
                let Ok(frame) = frame else {
                    return Ok::<_, Infallible>(Response::new(String::new()));
                };
                if let Ok(data) = frame.into_data() {
                    record.lock().unwrap()[index].body.extend_from_slice(&data);
                }
            }
            record.lock().unwrap()[index].complete = true;
            Ok(Response::new(String::new()))
        }
    });
    let mut server = http1::Builder::new();
    server.header_read_timeout(None).half_close(true);
    let mut connection = pin!(server.serve_connection(Memory::new(input), service));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..1000 {
        if connection.as_mut().poll(&mut context).is_ready() {
            break;
        }
    }
    requests.lock().unwrap().clone()
}
