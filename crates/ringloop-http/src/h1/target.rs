//! Request targets (RFC 9112, section 3.2).

use super::fault::Fault;
use super::request::{Method, Span};
use crate::syntax;

/// The form of a request target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Form {
    /// `/path?query`
    #[default]
    Origin,
    /// `http://host/path?query`
    Absolute,
    /// `host:port`, for CONNECT only.
    Authority,
    /// `*`, for OPTIONS only.
    Asterisk,
}

/// The parts of a target. A missing part is an empty span.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Target {
    pub(super) form: Form,
    pub(super) authority: Span,
    pub(super) path: Span,
    pub(super) query: Span,
}

/// Parses the target at `span` of `head`, in a request with this method.
pub(super) fn parse(head: &[u8], span: Span, method: Method) -> Result<Target, Fault> {
    let bytes = span.of(head);
    if !syntax::is_target(bytes) {
        return Err(Fault::Target);
    }
    if method == Method::Connect {
        // RFC 9110, section 9.3.6: the port is required.
        let authority = syntax::authority(bytes).ok_or(Fault::TargetForm)?;
        return match authority {
            syntax::Authority {
                host: [_, ..],
                port: Some(_),
            } => Ok(Target {
                form: Form::Authority,
                authority: span,
                ..Target::default()
            }),
            _ => Err(Fault::TargetForm),
        };
    }
    match bytes {
        [b'/', ..] => {
            let (path, query) = split_query(bytes, span);
            Ok(Target {
                path,
                query,
                ..Target::default()
            })
        }
        b"*" if method == Method::Options => Ok(Target {
            form: Form::Asterisk,
            path: span,
            ..Target::default()
        }),
        b"*" => Err(Fault::TargetForm),
        _ => absolute(bytes, span),
    }
}

fn absolute(bytes: &[u8], span: Span) -> Result<Target, Fault> {
    let scheme = |name: &[u8]| {
        bytes
            .get(..name.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(name))
    };
    let schemes = [&b"http://"[..], b"https://"].into_iter();
    let skipped = schemes.filter(|name| scheme(name)).map(<[u8]>::len).next();
    let skipped = skipped.ok_or(Fault::Target)?;
    let rest = &bytes[skipped..];
    let length = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
    let authority = Span::new(span.start() + skipped, length);
    // RFC 9110, section 4.2.1: a URL without a host is invalid.
    match syntax::authority(&rest[..length]) {
        Some(syntax::Authority { host: [_, ..], .. }) => {}
        _ => return Err(Fault::Host),
    }
    let rest_span = Span::new(authority.end(), rest.len() - length);
    let (path, query) = split_query(&rest[length..], rest_span);
    Ok(Target {
        form: Form::Absolute,
        authority,
        path,
        query,
    })
}

/// Splits `bytes`, which are at `span`, at the first question mark.
fn split_query(bytes: &[u8], span: Span) -> (Span, Span) {
    match memchr::memchr(b'?', bytes) {
        Some(mark) => (
            Span::new(span.start(), mark),
            Span::new(span.start() + mark + 1, bytes.len() - mark - 1),
        ),
        None => (span, Span::default()),
    }
}
