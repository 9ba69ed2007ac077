//! The output of the generator: one JSON object per line on stdout.

use std::io::{self, Write};
use std::process;

use serde_json::Value;

/// The version of the result's format. It is increased when a field changes its meaning or is removed, not when one is added.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// Prints an event: the object `fields`, with its name added.
pub(crate) fn event(name: &str, mut fields: Value) {
    fields["event"] = name.into();
    if let Err(error) = writeln!(io::stdout().lock(), "{fields}") {
        // The reader of the output is gone, so there is nobody to measure for.
        eprintln!("ringlab-load: stdout can't be written: {error}");
        process::exit(1);
    }
}
