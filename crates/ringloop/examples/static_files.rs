//! A web server for the files of a directory, on hyper: content types, ranges, conditional requests, HEAD, directories.
//!
//! Only regular files below the directory are served, whatever symbolic links say. The kernel is asked where the *open*
//! file is, so that nobody can change anything between the check and opening. Names that begin with a dot are not
//! served. Files are read with `ringloop::fs`, piece by piece, and only as fast as the client reads.

mod arguments;

use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use futures_util::Stream;
use futures_util::stream;
use headers::{
    AcceptRanges, Allow, ContentLength, ContentRange, ContentType, ETag, HeaderMapExt, IfMatch,
    IfModifiedSince, IfNoneMatch, IfRange, IfUnmodifiedSince, LastModified,
};
use http_body_util::{Either, Full, StreamBody};
use http_range_header::{EndPosition, RangeUnsatisfiableError, StartPosition, parse_range_header};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{HeaderValue, LOCATION, RANGE, X_CONTENT_TYPE_OPTIONS};
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use mime_guess::mime;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};
use ringloop::fs::{File, Metadata, OpenOptions};
use ringloop::hyper::Http;
use ringloop::net::TcpStream;
use ringloop::server::Client;

/// Serves the files of a directory over HTTP.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    listening: arguments::Listening,
    /// The directory
    #[arg(default_value = ".")]
    directory: PathBuf,
}

/// How much of a file is in memory per client, in bytes.
const PIECE_BYTES: u64 = 64 * 1024;
/// The characters that need no escape in a segment of a URL.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

type Pieces = Pin<Box<dyn Stream<Item = io::Result<Frame<Bytes>>>>>;
type Body = Either<Full<Bytes>, StreamBody<Pieces>>;

/// The file or folder that a path leads to.
enum Found {
    File {
        file: File,
        metadata: Metadata,
        content_type: ContentType,
    },
    /// A page that lists a directory.
    Listing(String),
    /// A directory that was requested without the slash that relative links need.
    MovedTo(String),
}

/// Why no file is served.
struct Refused(StatusCode);

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        let status = match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::NotFound | io::ErrorKind::NotADirectory, _)
            | (_, Some(libc::ENAMETOOLONG)) => StatusCode::NOT_FOUND,
            // ELOOP is for circular links.
            (io::ErrorKind::PermissionDenied, _) | (_, Some(libc::ELOOP)) => StatusCode::FORBIDDEN,
            _ => {
                eprintln!("cannot serve a file: {error}");
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        Self(status)
    }
}

/// Answers a request.
async fn answer(root: &Path, request: &Request<Incoming>) -> Response<Body> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED);
        let allowed = [Method::GET, Method::HEAD].into_iter().collect::<Allow>();
        answer.headers_mut().typed_insert(allowed);
        return answer;
    }
    let mut answer = match find(root, request.uri().path()).await {
        Ok(Found::File {
            file,
            metadata,
            content_type,
        }) => file_answer(request, file, &metadata, content_type),
        Ok(Found::Listing(page)) => with_text(StatusCode::OK, ContentType::html(), page),
        Ok(Found::MovedTo(path)) => {
            let mut answer = plain(StatusCode::MOVED_PERMANENTLY);
            let path = HeaderValue::try_from(path).expect("what is escaped is ASCII");
            answer.headers_mut().insert(LOCATION, path);
            answer
        }
        Err(Refused(status)) => plain(status),
    };
    let headers = answer.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// An answer that consists of its status only.
fn plain(status: StatusCode) -> Response<Body> {
    with_text(status, ContentType::text_utf8(), format!("{status}\n"))
}

fn with_text(status: StatusCode, content_type: ContentType, text: String) -> Response<Body> {
    let body = Full::new(Bytes::from(text));
    let mut answer = Response::new(Either::Left(body));
    *answer.status_mut() = status;
    answer.headers_mut().typed_insert(content_type);
    answer
}

/// Finds what the path of a URL leads to.
async fn find(root: &Path, url_path: &str) -> Result<Found, Refused> {
    let mut path = root.to_owned();
    let mut escaped = String::new();
    for segment in url_path.split('/').filter(|segment| !segment.is_empty()) {
        // Unescaped after splitting, so that an escaped slash is part of a name, and no file has such a name.
        let name: Vec<u8> = percent_decode_str(segment).collect();
        if name == b".." {
            return Err(Refused(StatusCode::FORBIDDEN));
        }
        if name.starts_with(b".") || name.contains(&b'/') || name.contains(&0) {
            return Err(Refused(StatusCode::NOT_FOUND));
        }
        path.push(OsStr::from_bytes(&name));
        escaped.push('/');
        escaped.extend(percent_encode(&name, SEGMENT));
    }
    let (file, metadata) = open_below(root, &path).await?;
    if metadata.is_file() && !url_path.ends_with('/') {
        return Ok(found(file, metadata, &path));
    }
    if !metadata.is_dir() {
        return Err(Refused(StatusCode::NOT_FOUND));
    }
    if !url_path.ends_with('/') {
        return Ok(Found::MovedTo(escaped + "/"));
    }
    let index = path.join("index.html");
    match open_below(root, &index).await {
        Ok((file, metadata)) if metadata.is_file() => Ok(found(file, metadata, &index)),
        Ok(_) => Err(Refused(StatusCode::NOT_FOUND)),
        Err(Refused(StatusCode::NOT_FOUND)) => list(file).await,
        Err(refused) => Err(refused),
    }
}

