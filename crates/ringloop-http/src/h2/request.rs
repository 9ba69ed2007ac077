//! Request heads of HTTP/2, which are checked by the same rules as those of HTTP/1.

use h2::ext::Protocol;
use http::header::{CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderValue};
use http::uri::{self, PathAndQuery};
use http::{Method, Uri, request};

use crate::h1::{self, Form};
use crate::syntax::{self, Authority};

/// The head of a request.
#[derive(Debug)]
pub struct Request {
    /// As it was received.
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    scheme: &'static str,
    /// The authority, or Host if there is none.
    host: HeaderValue,
    /// All cookies, if there are several fields of them.
    cookies: Option<HeaderValue>,
    expects_continue: bool,
    is_websocket: bool,
}

/// The reaction to an invalid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Its stream is reset.
    Malformed,
    /// It is answered with this fault's status.
    Fault(h1::Fault),
}

impl Request {
    /// Checks a head that the `h2` crate has parsed. That has refused connection-specific fields, names in upper case,
    /// values with control characters, and invalid pseudo-header fields.
    pub(super) fn new(parts: request::Parts, fields_max: usize) -> Result<Request, Refused> {
        // The `h2` crate refuses all of them if WebSockets are off.
        let is_websocket = match parts.extensions.get::<Protocol>() {
            None => false,
            Some(protocol) if protocol.as_str() == "websocket" => true,
            Some(_) => return Err(Refused::Malformed),
        };
        let request::Parts {
            method,
            uri,
            headers,
            ..
        } = parts;
        let scheme = match uri.scheme_str() {
            // The `h2` crate requires a scheme, but drops it if there is no authority.
            Some("https") => "https",
            Some("http") | None => "http",
            Some(_) => return Err(Refused::Malformed),
        };
        let is_https = scheme == "https";
        let host = find_host(
            &headers,
            uri.authority().map(uri::Authority::as_str),
            is_https,
        )?;
        if method == Method::CONNECT && !is_websocket {
            let authority = syntax::authority(host.as_bytes());
            // RFC 9113, section 8.5: as in HTTP/1, the port is required.
            if !matches!(
                authority,
                Some(Authority {
                    host: [_, ..],
                    port: Some(_)
                })
            ) {
                return Err(Refused::Malformed);
            }
        } else {
            let path = uri.path_and_query().ok_or(Refused::Malformed)?.as_str();
            let form_is_right = path.starts_with('/') || (path == "*" && method == Method::OPTIONS);
            if !form_is_right || !syntax::is_target(path.as_bytes()) {
                return Err(Refused::Malformed);
            }
        }

        let mut has_length = false;
        let mut expects_continue = false;
        let mut refused = None;
        for (name, value) in &headers {
            let value = value.as_bytes();
            // RFC 9113, section 8.2.1: no whitespace around values.
            if syntax::trim(value).len() != value.len() {
                return Err(Refused::Malformed);
            }
            if *name == CONTENT_LENGTH {
                // As in HTTP/1. The `h2` crate compares it with the data.
                if std::mem::replace(&mut has_length, true) || syntax::decimal(value).is_none() {
                    return Err(Refused::Malformed);
                }
            } else if *name == EXPECT {
                expects_continue = true;
                if !value.eq_ignore_ascii_case(b"100-continue") {
                    refused = Some(Refused::Fault(h1::Fault::Expectation));
                }
            }
        }
        if let Some(refused) = refused {
            return Err(refused);
        }
        let cookies = join_cookies(&headers);
        let request = Request {
            method,
            uri,
            headers,
            scheme,
            host,
            cookies,
            expects_continue,
            is_websocket,
        };
        if request.fields().count() > fields_max {
            return Err(Refused::Fault(h1::Fault::TooManyFields));
        }
        Ok(request)
    }

    /// Whether this is what [`new`](Request::new) makes of `parts`. It is not for a WebSocket.
    pub(super) fn is_of(&self, parts: &request::Parts) -> bool {
        let Request {
            method,
            uri,
            headers,
            ..
        } = self;
        // `Uri` ignores the case of its authority.
        parts.extensions.get::<Protocol>().is_none()
            && uri.path_and_query() == parts.uri.path_and_query()
            && uri.authority().map(uri::Authority::as_str)
                == parts.uri.authority().map(uri::Authority::as_str)
            && uri.scheme_str() == parts.uri.scheme_str()
            && *method == parts.method
            && headers.len() == parts.headers.len()
            && headers.iter().eq(parts.headers.iter())
    }

