//! Character classes and small grammars that the protocols have in common.

/// Byte classes, as bits of [`CLASSES`].
const TOKEN: u8 = 1;
const REG_NAME: u8 = 2;
const HEX: u8 = 4;

static CLASSES: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let character = byte as u8;
        let alphanumeric = character.is_ascii_alphanumeric();
        // RFC 9110, section 5.6.2: tchar.
        if alphanumeric
            || matches!(
                character,
                b'!' | b'#'
                    | b'$'
                    | b'%'
                    | b'&'
                    | b'\''
                    | b'*'
                    | b'+'
                    | b'-'
                    | b'.'
                    | b'^'
                    | b'_'
                    | b'`'
                    | b'|'
                    | b'~'
            )
        {
            table[byte] |= TOKEN;
        }
        // RFC 3986, section 3.2.2: unreserved and sub-delims, but not the comma. No host name contains one, and "a,b"
        // may be the result of merging two Host fields.
        if alphanumeric
            || matches!(
                character,
                b'-' | b'.'
                    | b'_'
                    | b'~'
                    | b'!'
                    | b'$'
                    | b'&'
                    | b'\''
                    | b'('
                    | b')'
                    | b'*'
                    | b'+'
                    | b';'
                    | b'='
            )
        {
            table[byte] |= REG_NAME;
        }
        if character.is_ascii_hexdigit() {
            table[byte] |= HEX;
        }
        byte += 1;
    }
    table
}

#[inline]
fn has(byte: u8, class: u8) -> bool {
    CLASSES[usize::from(byte)] & class != 0
}

/// Whether a token may contain `byte` (RFC 9110, section 5.6.2).
#[inline]
pub(crate) fn is_token_byte(byte: u8) -> bool {
    has(byte, TOKEN)
}

/// Whether `bytes` are a token, such as a method, a field name or a subprotocol.
#[inline]
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&byte| has(byte, TOKEN))
}

/// Whether `bytes` are valid in a field value: no control characters except tabs (RFC 9110, section 5.5).
#[inline]
pub(crate) fn is_field_value(bytes: &[u8]) -> bool {
    all_words(bytes, |word| {
        below(word, b' ') & !equal(word, b'\t') | equal(word, 0x7F)
    })
}

/// Whether `bytes` are valid in a request target.
///
/// Browsers, scripts and other servers' users send more than RFC 3986 allows, such as `"`, `<` and `|`: no server reads
/// these in different ways. This refuses control characters, space, and everything outside of ASCII; and `#`, which some
/// servers take for the begin of a fragment, and others for a part of the path.
#[inline]
pub(crate) fn is_target(bytes: &[u8]) -> bool {
    all_words(bytes, |word| {
        below(word, b' ' + 1) | equal(word, b'#') | equal(word, 0x7F) | word & HIGH_BITS
    })
}

/// Whether `flag`, which looks at eight bytes at a time, returns 0 for all of `bytes`.
#[inline]
fn all_words(bytes: &[u8], flag: impl Fn(u64) -> u64) -> bool {
    let length = bytes.len();
    if length < 8 {
        let mut padded = [b'x'; 8];
        if length >= 4 {
            padded = short_word(bytes);
        } else {
            for (place, &byte) in padded.iter_mut().zip(bytes) {
                *place = byte;
            }
        }
        return flag(u64::from_ne_bytes(padded)) == 0;
    }
    // The last word ends at the end of the bytes, and may overlap the one before.
    let last = length - 8;
    let mut found = 0;
    let mut start = 0;
    while start < last {
        found |= flag(word(bytes, start));
        start += 8;
    }
    found | flag(word(bytes, last)) == 0
}

/// The eight bytes at `start`.
#[inline]
pub(crate) fn word(bytes: &[u8], start: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[start..start + 8]);
    u64::from_ne_bytes(word)
}

/// The first four and the last four bytes.
#[inline]
pub(crate) fn short_word(bytes: &[u8]) -> [u8; 8] {
    let mut word = [0; 8];
    word[..4].copy_from_slice(&bytes[..4]);
    word[4..].copy_from_slice(&bytes[bytes.len() - 4..]);
    word
}

