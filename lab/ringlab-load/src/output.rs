//! What the generator prints: one JSON object per line on stdout.

use std::io::{self, Write};
use std::process;

use serde_json::Value;

/// The version of the result's shape. It grows when a field changes its meaning or goes, not when one is added.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// Prints an event: `fields` is an object, to which its name is added.
pub(crate) fn event(name: &str, mut fields: Value) {
    fields["event"] = name.into();
    if let Err(error) = writeln!(io::stdout().lock(), "{fields}") {
        // Whoever asked for the measurement has gone; nobody is left to measure for.
        eprintln!("ringlab-load: stdout can't be written: {error}");
        process::exit(1);
    }
}
