//! Request heads of HTTP/2, which are checked by the same rules as those of HTTP/1.

use http::header::{CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderValue};
use http::{Method, request};

use crate::h1::{self, Form};
use crate::syntax::{self, Authority};

/// The head of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    method: Method,
    scheme: &'static str,
    /// The authority, or Host if there is none.
    host: HeaderValue,
    target: Target,
    fields: HeaderMap,
    expects_continue: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Target {
    Path(http::uri::PathAndQuery),
    Authority,
}

/// What happens to an invalid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Its stream is reset.
    Malformed,
    /// It is answered with this status.
    Status(u16),
}

impl Request {
    /// Check a head that the `h2` crate has parsed. That has refused connection-specific fields, names in upper case,
    /// values with control characters, and invalid pseudo-header fields.
    pub(super) fn new(parts: request::Parts, fields_max: usize) -> Result<Request, Refused> {
        let request::Parts {
            method,
            uri,
            mut headers,
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
            uri.authority().map(http::uri::Authority::as_str),
            is_https,
        )?;
        let target = if method == Method::CONNECT {
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
            Target::Authority
        } else {
            let path = uri.into_parts().path_and_query.ok_or(Refused::Malformed)?;
            let form_is_right = path.as_str().starts_with('/')
                || (path.as_str() == "*" && method == Method::OPTIONS);
            if !form_is_right || !syntax::is_target(path.as_str().as_bytes()) {
                return Err(Refused::Malformed);
            }
            Target::Path(path)
        };

        check_content_length(&headers)?;
        // RFC 9113, section 8.2.1: no whitespace around values.
        let has_spaces = |value: &HeaderValue| {
            let value = value.as_bytes();
            syntax::trim(value).len() != value.len()
        };
        if headers.values().any(has_spaces) {
            return Err(Refused::Malformed);
        }
        let mut expects_continue = false;
        for value in headers.get_all(EXPECT) {
            if !value.as_bytes().eq_ignore_ascii_case(b"100-continue") {
                return Err(Refused::Status(h1::Fault::Expectation.status()));
            }
            expects_continue = true;
        }
        join_cookies(&mut headers);
        let count = headers.len() + usize::from(!headers.contains_key(HOST));
        if count > fields_max {
            return Err(Refused::Status(h1::Fault::TooManyFields.status()));
        }
        Ok(Request {
            method,
            scheme,
            host,
            target,
            fields: headers,
            expects_continue,
        })
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
        match &self.target {
            Target::Path(path) if path.as_str() == "*" => Form::Asterisk,
            Target::Path(_) => Form::Origin,
            Target::Authority => Form::Authority,
        }
    }

    /// The path as the client wrote it, with its percent-encoding. `*` for OPTIONS of the server, empty for CONNECT.
    pub fn path(&self) -> &str {
        match &self.target {
            Target::Path(path) => path.path(),
            Target::Authority => "",
        }
    }

    /// What follows the first question mark of the target.
    pub fn query(&self) -> &str {
        match &self.target {
            Target::Path(path) => path.query().unwrap_or_default(),
            Target::Authority => "",
        }
    }

    /// The fields: names in lower case, and values. `host` comes first, and there is at most one `cookie`.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let others = self
            .fields
            .iter()
            .filter(|(name, _)| *name != HOST)
            .map(|(name, value)| (name.as_str(), value.as_bytes()));
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

/// Check Content-Length as in HTTP/1. The `h2` crate compares it with the data.
fn check_content_length(headers: &HeaderMap) -> Result<(), Refused> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let is_valid = lengths
        .next()
        .is_none_or(|length| syntax::decimal(length.as_bytes()).is_some())
        && lengths.next().is_none();
    if is_valid {
        Ok(())
    } else {
        Err(Refused::Malformed)
    }
}

/// Join cookies that were split for compression (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(COOKIE).iter().nth(1).is_none() {
        return;
    }
    let parts: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    // Valid values stay valid when they are joined.
    if let Ok(joined) = HeaderValue::from_bytes(&parts.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}
