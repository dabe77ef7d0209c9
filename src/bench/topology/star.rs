//! A step around servers: compute, push, pull. The decisions and the messages are those of
//! training; the numbers are one vector of any size.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::load::Load;
use super::record::{Records, WindowClock, WorkerRecord, fingerprint};
use super::{JOIN_TIMEOUT, Settings, apply, on_threads, transport};
use crate::bench::BenchError;
use crate::data::sampler::share;
use crate::net::{NetError, Star, StarEvent, StarOptions};
use crate::protocol::collective::Reduction;
use crate::protocol::parameter_server::{Age, Grant, Mode, ParameterServer, Request, Verdict};
use crate::protocol::pulls::Pulls;
use crate::protocol::star::{self, Message, Order, PushHeader, ToServer, ToWorker};
use crate::simulate::{NodeBytes, Scenario};

/// Measures the scenario's workers and servers.
pub(super) fn run(
    scenario: &Scenario,
    settings: &Settings,
    mode: Mode,
) -> Result<Records, BenchError> {
    let workers = scenario.workers;
    let ends = on_threads(workers + scenario.servers(), |node, socket, key, addresses| {
        // Kernels are loaded before the others wait for them.
        let load = (node < workers).then(|| Load::new(scenario, settings, node)).transpose()?;
        let star = Star::join(StarOptions {
            socket,
            key: key.clone(),
            node,
            workers,
            servers: addresses[workers..].to_vec(),
            run_id: "bench".into(),
            config_digest: [0; 32],
            join_timeout: JOIN_TIMEOUT,
            transport: transport(scenario, settings),
            words_max: scenario.elements,
        })?;
        match load {
            Some(load) => Worker::new(node, scenario, star, load).run().map(End::Worker),
            None => Server::new(node - workers, mode, scenario, settings, star).run(),
        }
    })?;
    let mut records = Records {
        workers: Vec::new(),
        servers: Vec::new(),
        window: WindowClock::default(),
        fingerprint: 0,
    };
    let mut windows = Vec::new();
    for end in ends {
        match end {
            End::Worker(record) => records.workers.push(record),
            End::Server { bytes, window, fingerprint } => {
                records.servers.push(bytes);
                windows.push(window);
                records.fingerprint = records.fingerprint.wrapping_add(fingerprint);
            }
        }
    }
    // The coordinator's clock counts.
    records.window = windows.swap_remove(0);
    Ok(records)
}

/// What a node ends with.
enum End {
    Worker(WorkerRecord),
    Server { bytes: NodeBytes, window: WindowClock, fingerprint: u64 },
}

struct Server<'a> {
    settings: &'a Settings,
    /// Among the servers.
    server: usize,
    mode: Mode,
    star: Star<Message, Message>,
    decisions: ParameterServer,
    slice: Range<usize>,
    parameters: Vec<f32>,
    /// Of the step under way.
    sums: Vec<u32>,
    began: Instant,
    window: WindowClock,
    /// When the window was opened: what had gone through, and how late gradients had been.
    before: (NodeBytes, Vec<u64>),
    bytes: NodeBytes,
    /// The workers have been told that it is over.
    finished: bool,
}