/// A word that repeats `byte` eight times.
#[inline]
pub(crate) const fn repeated(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; 8])
}

const HIGH_BITS: u64 = repeated(0x80);

/// Sets the high bit of each byte of `word` that is less than `limit`. `limit` must not exceed 0x80.
#[inline]
fn below(word: u64, limit: u8) -> u64 {
    // Without the high bits, the addition cannot carry into the next byte.
    !(((word & !HIGH_BITS) + repeated(0x80 - limit)) | word) & HIGH_BITS
}

/// Sets the high bit of each byte of `word` that is equal to `byte`.
#[inline]
fn equal(word: u64, byte: u8) -> u64 {
    below(word ^ repeated(byte), 1)
}

/// Removes leading and trailing spaces and tabs (OWS in RFC 9110, section 5.6.3).
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The elements of a comma-separated list, trimmed. They can be empty.
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim)
}

/// Whether the comma-separated list `value` contains `member`, without regard to case.
pub(crate) fn lists(value: &[u8], member: &[u8]) -> bool {
    list(value).any(|candidate| candidate.eq_ignore_ascii_case(member))
}

/// Stores `value`, or fails with `error` if there is one already.
pub(crate) fn set_once<T, E>(slot: &mut Option<T>, value: T, error: E) -> Result<(), E> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(error),
    }
}

/// Parses a number that consists of decimal digits only: no sign, no spaces, no overflow.
pub(crate) fn decimal(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() {
        return None;
    }
    bytes.iter().try_fold(0_u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Appends `number` in decimal.
pub(crate) fn push_decimal(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// A host and an optional port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Authority<'a> {
    /// The host as written, in any case. IPv6 addresses have their brackets.
    pub(crate) host: &'a [u8],
    pub(crate) port: Option<u16>,
}

impl Authority<'_> {
    /// Whether both stand for the same server. `default` is used where there is no port.
    pub(crate) fn is_same_server(&self, other: &Self, default: u16) -> bool {
        self.host.eq_ignore_ascii_case(other.host)
            && self.port.unwrap_or(default) == other.port.unwrap_or(default)
    }
}

/// Parses `uri-host [ ":" port ]` (RFC 9110, section 7.2; RFC 3986, section 3.2.2). Both host and port can be empty.
/// Userinfo is not allowed.
pub(crate) fn authority(bytes: &[u8]) -> Option<Authority<'_>> {
    let host_length = match bytes.first() {
        Some(b'[') => {
            let end = memchr::memchr(b']', bytes)?;
            // The standard library's parser refuses zones and IPvFuture.
            str::from_utf8(&bytes[1..end])
                .ok()?
                .parse::<std::net::Ipv6Addr>()
                .ok()?;
            end + 1
        }
        _ => reg_name(bytes)?,
    };
    let (host, port) = bytes.split_at(host_length);
    let port = match port {
        [] | [b':'] => None,
        [b':', digits @ ..] => Some(u16::try_from(decimal(digits)?).ok()?),
        _ => return None,
    };
    Some(Authority { host, port })
}

