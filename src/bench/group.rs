//! The workers that measure collectives: local processes, or one of a real group.
//!
//! Local processes are this program again, which takes orders on its standard input and answers on
//! its standard output, a JSON line a message. Everything goes in turns: the launcher gives an order to all and waits for all answers, so that
//! between two orders the machine is quiet.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::BenchError;
use super::collective::{Measurement, Row, Sweep, measure};
use super::soak::{SoakReport, soak};
use super::tcp_ring::TcpRing;
use crate::launch::threads::bind_loopback;
use crate::launch::worker::{NetworkPlan, peer_addresses};
use crate::net::GroupOptions;
use crate::net::identity::ClusterKey;
use crate::protocol::cost_model::Link;
use crate::train::collective::Group;

/// Processes that all start in the same moment.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

/// To a worker. Not `Debug`, since it carries the key.
#[derive(Serialize, Deserialize)]
enum Order {
    /// Comes first. The key travels here, never as an argument that other users could read.
    Begin {
        rank: usize,
        cluster_key_pem: String,
        network: Box<NetworkPlan>,
    },
    /// Every worker's addresses, by rank.
    Join {
        places: Vec<Place>,
    },
    Measure {
        transport: Transport,
        bytes: u64,
        sweep: Sweep,
    },
    Soak {
        seconds: u64,
        seed: u64,
    },
    End,
}

/// Where a worker is reached.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Place {
    quic: SocketAddr,
    /// For the ring over plain TCP.
    tcp: SocketAddr,
}

/// What carries the all-reduce.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Transport {
    Quic,
    /// For comparison: unencrypted.
    Tcp,
}

/// From a worker.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Bound(Place),
    Joined(Link),
    Measured(Measurement),
    Soaked(SoakReport),
    Ended,
    Failed(String),
}

/// A group of local worker processes, killed when this is dropped.
pub struct LocalGroup {
    workers: Vec<Worker>,
    link: Link,
}

struct Worker {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl LocalGroup {
    /// Starts the processes, which join each other and measure their links. `arguments` make this
    /// program call [`follow_orders`].
    ///
    /// # Errors
    /// If a process cannot be started, or cannot join the others.
    pub fn start(
        arguments: &[&str],
        workers: usize,
        network: &NetworkPlan,
    ) -> Result<LocalGroup, BenchError> {
        let program = std::env::current_exe().map_err(BenchError::Spawn)?;
        let cluster_key_pem = ClusterKey::generate()?.to_pem().to_owned();
        let link = Link { latency_ns: 0, overhead_ns: 0, picoseconds_per_byte: 1 };
        let mut group = LocalGroup { workers: Vec::with_capacity(workers), link };
        for _ in 0..workers {
            group.workers.push(Worker::start(&program, arguments)?);
        }
        let begin = |rank| Order::Begin {
            rank,
            cluster_key_pem: cluster_key_pem.clone(),
            network: Box::new(network.clone()),
        };
        let places = group.ask(begin, |answer| match answer {
            Answer::Bound(place) => Ok(place),
            other => Err(other),
        })?;
        let join = |_| Order::Join { places: places.clone() };
        let links = group.ask(join, |answer| match answer {
            Answer::Joined(link) => Ok(link),
            other => Err(other),
        })?;
        // The workers have agreed on one.
        group.link = links[0];
        Ok(group)
    }

    /// What the workers measured of their links.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Measures one size.
    ///
    /// # Errors
    /// If a worker fails.
    pub fn measure(&mut self, bytes: u64, sweep: &Sweep) -> Result<Row, BenchError> {
        let own = self.measure_over(Transport::Quic, bytes, sweep)?;
        let mut row = Row::new(bytes, self.workers.len(), &self.link, &own);
        let tcp = self.measure_over(Transport::Tcp, bytes, sweep)?;
        let tcp = Row::new(bytes, self.workers.len(), &self.link, &tcp);
        row.tcp_ring_us = Some(tcp.time_us.p50);
        Ok(row)
    }

    fn measure_over(
        &mut self,
        transport: Transport,
        bytes: u64,
        sweep: &Sweep,
    ) -> Result<Vec<Measurement>, BenchError> {
        let order = |_| Order::Measure { transport, bytes, sweep: *sweep };
        self.ask(order, |answer| match answer {
            Answer::Measured(measurement) => Ok(measurement),
            other => Err(other),
        })
    }

    /// Reduces vectors of random sizes for so long; what all workers saw together.
    ///
    /// # Errors
    /// If a worker fails.
    pub fn soak(&mut self, seconds: u64, seed: u64) -> Result<SoakReport, BenchError> {
        let reports = self.ask(
            |_| Order::Soak { seconds, seed },
            |answer| match answer {
                Answer::Soaked(report) => Ok(report),
                other => Err(other),
            },
        )?;
        Ok(SoakReport::of_all(&reports))
    }

    /// Lets the workers part in peace.
    ///
    /// # Errors
    /// If a worker fails.
    pub fn end(mut self) -> Result<(), BenchError> {
        self.ask(
            |_| Order::End,
            |answer| match answer {
                Answer::Ended => Ok(()),
                other => Err(other),
            },
        )?;
        Ok(())
    }

