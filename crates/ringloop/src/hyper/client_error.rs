//! Why a request of a client failed.

use std::error::Error;
use std::fmt;
use std::io;

/// Why a [`Client`](super::Client) has no response.
///
/// ```
/// use http_body_util::Empty;
/// use hyper::body::Bytes;
/// use ringloop::hyper::{Client, Connector};
///
/// # ringloop::Runtime::new(&ringloop::RuntimeConfig::default())?.block_on(async {
/// // Nobody listens there.
/// # let unused = std::net::TcpListener::bind("127.0.0.1:0")?;
/// # let address = unused.local_addr()?;
/// # drop(unused);
/// let client: Client<Empty<Bytes>> = Client::new(Connector::new());
/// let error = client.get(&format!("http://{address}/")).await.unwrap_err();
/// assert!(error.is_connect());
/// assert!(error.to_string().starts_with(&format!("cannot connect to http://{address}: ")));
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ClientError {
    to: String,
    reason: Reason,
}

#[derive(Debug)]
enum Reason {
    Request(String),
    Connect(io::Error),
    Http(hyper::Error),
}

impl ClientError {
    pub(super) fn request(message: impl fmt::Display) -> Self {
        Self {
            to: String::new(),
            reason: Reason::Request(message.to_string()),
        }
    }

    pub(super) fn connect(to: &str, error: io::Error) -> Self {
        Self {
            to: to.to_owned(),
            reason: Reason::Connect(error),
        }
    }

    pub(super) fn http(to: &str, error: hyper::Error) -> Self {
        Self {
            to: to.to_owned(),
            reason: Reason::Http(error),
        }
    }

    /// Whether no connection could be made. The server has then seen nothing of the request.
    pub fn is_connect(&self) -> bool {
        matches!(self.reason, Reason::Connect(_))
    }

    /// Whether connecting took too long.
    pub fn is_timeout(&self) -> bool {
        matches!(&self.reason, Reason::Connect(error) if error.kind() == io::ErrorKind::TimedOut)
    }

    /// hyper's error, if a request failed after a connection was made.
    pub fn as_hyper(&self) -> Option<&hyper::Error> {
        match &self.reason {
            Reason::Http(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = &self.to;
        match &self.reason {
            Reason::Request(message) => formatter.write_str(message),
            Reason::Connect(error) => write!(formatter, "cannot connect to {to}: {error}"),
            Reason::Http(error) => {
                write!(formatter, "the request to {to} failed: {error}")?;
                // hyper's own message does not name the cause.
                let mut cause = error.source();
                while let Some(error) = cause {
                    write!(formatter, ": {error}")?;
                    cause = error.source();
                }
                Ok(())
            }
        }
    }
}

impl Error for ClientError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.reason {
            Reason::Request(_) => None,
            Reason::Connect(error) => Some(error),
            Reason::Http(error) => Some(error),
        }
    }
}

impl From<ClientError> for io::Error {
    /// Keeps the kind of the error where there is one.
    fn from(error: ClientError) -> Self {
        let kind = match &error.reason {
            Reason::Request(_) => io::ErrorKind::InvalidInput,
            Reason::Connect(error) => error.kind(),
            Reason::Http(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