/// The length of the registered name or IPv4 address at the start of `bytes`, up to a colon or the end.
fn reg_name(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b':' => break,
            b'%' => match bytes.get(at + 1..at + 3) {
                Some(&[high, low]) if has(high, HEX) && has(low, HEX) => at += 3,
                _ => return None,
            },
            _ if has(byte, REG_NAME) => at += 1,
            _ => return None,
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_what_rfc_9110_says() {
        for byte in 0..=u8::MAX {
            let expected = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            assert_eq!(is_token(&[byte]), expected, "{byte:#x}");
        }
        assert!(!is_token(b""));
    }

    #[test]
    fn field_values_have_no_control_characters_but_the_tab() {
        for byte in 0..=u8::MAX {
            let expected = byte == b'\t' || (byte >= b' ' && byte != 0x7F);
            at_every_place(byte, |value| assert_eq!(is_field_value(value), expected));
        }
        assert!(is_field_value(b""));
    }

    /// Calls `check` with strings of many lengths that contain `byte` at every place, between valid bytes.
    fn at_every_place(byte: u8, check: impl Fn(&[u8])) {
        for length in 1..30 {
            for place in 0..length {
                let mut value = b"~!a-~!z0~!A&".repeat(3)[..length].to_vec();
                value[place] = byte;
                check(&value);
            }
        }
    }

    #[test]
    fn targets_consist_of_visible_ascii_without_fragments() {
        for byte in 0..=u8::MAX {
            let expected = byte.is_ascii_graphic() && byte != b'#';
            assert_eq!(is_target(&[b'a', byte]), expected, "{:?}", char::from(byte));
        }
    }

    #[test]
    fn decimals_are_digits_and_nothing_else() {
        assert_eq!(decimal(b"0"), Some(0));
        assert_eq!(decimal(b"007"), Some(7));
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        for wrong in [
            &b""[..],
            b"+1",
            b"-1",
            b" 1",
            b"1 ",
            b"1,1",
            b"0x1",
            b"1e3",
            b"1_0",
            b"18446744073709551616",
            b"99999999999999999999",
        ] {
            assert_eq!(decimal(wrong), None, "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn decimals_are_written_as_they_are_read() {
        for number in [0, 9, 10, 1234, u64::MAX] {
            let mut out = b"x".to_vec();
            push_decimal(number, &mut out);
            assert_eq!(out, format!("x{number}").as_bytes());
        }
    }

    #[test]
    fn authorities_are_a_host_and_a_port() {
        let parse = |bytes: &'static [u8]| authority(bytes).map(|found| (found.host, found.port));
        assert_eq!(parse(b""), Some((&b""[..], None)));
        assert_eq!(parse(b"a.example"), Some((&b"a.example"[..], None)));
        assert_eq!(parse(b"a.example:"), Some((&b"a.example"[..], None)));
        assert_eq!(parse(b"a.example:80"), Some((&b"a.example"[..], Some(80))));
        assert_eq!(parse(b"a_b.%C3%A9:1"), Some((&b"a_b.%C3%A9"[..], Some(1))));
        assert_eq!(parse(b"[::1]:65535"), Some((&b"[::1]"[..], Some(65535))));
        assert_eq!(
            parse(b"[::ffff:1.2.3.4]"),
            Some((&b"[::ffff:1.2.3.4]"[..], None))
        );
        for wrong in [
            &b"user@host"[..],
            b"a b",
            b"a/b",
            b"a?b",
            b"a#b",
            b"a\\b",
            b"a,b",
            b"a:b",
            b"a:+80",
            b"a:-1",
            b"a:65536",
            b"a:80:80",
            b"a:80 ",
            b"%",
            b"%4",
            b"%zz",
            b"[::1",
            b"[]",
            b"[1.2.3.4]",
            b"[fe80::1%25eth0]",
            b"[v1.a]",
            b"[::1]a",
            b"::1",
            b"a\x7F",
            b"a\0",
            b"\xC3\xA9",
        ] {
            assert_eq!(authority(wrong), None, "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn the_same_server_has_the_same_host_and_port() {
        let same = |one: &'static [u8], other: &'static [u8]| {
            authority(one)
                .unwrap()
                .is_same_server(&authority(other).unwrap(), 80)
        };
        assert!(same(b"A.example", b"a.EXAMPLE:80"));
        assert!(same(b"a:", b"a"));
        assert!(!same(b"a", b"b"));
        assert!(!same(b"a:81", b"a"));
    }

    #[test]
    fn lists_are_split_at_commas_and_trimmed() {
        assert_eq!(
            list(b"a ,\tb,,c ").collect::<Vec<_>>(),
            [&b"a"[..], b"b", b"", b"c"]
        );
        assert!(lists(b"keep-alive, Upgrade", b"upgrade"));
        assert!(!lists(b"upgraded", b"upgrade"));
    }
}
