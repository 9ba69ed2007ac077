//! The reasons to refuse a request.

use std::fmt;

/// Declares [`Fault`]: the name, the status and the message of each kind.
macro_rules! faults {
    ($($(#[$documentation:meta])* $name:ident $status:literal $text:literal)*) => {
        /// The reason to refuse a request. The connection ends with the refusal.
        ///
        /// Section numbers refer to RFC 9112 unless another RFC is named.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Fault {
            $($(#[$documentation])* $name,)*
        }

        impl Fault {
            /// All kinds.
            pub const ALL: &'static [Fault] = &[$(Fault::$name,)*];

            /// The status of the refusal.
            pub fn status(self) -> u16 {
                match self {
                    $(Fault::$name => $status,)*
                }
            }

            /// A short message for a log or a response's body.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Fault::$name => $text,)*
                }
            }
        }
    };
}

faults! {
    /// A line ends with a bare line feed. Section 2.2 allows a recipient to accept it, but a proxy in front may not.
    BareLineFeed 400 "bare line feed"
    /// The request line does not consist of a method, a target and a version, separated by single spaces (section 3).
    RequestLine 400 "invalid request line"
    /// The request line is longer than allowed.
    RequestLineTooLong 414 "request line too long"
    /// The version is well-formed, but neither 1.0 nor 1.1.
    UnsupportedVersion 505 "unsupported HTTP version"
    /// The target contains invalid bytes, or has none of the four forms (section 3.2).
    Target 400 "invalid request target"
    /// The form of the target does not match the method. Authority-form is for CONNECT, asterisk-form for OPTIONS.
    TargetForm 400 "request target does not match the method"
    /// The head is larger than allowed.
    HeadTooLarge 431 "request head too large"
    /// The head has more fields than allowed.
    TooManyFields 431 "too many header fields"
    /// A field line does not start with a valid name and a colon. This includes folded lines (section 5.2) and
    /// whitespace before the colon (section 5.1).
    FieldName 400 "invalid header name"
    /// A field's value contains a control character, such as a bare carriage return (RFC 9110, section 5.5).
    FieldValue 400 "invalid header value"
    /// HTTP/1.1 without Host (section 3.2).
    MissingHost 400 "missing Host header"
    /// More than one Host (section 3.2).
    RepeatedHost 400 "more than one Host header"
    /// Host, or the authority of the target, is not a host with an optional port (section 3.2).
    Host 400 "invalid host"
    /// Content-Length does not consist of digits only (section 6.3).
    ContentLength 400 "invalid Content-Length"
    /// More than one Content-Length, even with equal values (section 6.3 allows a recipient to refuse that).
    RepeatedContentLength 400 "more than one Content-Length header"
    /// Both Content-Length and Transfer-Encoding (section 6.3: it might be an attempt at smuggling).
    LengthAndCoding 400 "both Content-Length and Transfer-Encoding"
    /// Transfer-Encoding is not exactly one `chunked` (sections 6.1 and 6.3).
    TransferEncoding 400 "invalid Transfer-Encoding"
    /// Transfer-Encoding ends with `chunked`, but lists unsupported codings before it (section 6.1).
    UnsupportedCoding 501 "unsupported transfer coding"
    /// Transfer-Encoding in HTTP/1.0 (section 6.1).
    CodingInHttp10 400 "Transfer-Encoding in HTTP/1.0"
    /// Expect is not `100-continue` (RFC 9110, section 10.1.1).
    Expectation 417 "unknown expectation"
    /// A chunk does not start with a size of 1 to 16 hexadecimal digits and a line end, or the size is too large
    /// (section 7.1).
    ChunkSize 400 "invalid chunk size"
    /// A chunk extension contains a control character, or the extensions are longer than allowed (section 7.1.1).
    ChunkExtension 400 "invalid chunk extension"
    /// A chunk's data is not followed by a line end (section 7.1).
    ChunkEnd 400 "chunk data does not end with a line end"
    /// The trailer section contains an invalid line or a forbidden field (section 7.1.2; RFC 9110, section 6.5.1).
    Trailer 400 "invalid trailer field"
    /// The trailer section is larger than allowed.
    TrailersTooLarge 431 "trailer section too large"
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl std::error::Error for Fault {}