fn found(file: File, metadata: Metadata, path: &Path) -> Found {
    let kind = mime_guess::from_path(path).first_or_octet_stream();
    let content_type = if kind.type_() == mime::TEXT {
        format!("{kind}; charset=utf-8").parse().ok()
    } else {
        None
    };
    Found::File {
        file,
        metadata,
        content_type: content_type.unwrap_or_else(|| kind.into()),
    }
}

/// Opens a file or a directory, if it is below the root.
async fn open_below(root: &Path, path: &Path) -> Result<(File, Metadata), Refused> {
    // With O_PATH first, because opening a FIFO would wait for a writer, and opening a device may have side effects.
    let options = OpenOptions::new().read(true).custom_flags(libc::O_PATH);
    let place = options.open(path).await?;
    let metadata = place.metadata().await?;
    let is_servable = metadata.is_file() || metadata.is_dir();
    if !is_servable || !std::fs::read_link(descriptor_path(&place))?.starts_with(root) {
        return Err(Refused(StatusCode::FORBIDDEN));
    }
    // The same file, whatever its name refers to by now.
    let file = File::open(descriptor_path(&place)).await?;
    Ok((file, metadata))
}

/// The link by which the kernel tells where an open file is.
fn descriptor_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Creates a page with the names in a directory.
async fn list(directory: File) -> Result<Found, Refused> {
    let mut names = Vec::new();
    let mut entries = ringloop::fs::read_dir(descriptor_path(&directory)).await?;
    while let Some(entry) = entries.next_entry().await? {
        let mut name = entry.file_name().as_bytes().to_vec();
        if !name.starts_with(b".") {
            let is_directory = entry.file_type()?.is_dir();
            name.extend(is_directory.then_some(b'/'));
            names.push(name);
        }
    }
    names.sort();
    let mut page = "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<ul>\n".to_owned();
    for name in names {
        let (name, slash) = match name.strip_suffix(b"/") {
            Some(name) => (name, "/"),
            None => (&name[..], ""),
        };
        let (link, text) = (percent_encode(name, SEGMENT), String::from_utf8_lossy(name));
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(page, "<li><a href=\"{link}{slash}\">{text}{slash}</a>");
    }
    page += "</ul>\n";
    Ok(Found::Listing(page))
}

/// Answers with a file, with a part of it, or with a status that makes sending it unnecessary.
fn file_answer(
    request: &Request<Incoming>,
    file: File,
    metadata: &Metadata,
    content_type: ContentType,
) -> Response<Body> {
    let length = metadata.len();
    // The range of dates in HTTP.
    let last_modified =
        Some(metadata.modified()).filter(|time| (UNIX_EPOCH..UNIX_EPOCH + DATE_MAX).contains(time));
    let etag = etag(metadata);
    let conditions = Conditions {
        headers: request.headers(),
        etag: &etag,
        last_modified,
    };
    let (status, range) = match conditions.check() {
        Err(status) => (status, 0..0),
        // Only GET supports ranges (RFC 9110, section 14.2).
        Ok(()) if request.method() != Method::GET => (StatusCode::OK, 0..length),
        Ok(()) => match conditions.range(length) {
            Asked::All => (StatusCode::OK, 0..length),
            Asked::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
            Asked::Nothing => (StatusCode::RANGE_NOT_SATISFIABLE, 0..0),
        },
    };
    let sends = matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT);
    let mut answer = if sends && request.method() == Method::GET {
        let pieces: Pieces = Box::pin(pieces(file, range.clone()));
        Response::new(Either::Right(StreamBody::new(pieces)))
    } else {
        Response::new(Either::Left(Full::default()))
    };
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.typed_insert(AcceptRanges::bytes());
    headers.typed_insert(etag);
    if let Some(time) = last_modified {
        headers.typed_insert(LastModified::from(time));
    }
    match status {
        StatusCode::PARTIAL_CONTENT => headers.typed_insert(
            ContentRange::bytes(range.clone(), length).expect("a range of a length is no surprise"),
        ),
        StatusCode::RANGE_NOT_SATISFIABLE => {
            headers.typed_insert(ContentRange::unsatisfied_bytes(length));
        }
        _ => {}
    }
    if sends {
        headers.typed_insert(content_type);
        headers.typed_insert(ContentLength(range.end - range.start));
    }
    answer
}

/// The year 9999.
const DATE_MAX: Duration = Duration::from_secs(253_402_300_800);

