//! The trainer's delicate paths, with the reference engine and engines that misbehave: redone
//! steps, replicas that differ, stopping together, divergence.

use std::net::UdpSocket;
use std::num::NonZero;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use annulet::config::{Length, RunConfig};
use annulet::data::{DataPlan, Dataset};
use annulet::gpu::GpuError;
use annulet::launch::threads::train_in_threads;
use annulet::launch::worker::{NetworkPlan, WorkerPlan};
use annulet::model::layout::BUCKETS;
use annulet::net::{ClusterKey, GroupOptions, PeerAddress};
use annulet::numerics::fixed_point::FixedPoint;
use annulet::reference::engine::ReferenceEngine;
use annulet::train::all_reduce::{AllReduce, AllReduceParts};
use annulet::train::collective::{Collective, Group, Solo};
use annulet::train::device_loss::DeviceLoss;
use annulet::train::engine::{EngineDescription, EngineError, GradientEngine};
use annulet::train::event::Silent;
use annulet::train::metrics::RunSummary;
use annulet::train::trainer::{TrainError, Trainer, TrainingState};

fn plan() -> DataPlan {
    DataPlan { dataset: Some("synthetic".into()), train_limit: Some(200), test_limit: Some(20) }
}

fn config(steps: u64) -> RunConfig {
    RunConfig { length: Length::Steps(steps), batch: 64, ..RunConfig::default() }
}

fn dataset() -> Arc<Dataset> {
    Arc::new(plan().load(0).unwrap().dataset)
}

fn all_reduce(
    config: &RunConfig,
    dataset: &Arc<Dataset>,
    engine: Box<dyn GradientEngine>,
    collective: Box<dyn Collective>,
    stop: bool,
) -> AllReduce {
    AllReduce::new(AllReduceParts {
        config: config.clone(),
        dataset: dataset.clone(),
        engine,
        collective,
        stop: Arc::new(AtomicBool::new(stop)),
        overlap: true,
        rebalance: NonZero::new(1),
    })
}

fn trainer(
    config: RunConfig,
    dataset: &Arc<Dataset>,
    engine: Box<dyn GradientEngine>,
    collective: Box<dyn Collective>,
    stop: bool,
) -> Trainer {
    let update = all_reduce(&config, dataset, engine, collective, stop);
    Trainer {
        state: TrainingState::initial(&config),
        config,
        dataset: dataset.clone(),
        data: plan(),
        update: Box::new(update),
        folder: None,
        checkpoint_every: None,
        checkpoints_kept: None,
        started_at: Instant::now(),
        members: Vec::new(),
        heir: None,
        joins: false,
    }
}

fn reference(config: &RunConfig, dataset: &Arc<Dataset>) -> Box<dyn GradientEngine> {
    Box::new(ReferenceEngine::new(config.model, dataset.clone()))
}

