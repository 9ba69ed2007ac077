//! Common header names, as small numbers.

use crate::syntax::{self, repeated, short_word, word};

/// A field name that this crate knows: an index into [`Known::NAMES`].
///
/// A caller that needs an object for each name, such as a Python string, can create those of the known names once and
/// look them up by [`Known::index`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Known(u8);

/// Declares [`Known::NAMES`], and constants for the names that the crate itself uses.
macro_rules! names {
    ($($constant:ident $own:literal)* ; $($other:literal)*) => {
        impl Known {
            /// All known names, in lower case.
            pub const NAMES: &'static [&'static str] = &[$($own,)* $($other,)*];
            $(
                #[doc = concat!("`", $own, "`")]
                pub const $constant: Known = Known::at($own);
            )*
        }
    };
}

names! {
    // The names that control framing and the connection come first, so that one comparison rules them out.
    HOST "host"
    CONTENT_LENGTH "content-length"
    TRANSFER_ENCODING "transfer-encoding"
    CONNECTION "connection"
    EXPECT "expect"
    UPGRADE "upgrade"
    TE "te"
    COOKIE "cookie"
    DATE "date"
    KEEP_ALIVE "keep-alive"
    PROXY_CONNECTION "proxy-connection"
    SEC_WEBSOCKET_ACCEPT "sec-websocket-accept"
    SEC_WEBSOCKET_EXTENSIONS "sec-websocket-extensions"
    SEC_WEBSOCKET_KEY "sec-websocket-key"
    SEC_WEBSOCKET_PROTOCOL "sec-websocket-protocol"
    SEC_WEBSOCKET_VERSION "sec-websocket-version"
    SERVER "server"
    TRAILER "trailer"
    ;
    "accept"
    "accept-charset"
    "accept-encoding"
    "accept-language"
    "accept-ranges"
    "access-control-allow-credentials"
    "access-control-allow-headers"
    "access-control-allow-methods"
    "access-control-allow-origin"
    "access-control-expose-headers"
    "access-control-max-age"
    "access-control-request-headers"
    "access-control-request-method"
    "age"
    "allow"
    "alt-svc"
    "authorization"
    "baggage"
    "cache-control"
    "cdn-loop"
    "cf-connecting-ip"
    "cf-ipcountry"
    "cf-ray"
    "cf-visitor"
    "content-disposition"
    "content-encoding"
    "content-language"
    "content-location"
    "content-range"
    "content-security-policy"
    "content-type"
    "cross-origin-opener-policy"
    "cross-origin-resource-policy"
    "dnt"
    "etag"
    "expires"
    "forwarded"
    "from"
    "if-match"
    "if-modified-since"
    "if-none-match"
    "if-range"
    "if-unmodified-since"
    "last-event-id"
    "last-modified"
    "link"
    "location"
    "max-forwards"
    "origin"
    "permissions-policy"
    "pragma"
    "priority"
    "proxy-authenticate"
    "proxy-authorization"
    "range"
    "referer"
    "referrer-policy"
    "retry-after"
    "sec-ch-ua"
    "sec-ch-ua-mobile"
    "sec-ch-ua-platform"
    "sec-fetch-dest"
    "sec-fetch-mode"
    "sec-fetch-site"
    "sec-fetch-user"
    "sec-gpc"
    "server-timing"
    "set-cookie"
    "strict-transport-security"
    "traceparent"
    "tracestate"
    "true-client-ip"
    "upgrade-insecure-requests"
    "user-agent"
    "vary"
    "via"
    "www-authenticate"
    "x-accel-buffering"
    "x-amzn-trace-id"
    "x-api-key"
    "x-client-ip"
    "x-cloud-trace-context"
    "x-content-type-options"
    "x-correlation-id"
    "x-csrf-token"
    "x-forwarded-for"
    "x-forwarded-host"
    "x-forwarded-port"
    "x-forwarded-prefix"
    "x-forwarded-proto"
    "x-frame-options"
    "x-powered-by"
    "x-process-time"
    "x-real-ip"
    "x-request-id"
    "x-requested-with"
    "x-robots-tag"
    "x-scheme"
    "x-xss-protection"
}

/// The last of the names that control framing and the connection.
const LAST_OF_FRAMING: u8 = Known::TE.0;

const SLOT_BITS: u32 = 9;
/// Found by search: no two names share a slot. [`slots`] checks that at compile time.
const MULTIPLIER: u32 = 0x9042_1211;
const FREE: u8 = u8::MAX;

static SLOTS: [u8; 1 << SLOT_BITS] = slots();

const fn slots() -> [u8; 1 << SLOT_BITS] {
    let mut table = [FREE; 1 << SLOT_BITS];
    let mut index = 0;
    while index < Known::NAMES.len() {
        let slot = slot(Known::NAMES[index].as_bytes());
        assert!(
            table[slot] == FREE,
            "two names share a slot: search another multiplier"
        );
        table[slot] = index as u8;
        index += 1;
    }
    table
}

/// The slot of `name`, which must not be empty. Upper and lower case give the same slot.
#[inline]
const fn slot(name: &[u8]) -> usize {
    let length = name.len();
    let key = u32::from_le_bytes([
        name[0] | 0x20,
        name[length * 3 / 4] | 0x20,
        name[length.saturating_sub(4)] | 0x20,
        length as u8,
    ]);
    (key.wrapping_mul(MULTIPLIER) >> (32 - SLOT_BITS)) as usize
}

