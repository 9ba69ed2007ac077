//! The fuzz targets, run over the corpus and over random changes of it. So they are tested without a fuzzer, too. `make
//! fuzz` runs them for longer, guided by coverage.

mod targets;

use std::panic::{catch_unwind, resume_unwind};

/// The number of random inputs.
const GENERATED: usize = 400;

/// A xorshift64 generator.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end.max(1)
    }

    /// A random change of an input of `corpus`, with some steps more.
    fn input(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut input = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(3 * 40) {
            let at = self.below(input.len() + 1);
            input.insert(at, self.below(256) as u8);
        }
        input
    }
}

fn unhex(line: &str) -> Vec<u8> {
    line.as_bytes()
        .chunks(2)
        .map(|digits| u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn operations() {
    let corpus: Vec<Vec<u8>> = include_str!("corpus/operations.txt")
        .lines()
        .map(unhex)
        .collect();
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    for index in 0..corpus.len() + GENERATED {
        let input = match corpus.get(index) {
            Some(input) => input.clone(),
            None => random.input(&corpus),
        };
        if let Err(panic) = catch_unwind(|| targets::operations::operations(&input)) {
            eprintln!("the input is {input:02x?}");
            resume_unwind(panic);
        }
    }
}
