//! The end of a connection, by either side or by an error.

use bytes::Bytes;
use ringloop_http::Lines;
use ringloop_http::h2::{Config, Connection, End, Event};

use crate::support::{Client, GET, INTERNAL_ERROR, NO_ERROR, Server, goaway, hear, only_request};
use crate::targets::h2::{ACK, PING, PREFACE, frame};

#[test]
fn connections_are_exchanged_after_so_many_requests() {
    let mut config = Config::default();
    config.requests = 3;
    let mut server = Server::new(&config);
    let ask = |server: &mut Server, stream: u32| {
        only_request(server.request(stream, GET));
        server.respond(stream, 204, &[], None).unwrap();
        server.send(stream, "", true).unwrap();
        server.output()
    };
    assert_eq!(goaway(&ask(&mut server, 1)), None);
    assert_eq!(goaway(&ask(&mut server, 3)), None);
    let output = ask(&mut server, 5);
    assert_eq!(goaway(&output), Some(NO_ERROR));
    // Requests are answered until the client has acknowledged the GOAWAY, by answering the ping.
    assert_eq!(goaway(&ask(&mut server, 7)), None);
    let ping = output.iter().find(|frame| frame.kind == PING).unwrap();
    let events = server.give(&frame(PING, ACK, 0, &ping.payload));
    assert!(
        matches!(&events[..], [Event::End(End::Orderly)]),
        "{events:?}"
    );
    assert_eq!(goaway(&server.output()), Some(NO_ERROR));
}

#[test]
fn clients_that_ignore_goaway_are_cut_off() {
    let mut config = Config::default();
    config.requests = 3;
    let mut server = Server::new(&config);
    let mut answered = 0;
    for index in 0..2000 {
        let stream = 2 * index + 1;
        for event in server.request(stream, GET) {
            match event {
                Event::Request { stream, .. } => {
                    answered += 1;
                    // The last request cannot be answered.
                    if server.respond(stream, 204, &[], None).is_ok() {
                        server.send(stream, "", true).unwrap();
                    }
                }
                Event::End(end) => assert_eq!(end, End::Flood),
                Event::Reset { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        server.output();
    }
    assert!(server.connection.is_over());
    assert_eq!(answered, 1003);
}

#[test]
fn a_server_that_ends_finishes_what_it_has_begun() {
    let mut server = Connection::new(&Config::default());
    let mut client = Client::new();
    let (response, _sending) = client.ask("GET", true);
    let (stream, ..) = only_request(client.exchange(&mut server));
    server.go_away();
    server.go_away();
    assert!(client.exchange(&mut server).is_empty());
    assert!(!server.is_over());
    server
        .respond(stream, 200, [], Some(2), &mut Lines::new(None, false), 0)
        .unwrap();
    server
        .send(stream, Bytes::from_static(b"ok"), true, 0)
        .unwrap();
    let events = client.exchange(&mut server);
    assert!(
        matches!(&events[..], [Event::End(End::Orderly)]),
        "{events:?}"
    );
    assert_eq!(hear(response).body, b"ok");
}

#[test]
fn an_idle_server_ends_at_once() {
    let mut server = Connection::new(&Config::default());
    let mut client = Client::new();
    client.exchange(&mut server);
    server.go_away();
    let events = client.exchange(&mut server);
    assert!(
        matches!(&events[..], [Event::End(End::Orderly)]),
        "{events:?}"
    );
}

#[test]
fn a_server_that_ends_before_the_preface_serves_what_comes_with_it() {
    let mut server = Connection::new(&Config::default());
    server.go_away();
    assert!(server.next_event(0).is_none());
    let mut client = Client::new();
    let (response, _sending) = client.ask("GET", true);
    let (stream, ..) = only_request(client.exchange(&mut server));
    server
        .respond(stream, 204, [], None, &mut Lines::new(None, false), 0)
        .unwrap();
    server.send(stream, Bytes::new(), true, 0).unwrap();
    let events = client.exchange(&mut server);
    assert!(
        matches!(&events[..], [Event::End(End::Orderly)]),
        "{events:?}"
    );
    assert_eq!(hear(response).status, 204);
}

#[test]
fn an_abort_cuts_off_what_is_under_way() {
    let mut server = Server::new(&Config::default());
    only_request(server.request(1, GET));
    server.connection.abort(INTERNAL_ERROR);
    let events = server.events();
    assert!(
        matches!(&events[..], [Event::Reset { stream: 1, .. }, Event::End(_)]),
        "{events:?}"
    );
    assert_eq!(goaway(&server.output()), Some(INTERNAL_ERROR));

    let mut connection = Connection::new(&Config::default());
    connection.abort(INTERNAL_ERROR);
    assert!(matches!(
        connection.next_event(0),
        Some(Event::End(End::Orderly))
    ));
    connection.abort(INTERNAL_ERROR);
    connection.receive(PREFACE, 0);
    assert!(connection.next_event(0).is_none());
}

#[test]
fn the_clients_end_is_the_connections() {
    let mut server = Server::new(&Config::default());
    only_request(server.request(1, GET));
    server.connection.receive_end();
    let events = server.events();
    assert!(
        matches!(&events[..], [Event::Reset { stream: 1, .. }, Event::End(_)]),
        "{events:?}"
    );
    assert!(server.connection.is_over() && server.connection.is_idle());

    let mut server = Server::new(&Config::default());
    server.connection.receive_end();
    let events = server.events();
    assert!(
        matches!(&events[..], [Event::End(End::Orderly)]),
        "{events:?}"
    );

    let mut connection = Connection::new(&Config::default());
    connection.receive(&PREFACE[..10], 0);
    connection.receive_end();
    assert!(matches!(
        connection.next_event(0),
        Some(Event::End(End::Error(_)))
    ));
}

#[test]
fn what_is_no_http2_is_told() {
    let mut connection = Connection::new(&Config::default());
    connection.receive(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 0);
    assert!(matches!(
        connection.next_event(0),
        Some(Event::End(End::Error(_)))
    ));
    // A frame that exceeds the maximum size.
    let mut server = Server::new(&Config::default());
    let events = server.give(b"\0\x40\x01\0\0\0\0\0\x01");
    assert!(
        matches!(&events[..], [Event::End(End::Error(_))]),
        "{events:?}"
    );
    assert_eq!(goaway(&server.output()), Some(6));
}
