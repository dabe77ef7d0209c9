//! Annulet trains LeNet on any GPU, many workers at once, with no server in the middle.
//!
//! Every worker keeps a full copy of the model, takes its share of each batch, runs forward and
//! backward as WGSL compute shaders, and averages gradients with its peers by an all-reduce over
//! QUIC. The sums are exact integers, so **one run gives one result**: the trained bits do not
//! depend on how many workers computed them.
//!
//! # The map
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | the validated run configuration and its digest |
//! | [`protocol`] | decisions without IO: collectives, parameter servers and membership as state machines, the cost model, the emulated link |
//! | [`model`] | LeNet as data: layers, shapes, parameter layout, initial values |
//! | [`numerics`] | exact fixed-point sums, the optimizer in strict `f32` |
//! | [`reference`](mod@reference) | forward and backward in plain Rust: the oracle of the shaders |
//! | [`data`] | IDX files, the synthetic digits, the sample order |
//! | [`gpu`] | the wgpu shell: adapters, kernels, the gradient engine |
//! | [`net`] | the tokio and quinn shell: identities, connections, the driver of collectives, the star, the emulated card |
//! | [`train`] | the trainer, steps by all-reduce or by parameter servers, evaluation, checkpoints, metrics |
//! | [`launch`] | local processes and threads: workers and servers |
//! | [`simulate`] | scenarios, what becomes of them in virtual time, and how far that is from what was measured |
//! | [`bench`](mod@bench) | benchmarks: a worker's step, the collective, statistics |
//! | [`report`] | runs and sweeps in pictures: one HTML page |
//! | [`cli`] | one file a subcommand |
//!
//! # The layering rule
//!
//! Imports go downward only:
//!
//! ```text
//! cli -> {bench, report, launch} -> {train, simulate} -> {gpu, net} -> {reference, data, numerics} -> {protocol, model, config}
//! ```
//!
//! `gpu` and `net` never see each other; `train` knows them through two traits,
//! [`train::engine::GradientEngine`] and [`train::collective::Collective`], and by the nodes of a
//! [`net::Star`]. How a step is made, by all-reduce or by parameter servers, is an
//! [`train::update::Update`].
//!
//! # The collective alone
//!
//! Any program can sum its own buffers over processes or machines, encrypted and mutually
//! authenticated: join a group, then call it. `examples/allreduce.rs` runs as it is.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use annulet::net::{ClusterKey, GroupOptions};
//! use annulet::train::collective::Group;
//!
//! let key = ClusterKey::read("cluster.key".as_ref())?; // `annulet key` makes one
//! let peers = ["10.0.0.1:4400", "10.0.0.2:4400"].map(|peer| vec![peer.parse().unwrap()]);
//! let socket = std::net::UdpSocket::bind("0.0.0.0:4400")?;
//! let rank = 0; // this worker's place in the list
//! let mut group = Group::join(GroupOptions::new(socket, key, rank, peers.to_vec()))?;
//!
//! let mut gradients = vec![0.5f32; 1_000];
//! group.all_reduce_f32(&mut gradients)?; // exact: the same bits for any order of workers
//! group.all_reduce_i32(&mut [1, 2, 3])?;
//! group.close()?;
//! # Ok(())
//! # }
//! ```

pub mod bench;
pub mod cli;
pub mod config;
pub mod data;
pub mod gpu;
pub mod launch;
pub mod model;
pub mod net;
pub mod numerics;
pub mod protocol;
pub mod reference;
pub mod report;
pub mod simulate;
pub mod train;
