//! What reduces vectors among workers: the trainer knows collectives by this trait alone.

use std::collections::VecDeque;
use std::time::Duration;

use crate::net::{
    GroupHandle, GroupOptions, Interrupt, NetError, Seat, Selection, SelectionReport, Station,
    probe,
};
use crate::protocol::collective::{CollectiveId, Content, Reduction};
use crate::protocol::cost_model::Link;
use crate::protocol::exchange::{Algorithm, Strategy};

/// An all-reduce among the workers of a view.
///
/// Several vectors may be on their way; they finish in the order in which they were started, and
/// every worker must start the same ones in the same order.
pub trait Collective: Send {
    /// This worker's index.
    fn rank(&self) -> usize;

    /// Workers that take part.
    fn world_size(&self) -> usize;

    /// Hands a vector over and returns without waiting for the others.
    fn start(
        &mut self,
        id: CollectiveId,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<(), CollectiveError>;

    /// Waits for the oldest started vector and returns it, reduced over all workers.
    fn finish(&mut self) -> Result<Vec<u32>, CollectiveError>;

    /// Bytes sent and received so far, as payload of the transport.
    fn traffic(&self) -> Traffic;

    /// The time during which at least one vector was under way, on this worker.
    fn busy(&self) -> Duration;

    /// The algorithm's name, or `auto` where it depends on the vector, for `run.json`.
    fn algorithm(&self) -> &'static str;

    /// For each size of vector so far, which algorithm it was and how long it took.
    fn selections(&self) -> Vec<SelectionReport>;

    /// Parts in peace, once everything handed over has reached the others.
    fn close(self: Box<Self>) -> Result<(), CollectiveError>;

    /// Parts at once and tells the others why: their run ends with this reason.
    fn abort(self: Box<Self>, reason: String);
}

/// Bytes that went over the transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Traffic {
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

/// A collective's failure.
#[derive(Debug, thiserror::Error)]
pub enum CollectiveError {
    #[error("finish was called with no collective under way")]
    NothingStarted,
    #[error(transparent)]
    Net(#[from] NetError),
}

impl CollectiveError {
    /// Whether another group may succeed where this one failed.
    pub fn is_about_the_group(&self) -> bool {
        match self {
            CollectiveError::NothingStarted => false,
            CollectiveError::Net(error) => error.is_about_a_peer(),
        }
    }
}

/// The only worker's collective: the reduced vector is its own.
#[derive(Debug, Default)]
pub struct Solo {
    started: VecDeque<Vec<u32>>,
}

impl Collective for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn start(
        &mut self,
        _id: CollectiveId,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<(), CollectiveError> {
        debug_assert_eq!(vector.len(), reduction.words());
        self.started.push_back(vector);
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<u32>, CollectiveError> {
        self.started.pop_front().ok_or(CollectiveError::NothingStarted)
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn busy(&self) -> Duration {
        Duration::ZERO
    }

    fn algorithm(&self) -> &'static str {
        "none"
    }

    fn selections(&self) -> Vec<SelectionReport> {
        Vec::new()
    }

    fn close(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn abort(self: Box<Self>, _reason: String) {}
}

/// A group of workers over QUIC, each in a process or a thread of its own, without a server.
///
/// Dropping it before [`close`](Group::close) ends the other workers' run.
#[derive(Debug)]
pub struct Group {
    handle: GroupHandle,
    selection: Selection,
    /// Bytes and algorithm of the vectors under way.
    under_way: VecDeque<(u64, Algorithm)>,
    /// Buffers reduced so far: see [`buffers`](super::buffers).
    buffers: u64,
}

impl Group {
    /// Waits until all workers are connected that this one exchanges words with.
    ///
    /// # Errors
    /// If a worker is not there in time, holds another key, or takes part in another run.
    ///
    /// # Panics
    /// If `rank` is not an index of `peers`.
    pub fn join(options: GroupOptions) -> Result<Group, NetError> {
        let (strategy, world) = (options.strategy, options.peers.len());
        Ok(Group::new(GroupHandle::join(options)?, strategy, world))
    }

    /// As [`join`](Group::join), at a station; the interrupt ends it.
    ///
    /// # Errors
    /// As [`join`](Group::join), and if the interrupt is raised meanwhile.
    ///
    /// # Panics
    /// If `rank` is not an index of `peers`.
    pub fn join_at(station: &Station, seat: Seat, interrupt: Interrupt) -> Result<Group, NetError> {
        let (strategy, world) = (seat.strategy, seat.peers.len());
        Ok(Group::new(GroupHandle::join_at(station, seat, interrupt)?, strategy, world))
    }

    fn new(handle: GroupHandle, strategy: Strategy, world: usize) -> Group {
        let selection = Selection::new(strategy, world, None);
        Group { handle, selection, under_way: VecDeque::new(), buffers: 0 }
    }

    /// What the link to the other workers is like. It is measured when it is first needed, for a
    /// choice of algorithms or here; then every worker must call this at once, with nothing under
    /// way.
    ///
    /// # Errors
    /// If the group fails.
    ///
    /// # Panics
    /// If something is under way.
    pub fn link(&mut self) -> Result<Link, NetError> {
        if let Some(link) = self.selection.link() {
            return Ok(*link);
        }
        assert!(self.under_way.is_empty(), "nothing is under way");
        let link = probe::measure(&mut self.handle)?;
        self.selection.set_link(link);
        Ok(link)
    }

    /// The algorithm that reduces vectors of so many bytes, once it is settled.
    pub fn algorithm_for(&mut self, bytes: u64) -> Algorithm {
        self.selection.algorithm(bytes)
    }

    /// Whether one algorithm reduces all vectors of so many bytes from now on. Until then those that
    /// the cost model finds close to each other are tried in turn.
    pub fn is_settled(&self, bytes: u64) -> bool {
        self.selection.is_settled(bytes)
    }

    /// Workers that take part.
    pub fn workers(&self) -> usize {
        self.handle.world_size()
    }

    /// Whether the workers are connected for an algorithm.
    pub(super) fn can_use(&self, algorithm: Algorithm) -> bool {
        self.algorithms().contains(&algorithm)
    }

    /// The number of the next buffer.
    pub(super) fn next_buffer(&mut self) -> u64 {
        self.buffers += 1;
        self.buffers - 1
    }

    /// The algorithms that the workers are connected for.
    pub fn algorithms(&self) -> &'static [Algorithm] {
        self.handle.strategy().algorithms(self.workers())
    }

    /// Reduces one vector by a given algorithm and waits for it.
    ///
    /// # Errors
    /// If the group fails.
    ///
    /// # Panics
    /// If something else is under way, the vector's length is not the reduction's, or the workers
    /// are not connected for the algorithm.
    pub fn reduce_by(
        &mut self,
        algorithm: Algorithm,
        id: CollectiveId,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<Vec<u32>, NetError> {
        assert!(self.under_way.is_empty(), "nothing else is under way");
        self.handle.start(id, algorithm, reduction, vector)?;
        Ok(self.handle.finish()?.vector)
    }

    /// Reduces one vector and waits for it.
    pub(super) fn reduce(
        &mut self,
        id: CollectiveId,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<Vec<u32>, NetError> {
        assert!(self.under_way.is_empty(), "nothing else is under way");
        self.begin(id, reduction, vector)?;
        self.end()
    }

    fn begin(
        &mut self,
        id: CollectiveId,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<(), NetError> {
        if self.under_way.is_empty() {
            // All workers begin and end their vectors in the same order, so all come here at once.
            self.settle(id.generation)?;
        }
        let bytes = size_of_val(vector.as_slice()) as u64;
        let algorithm = self.selection.begin(bytes);
        self.handle.start(id, algorithm, reduction, vector)?;
        self.under_way.push_back((bytes, algorithm));
        Ok(())
    }

    /// Measures the link if a choice waits for that, and settles trials that are over.
    fn settle(&mut self, generation: u32) -> Result<(), NetError> {
        if self.selection.needs_link() {
            self.link()?;
        }
        let times = self.selection.trial_times();
        if !times.is_empty() {
            let id = CollectiveId { generation, step: 0, attempt: 0, content: Content::Probe };
            let algorithm = self.algorithms()[0];
            let times = self.reduce_by(algorithm, id, Reduction::maxima(times.len()), times)?;
            self.selection.settle(&times);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<Vec<u32>, NetError> {
        let reduced = self.handle.finish()?;
        if let Some((bytes, algorithm)) = self.under_way.pop_front() {
            self.selection.note(bytes, algorithm, reduced.took);
        }
        Ok(reduced.vector)
    }

    /// Finishes what is under way, makes sure that the others have all of it, and parts.
    ///
    /// # Errors
    /// If the group fails before that.
    pub fn close(self) -> Result<(), NetError> {
        self.handle.close()
    }

    /// Parts at once and tells the other workers why: their run ends with this reason.
    pub fn abort(self, reason: String) {
        self.handle.abort(reason);
    }
}

impl Collective for Group {
    fn rank(&self) -> usize {
        self.handle.rank()
    }

    fn world_size(&self) -> usize {
        self.handle.world_size()
    }

    fn start(
        &mut self,
        id: CollectiveId,
        reduction: Reduction,
        vector: Vec<u32>,
    ) -> Result<(), CollectiveError> {
        Ok(self.begin(id, reduction, vector)?)
    }

    fn finish(&mut self) -> Result<Vec<u32>, CollectiveError> {
        if self.under_way.is_empty() {
            return Err(CollectiveError::NothingStarted);
        }
        Ok(self.end()?)
    }

    fn traffic(&self) -> Traffic {
        let (bytes_sent, bytes_received) = self.handle.traffic();
        Traffic { bytes_sent, bytes_received }
    }

    fn busy(&self) -> Duration {
        self.handle.busy()
    }

    fn algorithm(&self) -> &'static str {
        self.selection.strategy().name()
    }

    fn selections(&self) -> Vec<SelectionReport> {
        self.selection.report()
    }

    fn close(self: Box<Self>) -> Result<(), CollectiveError> {
        Ok(Group::close(*self)?)
    }

    fn abort(self: Box<Self>, reason: String) {
        Group::abort(*self, reason);
    }
}
