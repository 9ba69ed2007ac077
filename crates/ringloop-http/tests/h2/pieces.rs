//! Random input, cut anywhere.

use proptest::prelude::*;
use ringloop_http::h2::{Config, Event};

use crate::support::{GET, Server, fields_of};
use crate::targets;
use crate::targets::h2::{DATA, END_HEADERS, END_STREAM, HEADERS, block, frame};

/// The events, as text, when the input arrives in `pieces`.
fn events_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
    let mut server = Server::new(&Config::default());
    let mut found = Vec::new();
    for piece in pieces {
        for event in server.give(piece) {
            found.push(match event {
                Event::Request {
                    stream,
                    request,
                    end,
                } => {
                    format!(
                        "{stream} {} {:?} {end}",
                        request.path(),
                        fields_of(&request)
                    )
                }
                other => format!("{other:?}"),
            });
        }
    }
    found
}

proptest! {
    #[test]
    fn it_does_not_matter_where_frames_are_cut(
        seed: u64,
        requests in proptest::collection::vec(("/[a-z]{0,10}", proptest::collection::vec(any::<u8>(), 0..300)), 1..20),
    ) {
        let mut input = Vec::new();
        for (index, (path, body)) in requests.iter().enumerate() {
            let stream = 2 * index as u32 + 1;
            let fields = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", path.as_str())];
            input.extend_from_slice(&frame(HEADERS, END_HEADERS, stream, &block(&fields)));
            input.extend_from_slice(&frame(DATA, END_STREAM, stream, body));
        }
        let mut whole = events_of([input.as_slice()]);
        let mut cut = events_of(targets::pieces(&input, seed));
        // The order between streams depends on the pieces.
        whole.sort();
        cut.sort();
        prop_assert_eq!(whole, cut);
    }

    #[test]
    fn any_frames_are_survived(
        seed: u64,
        given in proptest::collection::vec(
            (0..11_u8, any::<u8>(), 0..8_u32, prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..20),
                Just(block(GET)),
                Just(vec![0, 0, 0, 1]),
            ]), 0..30),
    ) {
        let mut data = seed.to_le_bytes().to_vec();
        for (kind, flags, stream, payload) in given {
            data.extend_from_slice(&frame(kind, flags, stream, &payload));
        }
        targets::h2::feed(&data);
    }
}
