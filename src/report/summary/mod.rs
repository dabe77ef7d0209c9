//! What the figures say, in sentences. Pure functions of the figures: nothing is claimed that a table
//! of the page does not show.

mod runs;
mod server;
mod sweep;

use super::numbers;
use super::source::Sources;

/// The page's summary, the most important sentences first; empty only if there is nothing to say.
pub fn sentences(sources: &Sources) -> Vec<String> {
    let mut sentences = sweep::sentences(&sources.cells);
    sentences.extend(runs::sentences(&sources.runs));
    sentences
}

/// `1 worker`, `3 workers`.
fn counted(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", numbers::count(count))
}
