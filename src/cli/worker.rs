//! `annulet worker`: one worker of a group over several machines, or a child of `annulet train`.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::Instant;

use clap::Args;

use crate::launch::driver_environment::set_driver_environment;
use crate::launch::elastic::{ElasticPlace, Way};
use crate::launch::member_thread::{Input, Messenger};
use crate::launch::pipe::{FromWorker, ToWorker, WorkerOrder, instant_of};
use crate::launch::star::{StarPlace, run_served_worker, run_server};
use crate::launch::threads::bind_loopback;
use crate::launch::worker::{Membership, WorkerPlan, peer_addresses, run_worker};
use crate::net::PeerAddress;
use crate::net::identity::ClusterKey;
use crate::protocol::membership::{Acceptors, Member, MemberId, Message, Party, Settings};
use crate::train::event::Event;
use crate::train::server::ServerPlan;

use super::CommandError;
use super::group_flags::GroupFlags;
use super::interrupt::Interrupt;
use super::network_flags::OverlapFlags;
use super::output::note;
use super::plan_flags::{PlanFlags, WORKERS_MAX, plan_timeline, report};
use super::progress::Display;
use super::run_flags::OutputFlags;
use super::topology_flags::ShareFlags;
use super::watch_flags::MetricsFlags;

#[derive(Debug, Args)]
pub struct WorkerArguments {
    /// Be a child of `annulet train`: orders come on standard input
    #[arg(long, hide = true)]
    launched: bool,
    #[command(flatten)]
    group: GroupFlags,
    /// Instead of --peers: the parameter servers' HOST:PORT, in their order, the same list for all;
    /// --rank then goes from 0 to --workers less one
    #[arg(
        long,
        env = "ANNULET_SERVER",
        value_delimiter = ',',
        value_name = "HOST:PORT,...",
        conflicts_with = "peers",
        requires_all = ["workers", "rank"]
    )]
    server: Vec<PeerAddress>,
    /// Workers around the parameter servers
    #[arg(long, env = "ANNULET_WORKERS", value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=WORKERS_MAX))]
    workers: Option<u64>,
    #[command(flatten)]
    shares: ShareFlags,
    /// Adapter: index, part of the name, or PCI id [default: the best]
    #[arg(long, env = "ANNULET_ADAPTER", value_name = "INDEX|NAME|PCI")]
    adapter: Option<String>,
    #[command(flatten)]
    pub plan: PlanFlags,
    #[command(flatten)]
    network: OverlapFlags,
    #[command(flatten)]
    output: OutputFlags,
    /// Write what this worker did when to timeline-RANK.json in --out, for ui.perfetto.dev or
    /// chrome://tracing: the first and the last few hundred steps
    #[arg(long, env = "ANNULET_TIMELINE", help_heading = "Output")]
    timeline: bool,
    #[command(flatten)]
    metrics: MetricsFlags,
}

/// # Safety
/// No other thread may be running: the environment is changed for drivers.
pub unsafe fn run(arguments: WorkerArguments) -> Result<(), CommandError> {
    if arguments.launched {
        return run_launched();
    }
    // SAFETY: the caller's promise.
    unsafe { run_by_hand(arguments) }
}

/// # Safety
/// As [`run`].
unsafe fn run_by_hand(arguments: WorkerArguments) -> Result<(), CommandError> {
    let started_at = Instant::now();
    if arguments.group.rank.is_none() && arguments.group.join.is_empty() {
        return Err(CommandError::Usage(
            "a worker needs --rank, --peers and --cluster-key, or --join and --cluster-key; \
             `annulet train` starts workers on this machine without them"
                .into(),
        ));
    };
    let network = arguments.shares.resolve(arguments.network.resolve()?);
    let mut plan = arguments.plan.plan(network, &arguments.output)?;
    // One that comes later has no rank yet; its own process tells its part from others'.
    let part = arguments.group.rank.map_or(u64::from(std::process::id()), |rank| rank as u64);
    plan.timeline = plan_timeline(&plan, arguments.timeline, part);
    plan.adapter = arguments.adapter;
    plan.cores = std::thread::available_parallelism().map_or(1, usize::from);
    // SAFETY: the caller's promise: no thread was started yet.
    unsafe { set_driver_environment(plan.config.kernels, plan.cores) };

    if !arguments.server.is_empty() {
        plan.folder = None;
        arguments.metrics.refuse()?;
        let workers = arguments.workers.map_or(0, |workers| workers as usize);
        let place = arguments.group.place_around(arguments.server, workers)?;
        let mut display = Display::new(arguments.plan.json);
        return Ok(run_served_worker(plan, place, &mut display)?);
    }
    let folder = plan.folder.as_mut().map(|folder| {
        folder.is_own = true;
        folder.path.clone()
    });
    let failure_timeout = plan.network.transport.failure_timeout;
    let stop = Arc::new(AtomicBool::new(false));
    let Some(place) = arguments.group.elastic_place(failure_timeout, stop.clone())? else {
        return Err(CommandError::Usage("a worker needs --cluster-key".into()));
    };
    let leave = place.inbox.0.clone();
    Interrupt::install_in_group(stop.clone(), move || {
        // A membership that is over has been left already.
        let _ = leave.send(Input::Leave);
    });
    let mut display = Display::new(arguments.plan.json);
    let exposition = arguments.metrics.start()?;
    let mut observer = exposition.observing(&mut display);
    match run_worker(plan, Membership::elastic(place), started_at, stop, &mut observer) {
        Err(error) if error.is_leave() => {
            note("left as it was asked to; the others go on");
            Ok(())
        }
        // Whoever did not write for all has no folder.
        result => report(&result?, arguments.plan.json, folder.filter(|folder| folder.exists())),
    }
}