/// A tag that changes with every change that the file system records.
fn etag(metadata: &Metadata) -> ETag {
    let since_epoch = metadata.modified().duration_since(UNIX_EPOCH);
    let nanoseconds = since_epoch.unwrap_or_default().as_nanos();
    let (number, length) = (metadata.ino(), metadata.len());
    let tag = format!("\"{number:x}-{length:x}-{nanoseconds:x}\"");
    tag.parse().expect("a quoted tag of hexadecimal digits")
}

/// The preconditions and ranges of a request, see RFC 9110, sections 13 and 14.
struct Conditions<'a> {
    headers: &'a HeaderMap,
    etag: &'a ETag,
    last_modified: Option<SystemTime>,
}

/// Which part of a file a request asks for.
enum Asked {
    All,
    Part(Range<u64>),
    /// A part that the file does not have.
    Nothing,
}

impl Conditions<'_> {
    /// The error is the status of the answer.
    fn check(&self) -> Result<(), StatusCode> {
        let headers = self.headers;
        let is_as_wanted = match headers.typed_get::<IfMatch>() {
            Some(wanted) => wanted.precondition_passes(self.etag),
            None => match (headers.typed_get::<IfUnmodifiedSince>(), self.last_modified) {
                (Some(since), Some(time)) => since.precondition_passes(time),
                _ => true,
            },
        };
        if !is_as_wanted {
            return Err(StatusCode::PRECONDITION_FAILED);
        }
        let is_news = match headers.typed_get::<IfNoneMatch>() {
            Some(known) => known.precondition_passes(self.etag),
            None => match (headers.typed_get::<IfModifiedSince>(), self.last_modified) {
                (Some(since), Some(time)) => since.is_modified(time),
                _ => true,
            },
        };
        if is_news {
            Ok(())
        } else {
            Err(StatusCode::NOT_MODIFIED)
        }
    }

    /// One range is served. Several ranges, and invalid ones, are ignored, which the RFC allows.
    fn range(&self, length: u64) -> Asked {
        let last_modified = self.last_modified.map(LastModified::from);
        if let Some(condition) = self.headers.typed_get::<IfRange>()
            && condition.is_modified(Some(self.etag), last_modified.as_ref())
        {
            return Asked::All;
        }
        let text = self
            .headers
            .get(RANGE)
            .and_then(|range| range.to_str().ok());
        let parsed = match text.map(parse_range_header) {
            Some(Ok(parsed)) => parsed,
            // The last 0 bytes are not a satisfiable range (RFC 9110, section 14.1.2).
            Some(Err(RangeUnsatisfiableError::ZeroSuffix)) if text == Some("bytes=-0") => {
                return Asked::Nothing;
            }
            _ => return Asked::All,
        };
        let [range] = parsed.ranges[..] else {
            return Asked::All;
        };
        let start = match range.start {
            StartPosition::Index(start) => start,
            // The last bytes of an empty file are all of it.
            StartPosition::FromLast(_) if length == 0 => return Asked::All,
            StartPosition::FromLast(count) => length.saturating_sub(count),
        };
        match range.end {
            EndPosition::Index(last) if last < start => Asked::All,
            _ if start >= length => Asked::Nothing,
            EndPosition::Index(last) => Asked::Part(start..length.min(last.saturating_add(1))),
            EndPosition::LastByte => Asked::Part(start..length),
        }
    }
}

/// Reads part of a file, the next piece whenever the client has taken the one before.
fn pieces(file: File, range: Range<u64>) -> impl Stream<Item = io::Result<Frame<Bytes>>> {
    stream::try_unfold((file, range), |(file, mut range)| async move {
        let wanted = (range.end - range.start).min(PIECE_BYTES) as usize;
        if wanted == 0 {
            return Ok(None);
        }
        let (count, mut bytes) = file.read_at(Vec::with_capacity(wanted), range.start).await;
        if count? == 0 {
            // The length was already sent, so the only way to report the failure is to close the connection.
            let text = "a file has become shorter while it was sent";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        // A buffer may have more room than requested.
        bytes.truncate(wanted);
        range.start += bytes.len() as u64;
        Ok(Some((Frame::data(Bytes::from(bytes)), (file, range))))
    })
}

/// Serves a connection. When the server drains, completes the current request.
async fn serve(stream: TcpStream, client: Client, root: Arc<Path>) -> io::Result<()> {
    let service = service_fn(move |request| {
        let root = Arc::clone(&root);
        async move { io::Result::Ok(answer(&root, &request).await) }
    });
    Http::new().serve(stream, &client, service).await
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let directory = arguments.directory.display();
    let explained =
        |error: io::Error| arguments::explained(format!("cannot serve {directory}"), &error);
    let root: Arc<Path> = arguments
        .directory
        .canonicalize()
        .map_err(explained)?
        .into();
    // Fails now, and not with the first request, if this is a file or an unreadable directory.
    std::fs::read_dir(&root).map_err(explained)?;
    let server = arguments.listening.start(|server| {
        server.start_with(move |stream, client| serve(stream, client, Arc::clone(&root)))
    })?;
    arguments.listening.run(server)
}

fn main() -> ExitCode {
    arguments::exit_code(run(&Arguments::parse()))
}
