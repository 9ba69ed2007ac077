//! Bodies: trailers, flow control, resets.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use ringloop_http::h2::{Config, Connection, Event};
use ringloop_http::{Lines, ResponseError};

use crate::support::{
    CANCEL, Client, GET, NO_ERROR, PROTOCOL_ERROR, Server, hear, only_request, reset,
};
use crate::targets::h2::{
    DATA, END_HEADERS, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame,
};

#[test]
fn bodies_and_trailers_go_both_ways() {
    let mut server = Connection::new(&Config::default());
    let mut client = Client::new();
    let (response, mut sending) = client.ask("POST", false);
    let (stream, _, end) = only_request(client.exchange(&mut server));
    assert!(!end);
    sending
        .send_data(Bytes::from_static(b"hello"), false)
        .unwrap();
    let events = client.exchange(&mut server);
    assert!(matches!(&events[..], [Event::Data { data, end: false, .. }] if data == "hello"));
    let trailers: http::HeaderMap = [("x-sum".parse().unwrap(), "1".parse().unwrap())]
        .into_iter()
        .collect();
    sending.send_trailers(trailers).unwrap();
    let events = client.exchange(&mut server);
    let expected = vec![("x-sum".to_owned(), b"1".to_vec())];
    assert!(matches!(&events[..], [Event::Trailers { fields, .. }] if *fields == expected));

    server
        .respond(stream, 200, [], None, &mut Lines::new(None, false), 0)
        .unwrap();
    server
        .send(stream, Bytes::from_static(b"bye"), false, 0)
        .unwrap();
    for (name, error) in [
        ("content-length", ResponseError::FieldName),
        ("x:", ResponseError::FieldName),
    ] {
        let fields = [(name.as_bytes(), &b"1"[..])];
        assert_eq!(server.send_trailers(stream, fields, 0), Err(error));
    }
    server
        .send_trailers(stream, [(&b"X-Sum"[..], &b"2"[..])], 0)
        .unwrap();
    assert!(server.is_idle());
    client.exchange(&mut server);
    let found = hear(response);
    assert_eq!((found.body.as_slice(), found.complete), (&b"bye"[..], true));
    assert_eq!(
        found.trailers,
        Some([("x-sum".to_owned(), "2".to_owned())].into())
    );
}

#[test]
fn trailers_behind_no_body_are_left_out() {
    for (method, status) in [("HEAD", 200), ("GET", 204)] {
        let mut server = Connection::new(&Config::default());
        let mut client = Client::new();
        let (response, _sending) = client.ask(method, true);
        let (stream, ..) = only_request(client.exchange(&mut server));
        server
            .respond(stream, status, [], None, &mut Lines::new(None, false), 0)
            .unwrap();
        server
            .send_trailers(stream, [(&b"x"[..], &b"y"[..])], 0)
            .unwrap();
        assert!(server.is_idle());
        client.exchange(&mut server);
        let found = hear(response);
        assert_eq!((found.complete, found.trailers), (true, None));
    }
}

#[test]
fn requests_with_trailers_that_must_not_be_are_reset() {
    for name in ["content-length", "host", "authorization", "cookie"] {
        let mut server = Server::new(&Config::default());
        only_request(server.give(&frame(HEADERS, END_HEADERS, 1, &block(GET))));
        let events = server.request(1, &[(name, "1")]);
        assert!(
            matches!(
                events[..],
                [Event::Reset {
                    stream: 1,
                    code: PROTOCOL_ERROR
                }]
            ),
            "{events:?}"
        );
        assert!(server.output().contains(&reset(1, PROTOCOL_ERROR)));
    }
}

#[test]
fn a_body_waits_for_the_application() {
    let config = Config::default();
    let window = config.stream_window_bytes as usize;
    let mut server = Connection::new(&config);
    let mut client = Client::new();
    let (_response, mut sending) = client.ask("POST", false);
    let (stream, ..) = only_request(client.exchange(&mut server));
    sending
        .send_data(Bytes::from(vec![b'x'; 3 * window]), true)
        .unwrap();
    let received = |events: &[Event]| -> usize {
        events
            .iter()
            .map(|event| match event {
                Event::Data { data, .. } => data.len(),
                other => panic!("{other:?}"),
            })
            .sum()
    };
    let events = client.exchange(&mut server);
    assert_eq!(received(&events), window);
    // No more is received before the application has taken this.
    assert!(client.exchange(&mut server).is_empty());
    server.release(stream, window);
    assert_eq!(received(&client.exchange(&mut server)), window);
    // Releasing too much, or on an unknown stream, has no effect.
    server.release(stream, 10 * window);
    server.release(stream + 2, 1);
    assert!(client.exchange(&mut server).is_empty());
    server.release(stream, window);
    let events = client.exchange(&mut server);
    assert_eq!(received(&events), window);
    assert!(matches!(events.last(), Some(Event::Data { end: true, .. })));
}