/// A ring among threads, of which the worker `stopping` wants to stop at once; each worker's trainer
/// may be changed before it runs.
fn run_ring(
    config: &RunConfig,
    workers: usize,
    stopping: Option<usize>,
    change: impl Fn(usize, &mut Trainer) + Sync,
) -> Vec<Result<RunSummary, TrainError>> {
    let dataset = dataset();
    let key = ClusterKey::generate().unwrap();
    let sockets: Vec<UdpSocket> =
        (0..workers).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let peers: Vec<Vec<PeerAddress>> =
        sockets.iter().map(|socket| vec![socket.local_addr().unwrap().into()]).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = sockets
            .into_iter()
            .enumerate()
            .map(|(rank, socket)| {
                let (key, peers) = (key.clone(), peers.clone());
                let (dataset, change) = (&dataset, &change);
                scope.spawn(move || {
                    let group = Group::join(GroupOptions::new(socket, key, rank, peers)).unwrap();
                    let engine = reference(config, dataset);
                    let stop = stopping == Some(rank);
                    let mut trainer =
                        trainer(config.clone(), dataset, engine, Box::new(group), stop);
                    change(rank, &mut trainer);
                    trainer.run(&mut Silent)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn a_redone_step_gives_the_same_bits_on_any_number_of_workers() {
    // Far too small a maximum: the first step does not fit its range and is redone.
    let shrink = |_: usize, trainer: &mut Trainer| trainer.state.maxima = [1e-9; 11];
    let config = config(3);
    let mut digests = Vec::new();
    for workers in [1, 2, 3] {
        for summary in run_ring(&config, workers, None, shrink) {
            let summary = summary.unwrap();
            assert_eq!(summary.redone_steps, 1);
            assert_eq!(summary.steps, 3);
            digests.push(summary.params_sha256);
        }
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:#?}");
}

#[test]
fn replicas_that_differ_are_found_before_the_first_step() {
    let results = run_ring(&config(3), 2, None, |rank, trainer| {
        if rank == 1 {
            trainer.state.maxima[3] *= 2.0;
        }
    });
    let finds = |result: &Result<_, TrainError>| {
        matches!(result, Err(TrainError::ReplicasDiffer { step: 0 }))
    };
    assert!(results.iter().any(finds), "{results:?}");
    // Whoever finds it first may tell the other one before that has found it too.
    for result in results {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("the replicas differ after step 0"), "{text}");
    }
}

#[test]
fn a_lost_device_is_replaced_once() {
    let (config, dataset) = (config(4), dataset());
    let engine = |steps: u64| -> Box<dyn GradientEngine> {
        Box::new(DeviceLoss::new(reference(&config, &dataset), steps))
    };
    // The first engine makes one step; the second one as many as are given here.
    let run = |steps: Option<u64>| {
        let mut trainer =
            trainer(config.clone(), &dataset, engine(1), Box::new(Solo::default()), false);
        let second = steps.map(engine);
        let update = all_reduce(&config, &dataset, engine(1), Box::new(Solo::default()), false);
        trainer.update = Box::new(
            update.reopening(Box::new(move || second.ok_or(GpuError::NoData).map_err(Into::into))),
        );
        trainer.run(&mut Silent)
    };
    let alone = Box::new(Solo::default());
    let quiet = trainer(config.clone(), &dataset, reference(&config, &dataset), alone, false);
    let quiet = quiet.run(&mut Silent).unwrap().params_sha256;
    assert_eq!(run(Some(100)).unwrap().params_sha256, quiet);
    assert!(matches!(run(Some(1)), Err(TrainError::Engine(error)) if error.is_device_lost()));
    let text = run(None).unwrap_err().to_string();
    assert!(text.contains("was lost") && text.contains("no other device"), "{text}");
}

#[test]
fn a_wish_to_stop_on_one_worker_ends_all_after_the_same_step() {
    for result in run_ring(&config(50), 3, Some(2), |_, _| {}) {
        let summary = result.unwrap();
        assert!(summary.interrupted);
        assert_eq!(summary.steps, 1);
    }
}

#[test]
fn threads_train_like_a_lone_worker() {
    let plan = WorkerPlan {
        config: RunConfig { kernels: annulet::config::Kernels::Reference, ..config(4) },
        data: plan(),
        network: NetworkPlan::default(),
        adapter: None,
        cores: 1,
        resume: None,
        folder: None,
        timeline: None,
    };
    let digest = |workers| train_in_threads(&plan, workers, &mut Silent).unwrap().params_sha256;
    assert_eq!(digest(1), digest(4));
}

/// An engine whose words are the reference's with the maxima replaced.
struct Misbehaving {
    reference: Box<dyn GradientEngine>,
    calls: u32,
    /// The bits of every maximum in the given call.
    maximum: fn(u32) -> f32,
}

impl GradientEngine for Misbehaving {
    fn begin_step(
        &mut self,
        parameters: &[f32],
        samples: &[u32],
        fixed_point: &FixedPoint,
    ) -> Result<(), EngineError> {
        self.calls += 1;
        self.reference.begin_step(parameters, samples, fixed_point)
    }

    fn finish_bucket(&mut self, bucket: usize, words: &mut [u32]) -> Result<(), EngineError> {
        self.reference.finish_bucket(bucket, words)?;
        words[BUCKETS[bucket].sum_words()..].fill((self.maximum)(self.calls).to_bits());
        Ok(())
    }

    fn logits(
        &mut self,
        parameters: &[f32],
        samples: Range<u32>,
        logits: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        self.reference.logits(parameters, samples, logits)
    }

    fn description(&self) -> EngineDescription {
        self.reference.description()
    }
}

fn run_misbehaving(maximum: fn(u32) -> f32) -> Result<RunSummary, TrainError> {
    let (config, dataset) = (config(3), dataset());
    let engine = Misbehaving { reference: reference(&config, &dataset), calls: 0, maximum };
    trainer(config, &dataset, Box::new(engine), Box::new(Solo::default()), false).run(&mut Silent)
}

#[test]
fn an_engine_that_never_fits_its_own_range_is_given_up() {
    let result = run_misbehaving(|call| 10f32.powi(3 * call as i32));
    assert!(matches!(result, Err(TrainError::NotReproducible { step: 1 })), "{result:?}");
}

#[test]
fn a_partial_that_is_not_finite_is_divergence() {
    for value in [|_| f32::NAN, |_| f32::INFINITY] {
        let result = run_misbehaving(value);
        assert!(matches!(result, Err(TrainError::Diverged { step: 1, .. })), "{result:?}");
    }
}