impl Server<'_> {
    fn new<'a>(
        server: usize,
        mode: Mode,
        scenario: &Scenario,
        settings: &'a Settings,
        star: Star<Message, Message>,
    ) -> Server<'a> {
        let slice = star::slice(scenario.elements, scenario.servers(), server);
        let mut decisions = ParameterServer::new(mode, scenario.workers, 0).begin_with(server);
        decisions.allow(u64::MAX);
        Server {
            settings,
            server,
            mode,
            star,
            decisions,
            parameters: vec![0.0; slice.len()],
            sums: vec![0; slice.len()],
            slice,
            began: Instant::now(),
            window: WindowClock::default(),
            before: (NodeBytes::default(), Vec::new()),
            bytes: NodeBytes::default(),
            finished: false,
        }
    }

    fn run(mut self) -> Result<End, BenchError> {
        match self.serve() {
            Ok(()) => {
                self.star.close();
                let fingerprint = fingerprint(self.slice.start, &self.parameters);
                Ok(End::Server { bytes: self.bytes, window: self.window, fingerprint })
            }
            Err(error) => {
                self.star.abort(error.to_string());
                Err(error)
            }
        }
    }

    /// Serves until all workers have left, which the coordinator has told that it is over.
    fn serve(&mut self) -> Result<(), BenchError> {
        let workers = self.star.workers();
        let mut left = 0;
        while left < workers {
            match self.star.receive()? {
                StarEvent::Message { node, message: Message::ToServer(message), words }
                    if node < workers =>
                {
                    self.hear(node, message, words)?;
                }
                StarEvent::Message { node, .. } => return Err(out_of_turn(node, "a message")),
                StarEvent::Left { node } => left += usize::from(node < workers),
                StarEvent::Lost { error, .. } => return Err(error.into()),
            }
            self.look_at_the_clock();
            self.grant()?;
            if self.server == 0 && self.window.is_closed() && !self.finished {
                self.finished = true;
                for rank in 0..workers {
                    self.tell(rank, ToWorker::Finish, Vec::new())?;
                }
            }
        }
        Ok(())
    }

    fn total(&self) -> u64 {
        (self.settings.warmup + self.settings.steps) as u64
    }

    fn hear(&mut self, rank: usize, message: ToServer, words: Vec<u32>) -> Result<(), BenchError> {
        match message {
            ToServer::Ready { .. } => self.ask(rank, Request::Task),
            ToServer::Pull(age) => self.ask(rank, Request::Slice(age)),
            ToServer::Push(header) => self.push(rank, &header, &words)?,
            _ => return Err(out_of_turn(rank, "a message that is not its to send")),
        }
        Ok(())
    }

    fn ask(&mut self, rank: usize, request: Request) {
        if request != Request::Task || self.server == 0 {
            self.decisions.ask(self.began.elapsed(), rank, request);
        }
    }

    fn push(&mut self, rank: usize, header: &PushHeader, words: &[u32]) -> Result<(), BenchError> {
        if words.len() != self.slice.len() {
            return Err(out_of_turn(rank, "gradients that do not fit"));
        }
        let verdict = self
            .decisions
            .push(rank, header.task, header.version)
            .map_err(|fault| out_of_turn(rank, &fault.to_string()))?;
        if verdict != Verdict::Drop && self.window.is_open() {
            let part = header.task.share as usize;
            self.window.images +=
                share(self.settings.batch, self.star.workers(), part).len() as u64;
        }
        match verdict {
            Verdict::Drop => {}
            Verdict::Apply { .. } => apply(&mut self.parameters, words),
            Verdict::Add | Verdict::Complete => {
                Reduction::sums(words.len()).reduce(&mut self.sums, 0, words);
                if verdict == Verdict::Complete {
                    apply(&mut self.parameters, &self.sums);
                    self.sums.fill(0);
                    self.decisions.applied();
                }
            }
        }
        self.ask(rank, Request::Task);
        Ok(())
    }

    /// Opens the window behind the warm-up, and closes it behind the last step.
    fn look_at_the_clock(&mut self) {
        let (done, total) = (self.decisions.steps_done(), self.total());
        if self.window.is_closed() {
            return;
        }
        if !self.window.is_open() && done >= self.settings.warmup as u64 {
            self.window.open();
            self.before = (self.traffic(), self.decisions.staleness().to_vec());
        }
        if done >= total {
            self.decisions.allow(0);
            self.window.close();
            let (traffic, late) = (self.traffic(), self.decisions.staleness());
            let (before, late_before) = &self.before;
            let steps = self.settings.steps as f64;
            self.bytes = NodeBytes {
                sent: (traffic.sent - before.sent) / steps,
                received: (traffic.received - before.received) / steps,
            };
            let earlier = late_before.iter().copied().chain(std::iter::repeat(0));
            self.window.staleness =
                late.iter().zip(earlier).map(|(now, before)| now - before).collect();
        }
    }

    fn traffic(&self) -> NodeBytes {
        let (sent, received) = self.star.traffic();
        NodeBytes { sent: sent as f64, received: received as f64 }
    }

    fn grant(&mut self) -> Result<(), BenchError> {
        while let Some((rank, grant)) = self.decisions.next_grant(self.began.elapsed()) {
            let version = self.decisions.version();
            let message = match grant {
                Grant::Slice => ToWorker::Slice { version },
                Grant::Task(task) => ToWorker::Compute(Order {
                    task,
                    version,
                    pull: self.decisions.age(false),
                    scale: Vec::new(),
                    own_range: self.mode != Mode::Sync,
                }),
            };
            let words = self.parameters.iter().map(|value| value.to_bits()).collect();
            self.tell(rank, message, words)?;
        }
        Ok(())
    }

    fn tell(&self, rank: usize, message: ToWorker, words: Vec<u32>) -> Result<(), BenchError> {
        Ok(self.star.send(rank, &Message::ToWorker(message), words)?)
    }
}

struct Worker {
    rank: usize,
    star: Star<Message, Message>,
    load: Load,
    /// The slice of each server, and the version of it that is here.
    slices: Vec<Range<usize>>,
    versions: Vec<u64>,
    parameters: Vec<f32>,
    sums: Vec<u32>,
    pulls: Pulls,
    record: WorkerRecord,
}

