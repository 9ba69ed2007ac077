//! `static_files`.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::common::pattern;
use crate::http::{Answer, ask};
use crate::program::{Folder, with_each};

#[test]
fn static_files_serves_files_and_parts_of_them() {
    let folder = Folder::new();
    let root = folder.0.join("root");
    fs::create_dir_all(root.join("a folder")).unwrap();
    let big = pattern(3_000_000);
    fs::write(root.join("big.bin"), &big).unwrap();
    fs::write(root.join("page.html"), "<p>page").unwrap();
    fs::write(root.join("empty.css"), "").unwrap();
    fs::write(root.join("a folder/\u{e4} & <b>.txt"), "umlaut").unwrap();
    with_each("static_files", &[root.to_str().unwrap()], |program| {
        let get = |path: &str, headers: &str| ask(program, "GET", path, headers);
        let answer = get("/big.bin", "");
        assert_eq!(answer.status, 200);
        assert!(answer.body == big);
        assert_eq!(
            answer.header("content-type"),
            Some("application/octet-stream")
        );
        assert_eq!(answer.header("accept-ranges"), Some("bytes"));
        let head = ask(program, "HEAD", "/big.bin", "");
        assert_eq!(head.status, 200);
        for name in ["content-length", "content-type", "etag", "last-modified"] {
            assert_eq!(head.header(name), answer.header(name));
        }

        let answer = get("/page.html?query#x", "");
        assert_eq!(answer.body, b"<p>page");
        assert_eq!(
            answer.header("content-type"),
            Some("text/html; charset=utf-8")
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(get("/empty.css", "").header("content-length"), Some("0"));
        assert_eq!(
            get("/a%20folder/%C3%A4%20%26%20%3Cb%3E.txt", "").body,
            b"umlaut"
        );

        for (asked, range) in [
            ("0-0", 0..1),
            ("0-", 0..3_000_000),
            ("100000-299999", 100_000..300_000),
            ("2999999-", 2_999_999..3_000_000),
            ("2999990-9999999", 2_999_990..3_000_000),
            ("-5", 2_999_995..3_000_000),
            ("-9999999", 0..3_000_000),
        ] {
            let answer = get("/big.bin", &format!("Range: bytes={asked}\r\n"));
            assert_eq!(answer.status, 206, "{asked}");
            assert!(answer.body == big[range.clone()], "{asked}");
            let content_range = format!("bytes {}-{}/3000000", range.start, range.end - 1);
            assert_eq!(answer.header("content-range"), Some(&*content_range));
        }
        for (path, asked) in [
            ("/big.bin", "3000000-"),
            ("/big.bin", "-0"),
            ("/empty.css", "0-"),
            ("/empty.css", "-0"),
        ] {
            let answer = get(path, &format!("Range: bytes={asked}\r\n"));
            assert_eq!(answer.status, 416);
            let length = if path == "/big.bin" { 3_000_000 } else { 0 };
            let content_range = format!("bytes */{length}");
            assert_eq!(answer.header("content-range"), Some(&*content_range));
            assert_eq!(answer.body, b"");
        }
        // What is no range, or several, is no reason to send less.
        for asked in [
            "bytes=5-2",
            "bytes=0-1,5-6",
            "bytes=x",
            "lines=1-2",
            "bytes=",
            "bytes=0-1,-0",
            "bytes=-0,0-1",
        ] {
            let answer = get("/big.bin", &format!("Range: {asked}\r\n"));
            assert_eq!((answer.status, answer.body.len()), (200, 3_000_000));
        }
        let answer = get("/empty.css", "Range: bytes=-5\r\n");
        assert_eq!((answer.status, answer.body.len()), (200, 0));
        // Nor do other methods have ranges.
        for asked in ["bytes=0-1", "bytes=3000000-"] {
            let head = ask(program, "HEAD", "/big.bin", &format!("Range: {asked}\r\n"));
            assert_eq!(head.status, 200);
            assert_eq!(head.header("content-length"), Some("3000000"));
        }
    });
}

#[test]
fn static_files_sends_nothing_that_is_known_already() {
    let folder = Folder::new();
    fs::write(folder.0.join("file.txt"), pattern(1000)).unwrap();
    with_each("static_files", &[folder.0.to_str().unwrap()], |program| {
        let get = |headers: &str| ask(program, "GET", "/file.txt", headers);
        let first = get("");
        let (etag, date) = (
            first.header("etag").unwrap(),
            first.header("last-modified").unwrap(),
        );
        let old = "Thu, 01 Jan 1970 00:00:00 GMT";
        for (condition, status) in [
            (format!("If-None-Match: {etag}"), 304),
            (format!("If-None-Match: \"other\", {etag}"), 304),
            ("If-None-Match: *".to_owned(), 304),
            ("If-None-Match: \"other\"".to_owned(), 200),
            (format!("If-Modified-Since: {date}"), 304),
            (format!("If-Modified-Since: {old}"), 200),
            ("If-Modified-Since: yesterday".to_owned(), 200),
            // The tag knows better than the date.
            (
                format!("If-None-Match: \"other\"\r\nIf-Modified-Since: {date}"),
                200,
            ),
            (format!("If-Match: {etag}"), 200),
            ("If-Match: \"other\"".to_owned(), 412),
            (format!("If-Unmodified-Since: {date}"), 200),
            (format!("If-Unmodified-Since: {old}"), 412),
            (format!("If-Range: {etag}\r\nRange: bytes=0-9"), 206),
            (format!("If-Range: {date}\r\nRange: bytes=0-9"), 206),
            ("If-Range: \"other\"\r\nRange: bytes=0-9".to_owned(), 200),
            (format!("If-None-Match: {etag}\r\nRange: bytes=0-9"), 304),
        ] {
            let answer = get(&format!("{condition}\r\n"));
            assert_eq!(answer.status, status, "{condition}");
            let length = match status {
                200 => 1000,
                206 => 10,
                _ => 0,
            };
            assert!(answer.body == pattern(length), "{condition}");
            assert_eq!(answer.header("etag"), Some(etag));
        }
    });
}

#[test]
fn static_files_shows_directories_and_refuses_the_rest() {
    let folder = Folder::new();
    let root = folder.0.join("root");
    fs::create_dir_all(root.join("list/deeper")).unwrap();
    fs::create_dir_all(root.join("index")).unwrap();
    fs::write(folder.0.join("secret.txt"), "secret").unwrap();
    fs::create_dir(folder.0.join("root-sibling")).unwrap();
    fs::write(folder.0.join("root-sibling/secret.txt"), "secret").unwrap();
    fs::write(root.join("index/index.html"), "the index").unwrap();
    fs::write(root.join("list/a&b<c>.txt"), "x").unwrap();
    fs::write(root.join("list/.hidden"), "x").unwrap();
    fs::write(root.join("plain.txt"), "plain").unwrap();
    symlink("plain.txt", root.join("link.txt")).unwrap();
    symlink("../secret.txt", root.join("escape.txt")).unwrap();
    symlink("../root-sibling", root.join("escape")).unwrap();
    symlink("/etc", root.join("absolute")).unwrap();
    symlink("circle", root.join("circle")).unwrap();
    symlink("missing", root.join("nowhere")).unwrap();
    let fifo = Command::new("mkfifo").arg(root.join("fifo")).status();
    assert!(fifo.unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    with_each("static_files", &[root.to_str().unwrap()], |program| {
        let get = |path: &str| ask(program, "GET", path, "");
        assert_eq!(get("/index/").body, b"the index");
        assert_eq!(get("/link.txt").body, b"plain");
        let page = String::from_utf8(get("/list/").body).unwrap();
        let links: Vec<_> = page
            .lines()
            .filter(|line| line.starts_with("<li>"))
            .collect();
        assert_eq!(
            links,
            [
                "<li><a href=\"a%26b%3Cc%3E.txt\">a&amp;b&lt;c>.txt</a>",
                "<li><a href=\"deeper/\">deeper/</a>",
            ]
        );
        for (path, location) in [("/list", "/list/"), ("//list/deeper", "/list/deeper/")] {
            let answer = get(path);
            assert_eq!(answer.status, 301);
            assert_eq!(answer.header("location"), Some(location));
        }
        for path in [
            "/none",
            "/nowhere",
            "/plain.txt/",
            "/plain.txt/more",
            "/list/.hidden",
            "/.",
            "/list%2Fdeeper/",
            "/plain.txt%00.html",
            "/..%2Fsecret.txt",
            "/%2e%2e%2fsecret.txt",
            "/..%5Csecret.txt",
            "/%252e%252e/secret.txt",
            "/%2Fetc/passwd",
            "/%c0%ae%c0%ae/secret.txt",
            &format!("/{}", "n".repeat(256)),
        ] {
            assert_eq!(get(path).status, 404, "{path}");
        }
        for path in [
            "/../secret.txt",
            "/%2e%2e/secret.txt",
            "/.%2E/secret.txt",
            "/list/../../secret.txt",
            "/list/%2e%2e/%2e%2e/secret.txt",
            "/list/..",
            "/escape.txt",
            "/escape/secret.txt",
            "/escape/",
            "/absolute/passwd",
            "/absolute/",
            "/circle",
            "/fifo",
            "/socket",
        ] {
            let answer = get(path);
            assert_eq!(answer.status, 403, "{path}");
            assert!(!answer.body.starts_with(b"secret"));
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            let answer = ask(program, method, "/plain.txt", "Content-Length: 0\r\n");
            assert_eq!(answer.status, 405);
            assert_eq!(answer.header("allow"), Some("GET, HEAD"));
        }
    });
}

#[test]
fn static_files_waits_for_slow_clients_and_breaks_off_what_it_cannot_finish() {
    let folder = Folder::new();
    // Far more than sockets hold.
    let length = 32_000_000;
    let file = folder.0.join("big");
    with_each("static_files", &[folder.0.to_str().unwrap()], |program| {
        fs::write(&file, pattern(length)).unwrap();
        let request = "GET /big HTTP/1.1\r\nHost: here\r\n\r\n";
        // One that never reads.
        let mut stuck = program.connect();
        stuck.write_all(request.as_bytes()).unwrap();
        // One that begins to read later, over a connection that it keeps.
        let mut late = BufReader::new(program.connect());
        for _ in 0..2 {
            late.get_mut().write_all(request.as_bytes()).unwrap();
        }
        let short = ask(program, "GET", "/big", "Range: bytes=7-8\r\n");
        assert_eq!(short.body, pattern(9)[7..]);
        for _ in 0..2 {
            let answer = Answer::read(&mut late, true);
            assert!(answer.body == pattern(length));
        }
        // The file is cut off: what was promised cannot be kept, and the client can tell.
        let shortened = fs::File::options().write(true).open(&file).unwrap();
        shortened.set_len(1000).unwrap();
        let mut bytes = Vec::new();
        // A reset or an end, but before all is there.
        let _ = stuck.read_to_end(&mut bytes);
        assert!(bytes.len() < length, "{}", bytes.len());
    });
}