fn run_launched() -> Result<(), CommandError> {
    let outcome = follow_orders();
    if let Err(error) = &outcome {
        say(&FromWorker::Failed { message: error.to_string(), exit_code: error.exit_code() });
        // The launcher tells the user; this process has told the launcher.
        std::process::exit(i32::from(error.exit_code()));
    }
    Ok(())
}

fn follow_orders() -> Result<(), CommandError> {
    let stop = Arc::new(AtomicBool::new(false));
    let (to_membership, inbox) = channel();
    let orders = listen_to_launcher(stop.clone(), to_membership.clone());
    let Ok(ToWorker::Order(order)) = orders.recv() else {
        return Err(CommandError::Usage("--launched is for `annulet train` alone".into()));
    };
    let WorkerOrder { id, joins, run_id, plan, .. } = *order;
    let key = ClusterKey::from_pem(&order.cluster_key_pem)?;
    let (socket, address) = bind_loopback()?;
    say(&FromWorker::Bound { addresses: vec![address] });
    let strangers = || CommandError::Usage("the launcher did not tell whom to work with".into());
    if let Some(servers) = plan.network.servers {
        let Ok(ToWorker::Peers { addresses }) = orders.recv() else { return Err(strangers()) };
        let workers = order.workers;
        let place = StarPlace {
            socket,
            key,
            node: id.0 as usize,
            workers,
            servers: peer_addresses(&addresses[workers.min(addresses.len())..]),
            run_id,
            join_timeout: order.join_timeout,
        };
        return work_around_servers(plan, servers, place, order.launched_at_us, stop);
    }
    let first = match joins {
        true => None,
        false => match orders.recv() {
            Ok(ToWorker::Begin { view }) => Some(*view),
            _ => return Err(strangers()),
        },
    };
    let rank = first.as_ref().and_then(|view| view.rank(id));
    let speaks = Arc::new(AtomicBool::new(rank == Some(0)));
    let settings = Settings {
        acceptors: Acceptors::Launcher,
        failure_timeout: plan.network.transport.failure_timeout,
        join_timeout: order.join_timeout,
        members_min: order.workers_min,
        members_max: order.workers_max,
    };
    let leave = to_membership.clone();
    Interrupt::install_in_group(stop.clone(), move || {
        // A membership that is over has been left already.
        let _ = leave.send(Input::Leave);
    });
    let membership = Membership::elastic(ElasticPlace {
        socket,
        key,
        run_id,
        me: Member { id, addresses: vec![address.to_string()] },
        first,
        settings,
        join_timeout: order.join_timeout,
        inbox: (to_membership, inbox),
        way: Way::Launcher(Box::new(ByLauncher)),
        stop: stop.clone(),
        speaks: speaks.clone(),
    });
    let mut tell = |body: Event| {
        if speaks.load(Ordering::Relaxed) {
            say(&FromWorker::Event { body });
        }
    };
    match run_worker(plan, membership, instant_of(order.launched_at_us), stop, &mut tell) {
        Err(error) if error.is_leave() => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

/// Messages go by way of the launcher.
struct ByLauncher;

impl Messenger for ByLauncher {
    fn send(&mut self, from: MemberId, to: Party, message: Message) {
        say(&FromWorker::Message { from, to, message });
    }
}

/// As a worker or a server of a star; the first server tells for all.
fn work_around_servers(
    plan: WorkerPlan,
    servers: ServerPlan,
    place: StarPlace,
    launched_at_us: u64,
    stop: Arc<AtomicBool>,
) -> Result<(), CommandError> {
    let (node, workers) = (place.node, place.workers);
    let mut tell = |body: Event| {
        if node == workers {
            say(&FromWorker::Event { body });
        }
    };
    if node < workers {
        run_served_worker(plan, place, &mut tell)?;
    } else {
        run_server(plan, servers, place, instant_of(launched_at_us), stop, &mut tell)?;
    }
    Ok(())
}

/// Reads the launcher's messages on a thread of their own. When the launcher is gone the process
/// ends at once: nobody is left to work for, and nothing may be left behind.
fn listen_to_launcher(stop: Arc<AtomicBool>, membership: Sender<Input>) -> Receiver<ToWorker> {
    // The order and the first view: no more than these two are queued.
    let (sender, receiver) = sync_channel(2);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(ToWorker::Stop) => stop.store(true, Ordering::Relaxed),
                // A membership that is over needs nothing more.
                Ok(ToWorker::Message { from, message }) => {
                    let _ = membership.send(Input::Message { from, message });
                }
                Ok(ToWorker::Exited { id, why }) => {
                    let _ = membership.send(Input::Exited { id, why });
                }
                Ok(message) => {
                    if sender.try_send(message).is_err() {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        std::process::exit(1);
    });
    receiver
}

/// A line to the launcher; one that cannot be told is gone, which ends this process elsewhere.
fn say(message: &FromWorker) {
    let mut line = serde_json::to_string(message).expect("a message serializes");
    line.push('\n');
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
}
