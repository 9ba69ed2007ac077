//! `chat`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::{self};

use crate::program::{Program, with_each};

/// A member of the chat room.
struct Person {
    stream: BufReader<TcpStream>,
}

impl Person {
    fn arrives(program: &Program) -> Self {
        let mut person = Self {
            stream: BufReader::new(program.connect()),
        };
        assert_eq!(person.hears(), "What is your name?");
        person
    }

    /// Joins under a name, and reads who is there.
    fn joins(program: &Program, name: &str) -> Self {
        let mut person = Self::arrives(program);
        person.says(name);
        assert!(person.hears().starts_with("* Welcome! Here are: "));
        assert_eq!(person.hears(), format!("* {name} has joined."));
        person
    }

    fn says(&self, line: &str) {
        let mut stream = self.stream.get_ref();
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    fn hears(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        assert_eq!(line.pop(), Some('\n'), "the room has ended it: {line:?}");
        line
    }

    fn hears_the_end(mut self) {
        let mut rest = String::new();
        self.stream.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "");
    }
}

#[test]
fn the_chat_room_has_one_order_for_everybody() {
    const LINES: usize = 200;
    with_each("chat", &[], |program| {
        let names = ["ada", "bob", "eve", "kim", "lea", "max"];
        let mut people: Vec<_> = names.map(|name| Person::joins(program, name)).into();
        for (index, person) in people.iter_mut().enumerate() {
            for name in &names[index + 1..] {
                assert_eq!(person.hears(), format!("* {name} has joined."));
            }
        }
        let transcripts: Vec<Vec<String>> = thread::scope(|scope| {
            let talking: Vec<_> = people
                .iter_mut()
                .map(|person| {
                    scope.spawn(|| {
                        let stream = person.stream.get_ref().try_clone().unwrap();
                        let mut transcript = Vec::new();
                        // In steps that no queue is too short for, whoever reads last.
                        for step in 0..LINES / 10 {
                            for line in 0..10 {
                                let line = format!("line {}\r\n", step * 10 + line);
                                (&stream).write_all(line.as_bytes()).unwrap();
                            }
                            for _ in 0..10 * names.len() {
                                transcript.push(person.hears());
                            }
                        }
                        transcript
                    })
                })
                .collect();
            let transcripts = talking.into_iter().map(|thread| thread.join().unwrap());
            transcripts.collect()
        });
        for transcript in &transcripts {
            assert_eq!(*transcript, transcripts[0]);
        }
        for name in names {
            let prefix = format!("{name}: line ");
            let lines = transcripts[0].iter();
            let numbers: Vec<usize> = lines
                .filter_map(|line| line.strip_prefix(&prefix)?.parse().ok())
                .collect();
            assert_eq!(numbers, (0..LINES).collect::<Vec<_>>());
        }
        // The room is full of people still, whom the end of the program tells.
    });
}

#[test]
fn the_chat_room_knows_its_rules() {
    with_each("chat", &[], |program| {
        let mut ada = Person::joins(program, "ada");
        let mut bob = Person::arrives(program);
        for name in ["", "a b", "12345678901234567890x", "\u{e4}"] {
            bob.says(name);
            assert_eq!(
                bob.hears(),
                "A name has 1 to 20 letters, digits, - or _; another one?"
            );
        }
        bob.says("ada");
        assert_eq!(bob.hears(), "That name is taken; another one?");
        bob.says("bob\r");
        assert_eq!(bob.hears(), "* Welcome! Here are: ada, bob.");
        assert_eq!(bob.hears(), "* bob has joined.");
        assert_eq!(ada.hears(), "* bob has joined.");
        // Neither empty lines nor escapes reach anybody; half a character does, as a replacement.
        ada.says("");
        ada.says("a\u{1b}[2Jb");
        let broken = [b'x', 0xff, b'\n'];
        ada.stream.get_ref().write_all(&broken).unwrap();
        for person in [&mut ada, &mut bob] {
            assert_eq!(person.hears(), "ada: a[2Jb");
            assert_eq!(person.hears(), "ada: x\u{fffd}");
        }
        ada.says("/who");
        assert_eq!(ada.hears(), "* Here are: ada, bob.");
        // The longest line, and a longer one.
        let longest = "l".repeat(1024);
        bob.says(&longest);
        assert_eq!(ada.hears(), format!("bob: {longest}"));
        assert_eq!(bob.hears(), format!("bob: {longest}"));
        bob.says(&"l".repeat(1025));
        assert_eq!(ada.hears(), "* bob has left.");
        drop(bob);

        let eve = Person::joins(program, "eve");
        assert_eq!(ada.hears(), "* eve has joined.");
        eve.says("/quit");
        eve.hears_the_end();
        assert_eq!(ada.hears(), "* eve has left.");
        // One who has finished sending hears what was said before.
        let mut kim = Person::joins(program, "kim");
        assert_eq!(ada.hears(), "* kim has joined.");
        kim.says("bye");
        kim.stream.get_ref().shutdown(Shutdown::Write).unwrap();
        assert_eq!(kim.hears(), "kim: bye");
        kim.hears_the_end();
        assert_eq!(ada.hears(), "kim: bye");
        assert_eq!(ada.hears(), "* kim has left.");
        ada.says("/quit");
        ada.hears_the_end();
    });
}

#[test]
fn the_chat_room_drops_who_reads_too_slowly_and_closes_for_all() {
    for workers in ["1", "2"] {
        let program = Program::start("chat", &["--workers", workers]);
        let mut ada = Person::joins(&program, "ada");
        // Reads nothing from here on.
        let slow = Person::joins(&program, "slow");
        assert_eq!(ada.hears(), "* slow has joined.");
        let line = "x".repeat(1000);
        let mut is_out = false;
        // What sockets may hold for it is some megabytes.
        for _ in 0..100_000 {
            ada.says(&line);
            match ada.hears() {
                said if said == "* slow was too slow, and is out." => {
                    is_out = true;
                    assert_eq!(ada.hears(), format!("ada: {line}"));
                    break;
                }
                said => assert_eq!(said, format!("ada: {line}")),
            }
        }
        if !is_out {
            assert_eq!(ada.hears(), "* slow was too slow, and is out.");
        }
        drop(slow);
        let bob = Person::joins(&program, "bob");
        assert_eq!(ada.hears(), "* bob has joined.");
        program.end(libc::SIGTERM);
        for mut person in [ada, bob] {
            assert_eq!(person.hears(), "* The room closes.");
            person.hears_the_end();
        }
    }
}