impl Worker {
    fn new(rank: usize, scenario: &Scenario, star: Star<Message, Message>, load: Load) -> Worker {
        debug_assert!(rank < star.workers());
        let servers = scenario.servers();
        Worker {
            rank,
            star,
            load,
            slices: (0..servers)
                .map(|server| star::slice(scenario.elements, servers, server))
                .collect(),
            versions: vec![0; servers],
            parameters: vec![0.0; scenario.elements],
            sums: vec![0; scenario.elements],
            pulls: Pulls::new(servers),
            record: WorkerRecord::default(),
        }
    }

    fn run(mut self) -> Result<WorkerRecord, BenchError> {
        match self.work() {
            Ok(tasks) => {
                let (sent, received) = self.star.traffic();
                self.star.close();
                let a_step = |bytes: u64| bytes as f64 / tasks.max(1) as f64;
                self.record.bytes = NodeBytes { sent: a_step(sent), received: a_step(received) };
                Ok(self.record)
            }
            Err(error) => {
                self.star.abort(error.to_string());
                Err(error)
            }
        }
    }

    /// Computes what it is told; how many tasks there were.
    fn work(&mut self) -> Result<u64, BenchError> {
        self.tell(0, ToServer::Ready { engine: String::new() }, Vec::new())?;
        let mut computed = Duration::ZERO;
        let mut tasks = 0;
        while let Some(order) = self.next_order()? {
            self.record.mark(computed);
            let (step, part) = (order.task.step, order.task.share as usize);
            computed = self.load.compute(step, part, &self.parameters, &mut self.sums)?;
            self.push(&order, computed)?;
            tasks += 1;
            if !order.own_range {
                // The next slices, before the next order comes.
                self.ask_for_slices(&Age { version: order.version + 1, clocks: Vec::new() })?;
            }
        }
        Ok(tasks)
    }

    /// The next task, with all parameters in place; none if it is over.
    fn next_order(&mut self) -> Result<Option<Order>, BenchError> {
        let mut order = None;
        while order.is_none() || !self.pulls.are_here() {
            let (server, message, words) = self.receive()?;
            match message {
                ToWorker::Slice { version } => {
                    self.put(server, version, &words)?;
                    self.pulls.arrived().map_err(|_| unexpected(server))?;
                }
                ToWorker::Compute(new) => {
                    self.put(server, new.version, &words)?;
                    self.ask_for_slices(&new.pull)?;
                    order = Some(new);
                }
                ToWorker::Finish => return Ok(None),
                _ => return Err(unexpected(server)),
            }
        }
        self.pulls.used();
        Ok(order)
    }

    fn push(&self, order: &Order, computed: Duration) -> Result<(), BenchError> {
        for server in star::in_turn(self.rank, self.slices.len()) {
            let header = PushHeader {
                task: order.task,
                bucket: 0,
                version: self.versions[server],
                scale: Vec::new(),
                compute_us: u64::try_from(computed.as_micros()).unwrap_or(u64::MAX),
            };
            self.tell(
                server,
                ToServer::Push(header),
                self.sums[self.slices[server].clone()].to_vec(),
            )?;
        }
        Ok(())
    }

    /// Asks for the other servers' slices, unless that was done already.
    fn ask_for_slices(&mut self, age: &Age) -> Result<(), BenchError> {
        if self.pulls.ask() {
            for server in 1..self.slices.len() {
                self.tell(server, ToServer::Pull(age.clone()), Vec::new())?;
            }
        }
        Ok(())
    }

    fn put(&mut self, server: usize, version: u64, words: &[u32]) -> Result<(), BenchError> {
        let slice = &mut self.parameters[self.slices[server].clone()];
        if slice.len() != words.len() {
            return Err(unexpected(server));
        }
        for (value, &word) in slice.iter_mut().zip(words) {
            *value = f32::from_bits(word);
        }
        self.versions[server] = version;
        Ok(())
    }

    fn receive(&mut self) -> Result<(usize, ToWorker, Vec<u32>), BenchError> {
        let workers = self.star.workers();
        match self.star.receive()? {
            StarEvent::Message { node, message: Message::ToWorker(message), words } => {
                Ok((node - workers, message, words))
            }
            StarEvent::Message { node, .. } | StarEvent::Left { node } => {
                Err(unexpected(node - workers))
            }
            StarEvent::Lost { error, .. } => Err(error.into()),
        }
    }

    fn tell(&self, server: usize, message: ToServer, words: Vec<u32>) -> Result<(), BenchError> {
        let node = self.star.workers() + server;
        Ok(self.star.send(node, &Message::ToServer(message), words)?)
    }
}

fn out_of_turn(node: usize, fault: &str) -> BenchError {
    NetError::OutOfTurn { node, fault: fault.to_owned() }.into()
}

fn unexpected(server: usize) -> BenchError {
    NetError::ServerOutOfTurn { server }.into()
}
