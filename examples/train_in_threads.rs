//! Trains an epoch with two workers as threads of this process, QUIC between them, and
//! shows that one worker gives the same bits.
//!
//! ```sh
//! cargo run --release --example train_in_threads
//! ```

use annulet::config::{Length, RunConfig};
use annulet::data::DataPlan;
use annulet::launch::LaunchError;
use annulet::launch::threads::train_in_threads;
use annulet::launch::worker::{NetworkPlan, WorkerPlan};
use annulet::train::event::Silent;

fn main() -> Result<(), LaunchError> {
    let plan = WorkerPlan {
        config: RunConfig { length: Length::Epochs(1), ..RunConfig::default() },
        data: DataPlan { train_limit: Some(12_800), ..DataPlan::default() },
        network: NetworkPlan::default(),
        adapter: None,
        cores: 1,
        resume: None,
        folder: None,
        timeline: None,
    };
    for workers in [1, 2] {
        let summary = train_in_threads(&plan, workers, &mut Silent)?;
        println!(
            "{workers} workers on {}: accuracy {:.2} %, params_sha256 {}",
            summary.dataset,
            100.0 * summary.test_accuracy,
            summary.params_sha256
        );
    }
    Ok(())
}
