//! Writing to people and programs that may have stopped reading.

use std::io::{ErrorKind, Write};

use super::CommandError;

/// A line on stderr. Nobody is left to be told if it cannot be written.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A result on stdout. A reader that has closed the pipe, such as `head`, has all that it wants.
pub fn result(text: &str) -> Result<(), CommandError> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(CommandError::Output(error)),
        _ => Ok(()),
    }
}

/// A result as indented JSON on stdout.
pub fn json(value: &impl serde::Serialize) -> Result<(), CommandError> {
    let mut text = serde_json::to_string_pretty(value).expect("a result serializes");
    text.push('\n');
    result(&text)
}
