//! One chart a file. Each makes a figure of what it finds, or none if there is nothing to show.

pub mod accuracy;
pub mod agreement;
pub mod busiest_node;
mod curves;
pub mod loss;
pub mod scaling;
pub mod staleness;
pub mod step_time;

use super::html::Figure;
use super::source::Sources;

/// All figures, in the order of the page.
pub fn figures(sources: &Sources) -> Vec<Figure> {
    let charts: [fn(&Sources) -> Option<Figure>; 7] = [
        loss::figure,
        accuracy::figure,
        scaling::figure,
        step_time::figure,
        busiest_node::figure,
        staleness::figure,
        agreement::figure,
    ];
    charts.into_iter().filter_map(|chart| chart(sources)).collect()
}
