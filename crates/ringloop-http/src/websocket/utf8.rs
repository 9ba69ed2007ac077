//! UTF-8 that comes in pieces.

/// Checks text whose characters may be cut apart.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Utf8 {
    /// The beginning of a character.
    partial: [u8; 4],
    length: u8,
}

impl Utf8 {
    /// Whether the text goes on validly with `bytes`. What can become no character is told with its first wrong byte.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> bool {
        while self.length > 0 {
            let [byte, rest @ ..] = bytes else {
                return true;
            };
            bytes = rest;
            self.partial[usize::from(self.length)] = *byte;
            self.length += 1;
            match str::from_utf8(&self.partial[..usize::from(self.length)]) {
                Ok(_) => self.length = 0,
                Err(error) if error.error_len().is_some() => return false,
                Err(_) => {}
            }
        }
        // This takes a quarter of the time, and most text is ASCII.
        if bytes.is_ascii() {
            return true;
        }
        let Err(error) = str::from_utf8(bytes) else {
            return true;
        };
        if error.error_len().is_some() {
            return false;
        }
        let rest = &bytes[error.valid_up_to()..];
        self.partial[..rest.len()].copy_from_slice(rest);
        self.length = rest.len() as u8;
        true
    }

    /// Whether no character is cut off.
    pub(super) fn is_complete(self) -> bool {
        self.length == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> bool {
        let mut utf8 = Utf8::default();
        pieces.into_iter().all(|piece| utf8.push(piece)) && utf8.is_complete()
    }

    #[test]
    fn characters_may_be_cut_anywhere() {
        let text = "aé€😀z".as_bytes();
        for step in 1..=text.len() {
            assert!(check(text.chunks(step)));
        }
        for end in 0..text.len() {
            let whole = str::from_utf8(&text[..end]).is_ok();
            assert_eq!(check([&text[..end]]), whole);
            assert_eq!(check(text[..end].chunks(1)), whole);
        }
    }

    #[test]
    fn an_error_is_told_with_its_first_byte() {
        // Too long, a surrogate, beyond Unicode, no beginning, no continuation.
        for (valid, wrong) in [
            (&b"\xE0"[..], 0x80),
            (b"\xED", 0xA0),
            (b"\xF4", 0x90),
            (b"", 0x80),
            (b"\xE2\x82", 0x41),
            (b"", 0xC0),
            (b"", 0xF5),
        ] {
            let mut utf8 = Utf8::default();
            assert!(utf8.push(valid));
            assert!(!utf8.push(&[wrong]), "{valid:x?} {wrong:x}");
        }
    }

    proptest! {
        #[test]
        fn it_is_what_the_standard_library_says(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0x80..0xC0_u8, Just(0xE2), Just(b'a')], 0..40),
            text: String,
            step in 1_usize..9,
        ) {
            prop_assert_eq!(check(bytes.chunks(step)), str::from_utf8(&bytes).is_ok());
            prop_assert!(check(text.as_bytes().chunks(step)));
        }
    }
}
