//! Starting local worker and server processes and giving them their orders.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::Sender;

use crate::protocol::membership::MemberId;

use super::LaunchError;
use super::adapters::Assignment;
use super::local::LocalGroup;
use super::pipe::{ToWorker, WorkerOrder};
use super::process::{Children, News};
use super::worker::{TimelinePlan, WorkerPlan};

/// Starts worker and server processes.
pub(super) struct Spawner<'a> {
    pub(super) group: LocalGroup<'a>,
    pub(super) program: PathBuf,
    pub(super) key: String,
    pub(super) launched_at_us: u64,
    pub(super) news: Sender<(usize, News)>,
}

impl Spawner<'_> {
    /// Starts a worker on the adapter of this place, or a server, whose places stand behind those of
    /// the workers; and gives it its order.
    pub(super) fn spawn(
        &self,
        children: &mut Children,
        place: usize,
        joins: bool,
    ) -> Result<(), LaunchError> {
        let mut command = Command::new(&self.program);
        command
            .args(["worker", "--launched"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        #[cfg(unix)]
        {
            // Ctrl-C goes to the launcher alone, which ends the run at a step's border.
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
        }
        let child = command.spawn().map_err(LaunchError::Spawn)?;
        let index = children.list.len();
        let child = children.add(child, index, place, &self.news);
        // Servers compute nothing.
        let idle = Assignment { adapter: None, cores: 1 };
        let workers = self.group.assignments.len();
        let assignment = self.group.assignments.get(place).unwrap_or(&idle);
        // Around servers the first of them writes; else any worker may come to write for all.
        let writes = self.group.plan.network.servers.is_none() || place == workers;
        let plan = WorkerPlan {
            adapter: assignment.adapter.clone(),
            cores: assignment.cores,
            folder: self.group.plan.folder.clone().filter(|_| writes),
            timeline: (self.group.plan.timeline.clone())
                .map(|timeline| TimelinePlan { worker: index as u64, ..timeline }),
            ..self.group.plan.clone()
        };
        child.send(&ToWorker::Order(Box::new(WorkerOrder {
            id: MemberId(index as u64),
            joins,
            workers_min: self.group.workers_min,
            workers_max: self.group.workers_max,
            join_timeout: self.group.join_timeout,
            workers,
            run_id: self.group.run_id.clone(),
            cluster_key_pem: self.key.clone(),
            plan,
            launched_at_us: self.launched_at_us,
        })));
        Ok(())
    }
}
