//! Sends the files of a directory over HTTP/1.1, by sendfile(2): `ringloop::io::send_file` on the bare connection.
//!
//! `static_files` is the one to use for a website: it has ranges, conditional requests, content types and directories. But
//! it is on hyper, which takes the bytes of a body and writes them itself, so that it can't be given a file to send.

mod arguments;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use futures_util::future::{Either, select};
use percent_encoding::percent_decode_str;
use ringloop::bytes::BytesMut;
use ringloop::fs::File;
use ringloop::io::send_file;
use ringloop::net::TcpStream;
use ringloop::server::Client;

/// Sends the files of a directory over HTTP.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    listening: arguments::Listening,
    /// Read and write instead of sending by sendfile(2), to compare
    #[arg(long)]
    by_reading: bool,
    /// The directory; links in it are followed
    #[arg(default_value = ".")]
    directory: PathBuf,
}

/// The maximum length of a request, in bytes.
const REQUEST_BYTES_MAX: usize = 8 * 1024;
/// How much of a file is in memory, if it is read.
const PIECE_BYTES: usize = 64 * 1024;

/// A request of a client.
struct Request {
    is_head: bool,
    path: PathBuf,
    stays_open: bool,
}

impl Request {
    /// Reads a request's head, without its empty line. The error is the status of the answer.
    fn parse(root: &Path, head: &str) -> Result<Self, &'static str> {
        let (line, fields) = head.split_once("\r\n").unwrap_or((head, ""));
        let mut stays_open = true;
        for (name, value) in fields.lines().filter_map(|field| field.split_once(':')) {
            match &name.to_ascii_lowercase()[..] {
                // What follows would be its body.
                "content-length" | "transfer-encoding" => return Err("400 Bad Request"),
                "connection" => stays_open = !value.trim().eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
        let parts: Vec<_> = line.split(' ').collect();
        let [method, target, "HTTP/1.1"] = parts[..] else {
            return Err("400 Bad Request");
        };
        let is_head = match method {
            "GET" => false,
            "HEAD" => true,
            _ => return Err("405 Method Not Allowed"),
        };
        let mut path = root.to_owned();
        let target = target.split('?').next().unwrap_or_default();
        for segment in target.split('/').filter(|segment| !segment.is_empty()) {
            let name: Vec<u8> = percent_decode_str(segment).collect();
            // No hidden files, and no way up.
            if name.starts_with(b".") || name.contains(&b'/') || name.contains(&0) {
                return Err("404 Not Found");
            }
            path.push(OsStr::from_bytes(&name));
        }
        Ok(Self {
            is_head,
            path,
            stays_open,
        })
    }
}

/// Waits for the end of a request's head, and takes it out of the buffer. `None` if the client or the server is done.
async fn next_head(
    stream: &mut TcpStream,
    client: &Client,
    buffer: &mut BytesMut,
) -> io::Result<Option<String>> {
    loop {
        if let Some(end) = memchr::memmem::find(buffer, b"\r\n\r\n") {
            let head = buffer.split_to(end + 4);
            return Ok(Some(String::from_utf8_lossy(&head[..end]).into_owned()));
        }
        if buffer.len() >= REQUEST_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a request is too long",
            ));
        }
        buffer.reserve(1024);
        let reading = pin!(stream.read(&mut *buffer));
        let count = match select(reading, client.draining()).await {
            Either::Left(((count, _), _)) => count?,
            Either::Right(_) => 0,
        };
        if count == 0 {
            return Ok(None);
        }
    }
}

/// Opens a regular file. Returns its length, too.
async fn open(path: &Path) -> io::Result<(File, u64)> {
    // A FIFO has no bytes to wait for then, and is no regular file.
    let options = ringloop::fs::OpenOptions::new().read(true);
    let file = options.custom_flags(libc::O_NONBLOCK).open(path).await?;
    let metadata = file.metadata().await?;
    if metadata.is_file() {
        Ok((file, metadata.len()))
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Serves a connection.
async fn serve(
    mut stream: TcpStream,
    client: Client,
    root: &Path,
    by_reading: bool,
) -> io::Result<()> {
    let mut buffer = BytesMut::new();
    while let Some(head) = next_head(&mut stream, &client, &mut buffer).await? {
        let found = match Request::parse(root, &head) {
            Ok(request) => match open(&request.path).await {
                Ok((file, length)) => Ok((request, file, length)),
                Err(_) => Err(("404 Not Found", request.stays_open)),
            },
            Err(status) => Err((status, false)),
        };
        let (request, file, length) = match found {
            Ok(found) => found,
            Err((status, stays_open)) => {
                let connection = if stays_open { "keep-alive" } else { "close" };
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: {connection}\r\n\r\n"
                );
                stream.write_all(answer.as_bytes()).await.0?;
                if stays_open {
                    continue;
                }
                return Ok(());
            }
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.0?;
        if !request.is_head {
            let sent = if by_reading {
                read_and_write(&file, length, &mut stream).await?
            } else {
                send_file(&file, 0, length, &mut stream).await?
            };
            if sent < length {
                let text = "a file has become shorter while it was sent";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
        }
        if !request.stays_open {
            return Ok(());
        }
    }
    Ok(())
}

async fn read_and_write(file: &File, length: u64, stream: &mut TcpStream) -> io::Result<u64> {
    let mut buffer = Vec::with_capacity(PIECE_BYTES);
    let mut sent = 0;
    while sent < length {
        buffer.clear();
        let count;
        (count, buffer) = file.read_at(buffer, sent).await;
        if count? == 0 {
            break;
        }
        let left = usize::try_from(length - sent).unwrap_or(usize::MAX);
        let piece = &buffer[..buffer.len().min(left)];
        stream.write_all(piece).await.0?;
        sent += piece.len() as u64;
    }
    Ok(sent)
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let directory = arguments.directory.display();
    // Fails now, and not with the first request, if this is a file or an unreadable directory.
    std::fs::read_dir(&arguments.directory)
        .map_err(|error| arguments::explained(format!("cannot serve {directory}"), &error))?;
    let root: Arc<Path> = arguments.directory.clone().into();
    let by_reading = arguments.by_reading;
    let server = arguments.listening.start(|server| {
        server.start_with(move |stream, client| {
            let root = Arc::clone(&root);
            async move { serve(stream, client, &root, by_reading).await }
        })
    })?;
    arguments.listening.run(server)
}

fn main() -> ExitCode {
    arguments::exit_code(run(&Arguments::parse()))
}
