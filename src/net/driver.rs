//! The collectives under way and the streams that carry them, driven from one poll function in one
//! task: a worker that waited for its sends before it read would wait for ever once all workers did.

use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use quinn::ConnectionError;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::NetError;
use super::channel::{Channel, Counters, Job, Jobs};
use super::group::{Command, Event, Reduced, Trainer};
use super::peer::{self, Mesh, Peer};
use super::stall::StallWatch;
use crate::protocol::collective::{CollectiveId, Reduction};
use crate::protocol::exchange::{Algorithm, Exchange};
use crate::protocol::message::{CollectiveHeader, describe};

/// The collectives under way and the streams.
pub(super) struct Driver {
    rank: usize,
    world: usize,
    /// By rank.
    channels: Vec<Channel>,
    /// Tells a connection's rank and error once it is closed.
    closed: JoinSet<(usize, ConnectionError)>,
    trainer: Trainer,
    jobs: Jobs,
    /// When the last job was delivered.
    delivered: Instant,
    /// Since when at least one job is under way.
    busy_since: Option<Instant>,
    /// No more jobs will come.
    closing: bool,
    stall: StallWatch,
}

impl Driver {
    pub(super) fn new(
        rank: usize,
        world: usize,
        mesh: Mesh,
        trainer: Trainer,
        stall: StallWatch,
    ) -> Driver {
        Driver {
            rank,
            world,
            channels: mesh.links.into_iter().map(Channel::new).collect(),
            closed: mesh.closed,
            trainer,
            jobs: Jobs::default(),
            delivered: Instant::now(),
            busy_since: None,
            closing: false,
            stall,
        }
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.channels.iter().map(Channel::peer)
    }

    pub(super) fn trainer(&self) -> &Trainer {
        &self.trainer
    }

    /// Works until the trainer closes the group or something fails.
    pub(super) async fn run(&mut self) -> Result<(), End> {
        std::future::poll_fn(|cx| self.poll(cx)).await?;
        // All vectors are reduced, so nothing more is needed from the others; what they need must
        // have reached them before the connections may be closed.
        self.channels.iter_mut().for_each(Channel::finish);
        for channel in &mut self.channels {
            channel.drained().await?;
        }
        Ok(())
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        loop {
            let mut moved = self.poll_commands(cx)?;
            for channel in &mut self.channels {
                moved |= channel.poll_receive(cx, &mut self.jobs, &self.trainer.traffic)?;
            }
            for channel in &mut self.channels {
                moved |= channel.poll_send(cx, &mut self.jobs, &self.trainer.traffic)?;
            }
            self.deliver();
            if !moved {
                break;
            }
        }
        if self.closing && self.jobs.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = self.poll_closed(cx) {
            return Poll::Ready(Err(error.into()));
        }
        self.poll_stall(cx);
        Poll::Pending
    }

    /// Takes what the trainer hands over.
    fn poll_commands(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut moved = false;
        while !self.closing {
            match self.trainer.commands.poll_recv(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Command::Reduce { id, algorithm, reduction, vector })) => {
                    self.begin(id, algorithm, reduction, vector);
                }
                Poll::Ready(Some(Command::Close)) => self.closing = true,
                Poll::Ready(Some(Command::Abort(reason))) => return Err(End::Left(reason)),
                Poll::Ready(None) => return Err(End::Left("it left before the run's end".into())),
            }
            moved = true;
        }
        Ok(moved)
    }

    fn begin(
        &mut self,
        id: CollectiveId,
        algorithm: Algorithm,
        reduction: Reduction,
        vector: Vec<u32>,
    ) {
        let header = CollectiveHeader::new(id, algorithm, reduction, self.jobs.started());
        let exchange = Exchange::new(algorithm, self.rank, self.world, reduction, &vector);
        let streams = self.channels.iter().map(|channel| channel.directions(&exchange)).sum();
        let since = Instant::now();
        self.busy_since.get_or_insert(since);
        self.jobs.push(Job { header, exchange, vector, since, streams });
    }

    /// Gives back the vectors that are reduced and sent.
    fn deliver(&mut self) {
        while let Some(job) = self.jobs.pop_finished() {
            let since = job.since.max(self.delivered);
            self.delivered = Instant::now();
            if self.jobs.is_empty() {
                self.count_busy();
            }
            let took = self.delivered - since;
            self.trainer.tell(Ok(Event::Reduced(Reduced { vector: job.vector, took })));
        }
    }

    /// Nothing is under way any more: adds the time since something was.
    fn count_busy(&mut self) {
        if let Some(since) = self.busy_since.take() {
            let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.trainer.traffic.busy_ns.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// The error of a connection that was lost. A worker that has finished its run needs nothing
    /// more; if something is still needed from it, reading or writing will say so.
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Option<NetError> {
        while let Poll::Ready(Some(closed)) = self.closed.poll_join_next(cx) {
            let (rank, error) =
                closed.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
            let channel = self.channels.iter().find(|channel| channel.peer().rank == rank);
            if let Some(channel) = channel.filter(|_| !peer::is_done(&error)) {
                return Some(channel.peer().lost(&error, self.activity()));
            }
        }
        None
    }

    /// What the group is at, for error texts.
    fn activity(&self) -> String {
        self.jobs.front().map_or_else(|| "a pause".to_owned(), |job| describe(&job.header.id))
    }

    fn poll_stall(&mut self, cx: &mut Context<'_>) {
        let Counters { busy_ns: _, sent, received } = &*self.trainer.traffic;
        let bytes = sent.load(Ordering::Relaxed) + received.load(Ordering::Relaxed);
        let position = (self.jobs.started(), bytes);
        let Some(stalled_for) = self.stall.poll(cx, position) else { return };
        if !self.jobs.is_empty() {
            let seconds = stalled_for.as_secs_f32();
            tracing::warn!("nothing has moved for {seconds:.1} s: {}", self.stall_report());
        }
    }

    /// Who is awaited, and for what.
    fn stall_report(&self) -> String {
        let words = self.channels.iter().filter_map(|channel| channel.awaited_words(&self.jobs));
        let room = self.channels.iter().filter_map(|channel| channel.awaited_room(&self.jobs));
        let mut report: Vec<String> = words.collect();
        if report.is_empty() {
            report = room.collect();
        }
        report.join("; ")
    }
}

/// Why the thread ends before the run's end.
pub(super) enum End {
    Failed(NetError),
    /// The trainer left, for this reason.
    Left(String),
}

impl From<NetError> for End {
    fn from(error: NetError) -> Self {
        End::Failed(error)
    }
}