#[test]
fn all_bodies_together_wait_too() {
    let mut config = Config::default();
    config.connection_window_bytes = 100_000;
    let window = config.stream_window_bytes as usize;
    let mut server = Connection::new(&config);
    let mut client = Client::new();
    let mut kept = Vec::new();
    for _ in 0..3 {
        let (response, mut sending) = client.ask("POST", false);
        sending
            .send_data(Bytes::from(vec![b'x'; window]), true)
            .unwrap();
        kept.push((response, sending));
    }
    let mut streams = BTreeMap::new();
    let mut count = |events: Vec<Event>| {
        for event in events {
            if let Event::Data { stream, data, .. } = event {
                *streams.entry(stream).or_insert(0) += data.len();
            }
        }
        streams.clone()
    };
    let received = count(client.exchange(&mut server));
    assert_eq!(received.values().sum::<usize>(), 100_000);
    // A reset stream releases its part of the connection's window.
    let (&first, _) = received.first_key_value().unwrap();
    server.reset(first, CANCEL);
    let received = count(client.exchange(&mut server));
    assert_eq!(received.values().sum::<usize>(), 100_000 + window);
}

#[test]
fn a_body_that_is_never_released_does_not_use_up_the_connection() {
    let mut config = Config::default();
    config.connection_window_bytes = 100_000;
    let mut server = Server::new(&config);
    for stream in (1..200).step_by(2) {
        only_request(server.give(&frame(HEADERS, END_HEADERS, stream, &block(GET))));
        let events = server.give(&frame(DATA, 0, stream, &[0; 10_000]));
        assert!(matches!(events[..], [Event::Data { .. }]), "{events:?}");
        // The response ends before the application has received the body.
        server.respond(stream, 204, &[], None).unwrap();
        server.send(stream, "", true).unwrap();
        server.output();
        // This comes too late to have an effect.
        server.connection.release(stream, 10_000);
    }
    assert!(!server.connection.is_over());
}

#[test]
fn a_response_waits_for_the_client() {
    let mut server = Connection::new(&Config::default());
    let mut builder = h2::client::Builder::new();
    let mut client = Client::with(builder.initial_window_size(1000));
    let (response, _sending) = client.ask("GET", true);
    let (stream, ..) = only_request(client.exchange(&mut server));
    server
        .respond(stream, 200, [], None, &mut Lines::new(None, false), 0)
        .unwrap();
    server
        .send(stream, Bytes::from(vec![b'x'; 2500]), false, 0)
        .unwrap();
    assert!(client.exchange(&mut server).is_empty());
    assert_eq!(server.buffered(stream), 1500);
    let mut context = Context::from_waker(Waker::noop());
    let mut response = Box::pin(response);
    let Poll::Ready(Ok(response)) = response.as_mut().poll(&mut context) else {
        panic!();
    };
    let mut body = response.into_body();
    let mut take = |client: &mut Client, server: &mut Connection| {
        while let Poll::Ready(Some(Ok(data))) = body.poll_data(&mut context) {
            body.flow_control().release_capacity(data.len()).unwrap();
        }
        client.exchange(server)
    };
    assert!(take(&mut client, &mut server).is_empty());
    assert_eq!(server.buffered(stream), 500);
    let events = take(&mut client, &mut server);
    assert!(matches!(events[..], [Event::Drained { .. }]), "{events:?}");
    assert_eq!(server.buffered(stream), 0);
    // The end of the response is buffered as well. There is no Drained for a finished stream.
    server
        .send(stream, Bytes::from(vec![b'x'; 2700]), true, 0)
        .unwrap();
    for _ in 0..5 {
        assert!(take(&mut client, &mut server).is_empty());
    }
    assert!(server.is_idle());
    assert!(body.is_end_stream());
}