    /// Gives each worker an order and waits for all answers.
    fn ask<T>(
        &mut self,
        order: impl Fn(usize) -> Order,
        expected: impl Fn(Answer) -> Result<T, Answer>,
    ) -> Result<Vec<T>, BenchError> {
        for (rank, worker) in self.workers.iter_mut().enumerate() {
            worker.tell(&order(rank));
        }
        let mut answers = Vec::with_capacity(self.workers.len());
        for (rank, worker) in self.workers.iter_mut().enumerate() {
            answers.push(match expected(worker.hear(rank)?) {
                Ok(answer) => answer,
                Err(Answer::Failed(message)) => return Err(BenchError::Worker { rank, message }),
                Err(other) => {
                    return Err(BenchError::Pipe { rank, found: format!("{other:?}") });
                }
            });
        }
        Ok(answers)
    }
}

impl Worker {
    fn start(program: &std::path::Path, arguments: &[&str]) -> Result<Worker, BenchError> {
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(BenchError::Spawn)?;
        let orders = process.stdin.take().expect("stdin is piped");
        let answers = BufReader::new(process.stdout.take().expect("stdout is piped"));
        Ok(Worker { process, orders, answers })
    }

    /// A worker that cannot be told anything has ended; that it does not answer tells so.
    fn tell(&mut self, order: &Order) {
        let mut line = serde_json::to_string(order).expect("an order serializes");
        line.push('\n');
        let _ = self.orders.write_all(line.as_bytes());
    }

    fn hear(&mut self, rank: usize) -> Result<Answer, BenchError> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) | Err(_) => Err(BenchError::Silent { rank }),
            Ok(_) => serde_json::from_str(&line)
                .map_err(|_| BenchError::Pipe { rank, found: line.trim_end().to_owned() }),
        }
    }
}

impl Drop for LocalGroup {
    fn drop(&mut self) {
        for worker in &mut self.workers {
            // An error means that it has ended already.
            let _ = worker.process.kill();
            let _ = worker.process.wait();
        }
    }
}

/// One worker of a group that measures, wherever the others are.
pub struct GroupMember {
    group: Group,
    link: Link,
}

impl GroupMember {
    /// Joins the others and measures the link with them.
    ///
    /// # Errors
    /// If the others are not there in time, or do not fit.
    pub fn join(options: GroupOptions) -> Result<GroupMember, BenchError> {
        let mut group = Group::join(options)?;
        let link = group.link()?;
        Ok(GroupMember { group, link })
    }

    /// What the workers measured of their links.
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Measures one size together with all others, which must do the same; all leave with the same
    /// row.
    ///
    /// # Errors
    /// If the group fails.
    pub fn measure(&mut self, bytes: u64, sweep: &Sweep) -> Result<Row, BenchError> {
        let mut own = measure(&mut self.group, bytes, sweep)?;
        let workers = self.group.workers();
        let mut times: Vec<f32> = own.times_us.iter().map(|&time| time as f32).collect();
        self.group.all_reduce_f32(&mut times)?;
        own.times_us = times.iter().map(|&sum| f64::from(sum) / workers as f64).collect();
        let mut wrong = [own.wrong.min(WRONG_MAX) as i32];
        self.group.all_reduce_i32(&mut wrong)?;
        own.wrong = wrong[0] as u64;
        Ok(Row::new(bytes, workers, &self.link, &[own]))
    }

    /// Parts in peace.
    ///
    /// # Errors
    /// If the group fails before that.
    pub fn end(self) -> Result<(), BenchError> {
        Ok(self.group.close()?)
    }
}

/// More wrong words of one worker are not counted: the sum over the workers must fit an `i32`.
const WRONG_MAX: u64 = 1_000_000;

/// Is one of a [`LocalGroup`]'s workers, until the orders end.
///
/// # Errors
/// If the group fails; the launcher has been told.
pub fn follow_orders() -> Result<(), BenchError> {
    let outcome = work(&mut std::io::stdin().lock().lines().map_while(Result::ok));
    if let Err(error) = &outcome {
        answer(&Answer::Failed(error.to_string()));
    }
    outcome
}

fn work(lines: &mut dyn Iterator<Item = String>) -> Result<(), BenchError> {
    let mut order = || lines.next().and_then(|line| serde_json::from_str(&line).ok());
    let Some(Order::Begin { rank, cluster_key_pem, network }) = order() else {
        return Err(BenchError::NotLaunched);
    };
    let key = ClusterKey::from_pem(&cluster_key_pem)?;
    let (socket, address) =
        bind_loopback().map_err(|error| BenchError::Worker { rank, message: error.to_string() })?;
    let (listener, tcp) = TcpRing::listen().map_err(BenchError::Loopback)?;
    answer(&Answer::Bound(Place { quic: address, tcp }));
    let Some(Order::Join { places }) = order() else { return Err(BenchError::NotLaunched) };
    let addresses: Vec<Vec<SocketAddr>> = places.iter().map(|place| vec![place.quic]).collect();
    let tcp: Vec<SocketAddr> = places.iter().map(|place| place.tcp).collect();
    let mut tcp_ring = TcpRing::join(&listener, rank, &tcp).map_err(BenchError::Loopback)?;
    let mut member = GroupMember::join(GroupOptions {
        socket,
        key,
        rank,
        peers: peer_addresses(&addresses),
        run_id: "bench".into(),
        config_digest: [0; 32],
        join_timeout: JOIN_TIMEOUT,
        strategy: network.strategy,
        transport: network.transport,
    })?;
    let link = *member.link();
    answer(&Answer::Joined(link));
    loop {
        answer(&match order() {
            Some(Order::Measure { transport, bytes, sweep }) => Answer::Measured(match transport {
                Transport::Quic => measure(&mut member.group, bytes, &sweep)?,
                Transport::Tcp => measure(&mut tcp_ring, bytes, &sweep)?,
            }),
            Some(Order::Soak { seconds, seed }) => {
                Answer::Soaked(soak(&mut member.group, Duration::from_secs(seconds), seed)?)
            }
            _ => break,
        });
    }
    member.end()?;
    answer(&Answer::Ended);
    Ok(())
}

/// A line to the launcher; one that cannot be told is gone, and then the orders end.
fn answer(answer: &Answer) {
    let mut line = serde_json::to_string(answer).expect("an answer serializes");
    line.push('\n');
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
}
