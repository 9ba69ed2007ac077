//! `file_server`.

use std::fs;
use std::io::{BufReader, Write};

use crate::common::pattern;
use crate::http::{Answer, ask};
use crate::program::{Folder, Program, with_each};

#[test]
fn the_file_server_sends_files() {
    let folder = Folder::new();
    let large = pattern(5_000_001);
    fs::write(folder.0.join("large"), &large).unwrap();
    fs::write(folder.0.join("a name"), "text").unwrap();
    fs::write(folder.0.join("empty"), "").unwrap();
    fs::write(folder.0.join(".hidden"), "secret").unwrap();
    fs::create_dir(folder.0.join("below")).unwrap();
    fs::write(folder.0.join("below/file"), "deep").unwrap();
    let root = folder.0.to_str().unwrap();
    for arguments in [&[root][..], &[root, "--by-reading"]] {
        with_each("file_server", arguments, |program| {
            for (path, body) in [
                ("/large?x=1", &large[..]),
                ("/a%20name", b"text"),
                ("/empty", b""),
                ("//below//file", b"deep"),
            ] {
                let answer = ask(program, "GET", path, "");
                assert_eq!(
                    (answer.status, answer.body.len()),
                    (200, body.len()),
                    "{path}"
                );
                assert!(answer.body == body);
                let head = ask(program, "HEAD", path, "");
                assert_eq!(
                    head.header("content-length"),
                    Some(&body.len().to_string()[..])
                );
            }
            for path in [
                "/missing",
                "/",
                "/below",
                "/.hidden",
                "/below/../.hidden",
                "/a%2fb",
                "/%00",
            ] {
                assert_eq!(ask(program, "GET", path, "").status, 404, "{path}");
            }
            assert_eq!(ask(program, "PUT", "/empty", "").status, 405);
            assert_eq!(
                ask(program, "GET", "/empty", "Content-Length: 3\r\n").status,
                400
            );
            stays_open(program, &large);
        });
    }
}

/// Several requests at once on one connection, which the client closes.
fn stays_open(program: &Program, large: &[u8]) {
    let mut stream = program.connect();
    let requests =
        "GET /large HTTP/1.1\r\n\r\nGET /missing HTTP/1.1\r\n\r\nGET /a%20name HTTP/1.1\r\n\r\n";
    stream.write_all(requests.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    assert!(Answer::read(&mut reader, true).body == large);
    assert_eq!(Answer::read(&mut reader, true).status, 404);
    assert_eq!(Answer::read(&mut reader, true).body, b"text");
}