    /// The method as the client wrote it.
    pub fn method(&self) -> &str {
        self.method.as_str()
    }

    /// The method, as one of those that HTTP/1 knows.
    pub fn known_method(&self) -> h1::Method {
        h1::Method::from_bytes(self.method().as_bytes())
    }

    /// The scheme that the client claims, `http` or `https`.
    pub fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// The authority: a host with an optional port.
    pub fn host(&self) -> &[u8] {
        self.host.as_bytes()
    }

    /// The form of the target, as it would be in HTTP/1.
    pub fn form(&self) -> Form {
        if self.is_connect() {
            Form::Authority
        } else if self.uri.path() == "*" {
            Form::Asterisk
        } else {
            Form::Origin
        }
    }

    /// The path as the client wrote it, with its percent-encoding. `*` for OPTIONS of the server, empty for CONNECT.
    pub fn path(&self) -> &str {
        self.target().map_or("", PathAndQuery::path)
    }

    /// The part of the target after its first question mark.
    pub fn query(&self) -> &str {
        self.target()
            .and_then(PathAndQuery::query)
            .unwrap_or_default()
    }

    /// Whether the target has a question mark, even if no query follows.
    pub fn has_query(&self) -> bool {
        self.target().and_then(PathAndQuery::query).is_some()
    }

    fn target(&self) -> Option<&PathAndQuery> {
        self.uri.path_and_query().filter(|_| !self.is_connect())
    }

    /// Whether this asks for a tunnel, and therefore has no path.
    fn is_connect(&self) -> bool {
        self.method == Method::CONNECT && !self.is_websocket
    }

    /// Whether this asks for a WebSocket (RFC 8441, section 5). The method is CONNECT, but there is a path, as in other
    /// requests. [`Handshake`](crate::websocket::Handshake) checks the fields.
    pub fn is_websocket(&self) -> bool {
        self.is_websocket
    }

    /// The fields: names in lower case, and values. `host` comes first, and there is at most one `cookie`.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut cookies = self.cookies.as_ref();
        let others = self.headers.iter().filter_map(move |(name, value)| {
            let value = match &self.cookies {
                _ if *name == HOST => return None,
                // All of them come with the first one.
                Some(_) if *name == COOKIE => cookies.take()?,
                _ => value,
            };
            Some((name.as_str(), value.as_bytes()))
        });
        std::iter::once((HOST.as_str(), self.host())).chain(others)
    }

    /// Whether the client waits for an informational response 100 before it sends the body.
    pub fn expects_continue(&self) -> bool {
        self.expects_continue
    }
}

/// The authority, or Host if there is none. If there are both, they must agree (RFC 9113, section 8.3.1).
fn find_host(
    headers: &HeaderMap,
    authority: Option<&str>,
    is_https: bool,
) -> Result<HeaderValue, Refused> {
    let parse = |value: &HeaderValue| {
        syntax::authority(value.as_bytes())
            .is_some()
            .then(|| value.clone())
            .ok_or(Refused::Malformed)
    };
    let mut hosts = headers.get_all(HOST).iter();
    let host = hosts.next().map(parse).transpose()?;
    if hosts.next().is_some() {
        return Err(Refused::Malformed);
    }
    let Some(authority) = authority else {
        return host.ok_or(Refused::Malformed);
    };
    let authority = HeaderValue::from_str(authority).map_err(|_| Refused::Malformed)?;
    let authority = parse(&authority)?;
    let is_same = |host: &HeaderValue| {
        let default_port = if is_https { 443 } else { 80 };
        match (
            syntax::authority(host.as_bytes()),
            syntax::authority(authority.as_bytes()),
        ) {
            (Some(host), Some(authority)) => host.is_same_server(&authority, default_port),
            _ => false,
        }
    };
    if host.as_ref().is_none_or(is_same) {
        Ok(authority)
    } else {
        Err(Refused::Malformed)
    }
}

/// Joins cookies that were split for compression (RFC 9113, section 8.2.3).
fn join_cookies(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut cookies = headers.get_all(COOKIE).iter();
    let (first, second) = (cookies.next()?, cookies.next()?);
    let parts: Vec<&[u8]> = [first, second]
        .into_iter()
        .chain(cookies)
        .map(HeaderValue::as_bytes)
        .collect();
    // Valid values stay valid when they are joined.
    HeaderValue::from_bytes(&parts.join(&b"; "[..])).ok()
}
