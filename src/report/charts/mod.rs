//! One chart a file. Each makes a figure of what it finds, or none if there is nothing to show.

pub mod accuracy;
pub mod agreement;
pub mod busiest_node;
pub mod crossovers;
mod curves;
pub mod loss;
pub mod scaling;
pub mod staleness;
pub mod step_time;
pub mod timeline;

use super::html::Figure;
use super::source::Sources;

/// All figures, in the order of the page.
pub fn figures(sources: &Sources) -> Vec<Figure> {
    let charts: [fn(&Sources) -> Option<Figure>; 9] = [
        loss::figure,
        accuracy::figure,
        scaling::figure,
        crossovers::figure,
        step_time::figure,
        busiest_node::figure,
        staleness::figure,
        timeline::figure,
        agreement::figure,
    ];
    charts.into_iter().filter_map(|chart| chart(sources)).collect()
}
