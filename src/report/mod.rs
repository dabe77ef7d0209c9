//! Runs and sweeps in pictures: one HTML page that needs nothing but itself.
//!
//! | file | what it holds |
//! |---|---|
//! | `source` | reading run folders and sweeps |
//! | `sweep` | which cells are compared, and what follows from them |
//! | `summary` | what the figures say, in sentences |
//! | `charts` | a chart a file |
//! | `axis`, `plot`, `palette`, `numbers` | places, drawing, colours, figures as text |
//! | `html`, `page` | figures, tables and the page around them |
//!
//! Drawing is the plotting library's (`plotters`, SVG alone); what is drawn where, and every
//! sentence, is decided by pure functions of the figures.

mod axis;
mod charts;
mod html;
mod numbers;
mod page;
mod palette;
mod plot;
mod source;
mod summary;
mod sweep;
#[cfg(test)]
mod testing;

pub use page::page;
pub use source::{ReportError, Sources};