#[test]
fn the_end_of_a_response_waits_for_room_too() {
    let mut server = Connection::new(&Config::default());
    let mut builder = h2::client::Builder::new();
    let mut client = Client::with(builder.initial_window_size(10));
    let (response, _sending) = client.ask("GET", true);
    let (stream, ..) = only_request(client.exchange(&mut server));
    server
        .respond(stream, 200, [], None, &mut Lines::new(None, false), 0)
        .unwrap();
    server
        .send(stream, Bytes::from_static(b"hello, world, hello"), false, 0)
        .unwrap();
    server
        .send_trailers(stream, [(&b"x"[..], &b"y"[..])], 0)
        .unwrap();
    client.exchange(&mut server);
    assert!(!server.is_idle());
    let mut context = Context::from_waker(Waker::noop());
    let mut response = Box::pin(response);
    let Poll::Ready(Ok(response)) = response.as_mut().poll(&mut context) else {
        panic!();
    };
    let mut body = response.into_body();
    let mut taken = Vec::new();
    for _ in 0..3 {
        while let Poll::Ready(Some(Ok(data))) = body.poll_data(&mut context) {
            body.flow_control().release_capacity(data.len()).unwrap();
            taken.extend_from_slice(&data);
        }
        // There is no Drained for a finished stream.
        assert!(client.exchange(&mut server).is_empty());
    }
    assert_eq!(taken, b"hello, world, hello");
    assert!(server.is_idle());
    let Poll::Ready(Ok(Some(trailers))) = body.poll_trailers(&mut context) else {
        panic!();
    };
    assert_eq!(trailers["x"], "y");
}

#[test]
fn clients_that_do_not_read_meet_a_deadline() {
    let mut server = Server::new(&Config::default());
    // The client's windows are 0.
    server.give(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for stream in [1, 3, 5] {
        server.now_ms = u64::from(stream) * 100;
        only_request(server.request(stream, GET));
        server.respond(stream, 200, &[], None).unwrap();
        server.send(stream, "hello", true).unwrap();
    }
    assert_eq!(server.connection.stalled_since_ms(), Some(100));
    server.output();
    server.connection.reset_stalled(99);
    assert!(server.events().is_empty());
    server.connection.reset_stalled(300);
    let events = server.events();
    assert!(
        matches!(
            events[..],
            [
                Event::Reset {
                    stream: 1,
                    code: CANCEL
                },
                Event::Reset {
                    stream: 3,
                    code: CANCEL
                }
            ]
        ),
        "{events:?}"
    );
    let output = server.output();
    assert!(output.contains(&reset(1, CANCEL)) && output.contains(&reset(3, CANCEL)));
    // A client that reads a little gets more time.
    server.now_ms = 700;
    server.give(&frame(WINDOW_UPDATE, 0, 5, &[0, 0, 0, 1]));
    assert_eq!(server.connection.buffered(5), 4);
    assert_eq!(server.connection.stalled_since_ms(), Some(700));
    server.give(&frame(WINDOW_UPDATE, 0, 5, &[0, 0, 0, 9]));
    assert_eq!(server.connection.stalled_since_ms(), None);
    assert!(server.connection.is_idle());
}

#[test]
fn resets_of_the_client_are_heard() {
    let cancel = |stream| frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes());
    let mut server = Server::new(&Config::default());
    // Before the response, during the response, and during the request's body.
    only_request(server.request(1, GET));
    only_request(server.request(3, GET));
    server.respond(3, 200, &[], None).unwrap();
    server.send(3, "a", false).unwrap();
    only_request(server.give(&frame(HEADERS, END_HEADERS, 5, &block(GET))));
    server.output();
    for number in [1, 3, 5] {
        let events = server.give(&cancel(number));
        assert!(matches!(events[..], [Event::Reset { stream, code: CANCEL }] if stream == number));
        assert_eq!(
            server.respond(number, 200, &[], None),
            Err(ResponseError::NoRequest)
        );
        assert_eq!(
            server.send(number, "a", true),
            Err(ResponseError::NoRequest)
        );
    }
    // There is no event for a finished stream.
    only_request(server.request(7, GET));
    server.respond(7, 204, &[], None).unwrap();
    server.send(7, "", true).unwrap();
    server.output();
    assert!(server.give(&cancel(7)).is_empty());
    assert!(server.connection.is_idle());
}

#[test]
fn a_body_that_nobody_wants_is_refused_in_order() {
    let mut server = Server::new(&Config::default());
    only_request(server.give(&frame(HEADERS, END_HEADERS, 1, &block(GET))));
    server.respond(1, 403, &[], Some(0)).unwrap();
    server.send(1, "", true).unwrap();
    assert!(server.connection.is_idle());
    assert!(server.output().contains(&reset(1, NO_ERROR)));
}