/// Compares `name` with `known` without regard to case. `known` has only lower-case letters, digits and dashes.
#[inline]
fn is_same(known: &[u8], name: &[u8]) -> bool {
    let length = known.len();
    if length != name.len() {
        return false;
    }
    if length < 4 {
        return known.eq_ignore_ascii_case(name);
    }
    if length < 8 {
        let [known, name] = [known, name].map(|name| u64::from_ne_bytes(short_word(name)));
        return is_same_word(known, name);
    }
    // The last word ends at the end of the names, and may overlap the one before.
    let last = length - 8;
    let mut start = 0;
    while start < last {
        if !is_same_word(word(known, start), word(name, start)) {
            return false;
        }
        start += 8;
    }
    is_same_word(word(known, last), word(name, last))
}

/// The same comparison for eight bytes.
#[inline]
fn is_same_word(known: u64, name: u64) -> bool {
    // Setting bit 5 makes letters lower case. It would also turn some control characters into dashes and digits, so the
    // name must not contain any.
    let high = name & repeated(0x60);
    let has_no_control = (high | high << 1) & repeated(0x40) == repeated(0x40);
    name | repeated(0x20) == known && has_no_control
}

impl Known {
    const fn at(name: &str) -> Known {
        let mut index = 0;
        while index < Known::NAMES.len() {
            let (candidate, wanted) = (Known::NAMES[index].as_bytes(), name.as_bytes());
            let mut same = candidate.len() == wanted.len();
            let mut byte = 0;
            while same && byte < wanted.len() {
                same = candidate[byte] == wanted[byte];
                byte += 1;
            }
            if same {
                return Known(index as u8);
            }
            index += 1;
        }
        panic!("not a known name");
    }

    /// Looks up `name`, without regard to case.
    #[inline]
    pub fn find(name: &[u8]) -> Option<Known> {
        if name.is_empty() {
            return None;
        }
        let index = SLOTS[slot(name)];
        let candidate = Known::NAMES.get(usize::from(index))?;
        is_same(candidate.as_bytes(), name).then_some(Known(index))
    }

    /// The index into [`Known::NAMES`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The name in lower case.
    #[inline]
    pub fn as_str(self) -> &'static str {
        Known::NAMES[self.index()]
    }

    /// Whether the field controls framing or the connection.
    #[inline]
    pub(crate) fn is_of_framing(self) -> bool {
        self.0 <= LAST_OF_FRAMING
    }
}

/// Copies `name` to `lowered` in lower case, as ASGI and HTTP/2 need it.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn lower_case(name: &[u8], lowered: &mut [u8]) {
    lowered.copy_from_slice(name);
    lowered.make_ascii_lowercase();
}

/// Whether `name` is a valid field name. A known one needs no check.
#[inline]
pub(crate) fn is_valid(name: &[u8], known: Option<Known>) -> bool {
    known.is_some() || syntax::is_token(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_known_names_are_found_in_any_case() {
        for (index, name) in Known::NAMES.iter().enumerate() {
            for written in [
                (*name).to_owned(),
                name.to_uppercase(),
                name[..1].to_uppercase() + &name[1..],
            ] {
                let found = Known::find(written.as_bytes()).expect(name);
                assert_eq!((found.index(), found.as_str()), (index, *name));
            }
        }
    }

    #[test]
    fn other_names_are_not_found() {
        for name in [
            "",
            "x",
            "hosts",
            "hos",
            "h\u{4f}sT\0",
            "content_length",
            "content-lengths",
            // Equal to a known name in length and in the bytes that the hash uses.
            "hxst",
            &"a".repeat(256 + 4),
            &"a".repeat(100_000),
        ] {
            assert_eq!(Known::find(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn no_byte_but_the_other_case_stands_for_a_letter() {
        for (index, known) in Known::NAMES.iter().enumerate() {
            assert!(
                known
                    .bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            );
            for place in 0..known.len() {
                for byte in 0..=u8::MAX {
                    let mut name = known.as_bytes().to_vec();
                    name[place] = byte;
                    let expected = name.eq_ignore_ascii_case(known.as_bytes());
                    let found = Known::find(&name) == Some(Known(index as u8));
                    assert_eq!(found, expected, "{}", name.escape_ascii());
                }
            }
        }
    }

    #[test]
    fn names_are_tokens_in_lower_case() {
        for name in Known::NAMES {
            assert!(syntax::is_token(name.as_bytes()));
            assert_eq!(*name, name.to_lowercase());
        }
    }

    #[test]
    fn only_the_names_of_framing_are_of_framing() {
        let found: Vec<_> = (0..Known::NAMES.len())
            .map(|index| Known(index as u8))
            .filter(|name| name.is_of_framing())
            .map(Known::as_str)
            .collect();
        assert_eq!(
            found,
            [
                "host",
                "content-length",
                "transfer-encoding",
                "connection",
                "expect",
                "upgrade",
                "te"
            ]
        );
    }

    #[test]
    fn names_are_lowered() {
        let mut lowered = [0; 4];
        lower_case(b"X-Id", &mut lowered);
        assert_eq!(&lowered, b"x-id");
    }
}
