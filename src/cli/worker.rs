//! `annulet worker`: one worker of a group over several machines, or a child of `annulet train`.

use std::io::{BufRead, Write};
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::{Duration, Instant};

use clap::Args;
use sha2::{Digest, Sha256};
use socket2::{Domain, Socket, Type};

use crate::launch::LaunchError;
use crate::launch::driver_environment::set_driver_environment;
use crate::launch::elastic::{ElasticPlace, Input};
use crate::launch::pipe::{FromWorker, ToWorker, WorkerOrder, instant_of};
use crate::launch::threads::bind_loopback;
use crate::launch::worker::{GroupPlace, Membership, run_worker};
use crate::net::PeerAddress;
use crate::net::identity::ClusterKey;
use crate::protocol::membership::{Acceptors, Member, Settings};
use crate::train::event::Event;

use super::CommandError;
use super::interrupt::Interrupt;
use super::network_flags::NetworkFlags;
use super::progress::Display;
use super::run_flags::{OutputFlags, RunFlags};
use super::train::{plan_worker, report};

#[derive(Debug, Args)]
pub struct WorkerArguments {
    /// Be a child of `annulet train`: orders come on standard input
    #[arg(long, hide = true)]
    launched: bool,
    /// This worker's place in --peers, from 0
    #[arg(long, env = "ANNULET_RANK", required_unless_present = "launched")]
    rank: Option<usize>,
    /// Every worker's HOST:PORT, in the order of the ranks, the same list for all
    #[arg(
        long,
        env = "ANNULET_PEERS",
        value_delimiter = ',',
        value_name = "HOST:PORT,...",
        required_unless_present = "launched"
    )]
    peers: Vec<PeerAddress>,
    /// The file that `annulet key` made, the same for all
    #[arg(
        long,
        env = "ANNULET_CLUSTER_KEY",
        value_name = "FILE",
        required_unless_present = "launched"
    )]
    cluster_key: Option<PathBuf>,
    /// Address to listen on [default: the port of this worker's entry in --peers, on all
    /// interfaces]
    #[arg(long, env = "ANNULET_LISTEN", value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
    /// Seconds to wait for the other workers to appear
    #[arg(long, env = "ANNULET_JOIN_TIMEOUT", value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..))]
    join_timeout: u64,
    /// Adapter: index, part of the name, or PCI id [default: the best]
    #[arg(long, env = "ANNULET_ADAPTER", value_name = "INDEX|NAME|PCI")]
    adapter: Option<String>,
    /// Read flags that are not given from this TOML file, such as a run's config.toml
    #[arg(long, env = "ANNULET_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print run.json on stdout at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub run: RunFlags,
    #[command(flatten)]
    network: NetworkFlags,
    /// Reduce no bucket before all are computed, for comparison
    #[arg(long, env = "ANNULET_NO_OVERLAP", help_heading = "Network")]
    no_overlap: bool,
    #[command(flatten)]
    output: OutputFlags,
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

/// How long a launched worker waits for its siblings: they start in the same moment, but their
/// kernels are compiled on the same cores.
const LAUNCHED_JOIN_TIMEOUT: Duration = Duration::from_secs(120);

/// # Safety
/// As [`run`].
unsafe fn run_by_hand(arguments: WorkerArguments) -> Result<(), CommandError> {
    let started_at = Instant::now();
    let WorkerArguments { peers, output, .. } = arguments;
    // clap has made sure that both are there.
    let (Some(rank), Some(key_file)) = (arguments.rank, &arguments.cluster_key) else {
        return Err(CommandError::Usage("--rank and --cluster-key are required".into()));
    };
    let Some(own) = peers.get(rank) else {
        return Err(CommandError::Usage(format!(
            "--rank {rank}: --peers lists {} workers, so ranks go from 0 to {}",
            peers.len(),
            peers.len().saturating_sub(1)
        )));
    };
    let network = arguments.network.resolve(!arguments.no_overlap)?;
    let mut plan = plan_worker(&arguments.run, &arguments.config, network, &output)?;
    plan.adapter = arguments.adapter;
    plan.cores = std::thread::available_parallelism().map_or(1, usize::from);
    // SAFETY: the caller's promise: no thread was started yet.
    unsafe { set_driver_environment(plan.config.kernels, plan.cores) };

    // One worker writes for all; the state is the same on each.
    if rank != 0 {
        plan.folder = None;
    }
    let folder = plan.folder.as_ref().map(|folder| folder.path.clone());
    let interrupt = Interrupt::install(true);
    let mut display = Display::new(arguments.json);
    let membership = if peers.len() == 1 {
        Membership::solo()
    } else {
        Membership::group(GroupPlace {
            key: ClusterKey::read(key_file)?,
            socket: listen(arguments.listen, own)?,
            rank,
            run_id: run_id_of(&peers),
            peers: peers.into_iter().map(|peer| vec![peer]).collect(),
            join_timeout: Duration::from_secs(arguments.join_timeout),
        })
    };
    let summary = run_worker(plan, membership, started_at, interrupt.stop.clone(), &mut display)?;
    report(&summary, arguments.json, folder)
}

/// Binds where this worker is to be reached.
fn listen(address: Option<SocketAddr>, own: &PeerAddress) -> Result<UdpSocket, CommandError> {
    let bind = |address: String, source| LaunchError::Bind { address, source };
    if let Some(address) = address {
        return UdpSocket::bind(address).map_err(|e| bind(address.to_string(), e).into());
    }
    let port = own.port();
    dual_stack(port)
        .or_else(|_| UdpSocket::bind(("0.0.0.0", port)))
        .map_err(|source| bind(format!("port {port}"), source).into())
}

/// A socket for IPv6 and IPv4, where the system has both.
fn dual_stack(port: u16) -> std::io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, None)?;
    socket.set_only_v6(false)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    Ok(socket.into())
}

/// Workers that were given the same list are in the same run.
fn run_id_of(peers: &[PeerAddress]) -> String {
    let names: Vec<String> = peers.iter().map(ToString::to_string).collect();
    let digest = Sha256::digest(names.join(","));
    crate::train::metrics::hex(&digest[..8])
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
    let first = match joins {
        true => None,
        false => match orders.recv() {
            Ok(ToWorker::Begin { view }) => Some(*view),
            _ => {
                let text = "the launcher did not tell whom to work with";
                return Err(CommandError::Usage(text.into()));
            }
        },
    };
    let rank = first.as_ref().and_then(|view| view.rank(id));
    let speaks = Arc::new(AtomicBool::new(rank == Some(0)));
    let settings = Settings {
        acceptors: Acceptors::Launcher,
        failure_timeout: plan.network.transport.failure_timeout,
        join_timeout: LAUNCHED_JOIN_TIMEOUT,
        members_min: order.workers_min,
        members_max: order.workers_max,
    };
    let membership = Membership::elastic(ElasticPlace {
        socket,
        key,
        run_id,
        me: Member { id, addresses: vec![address.to_string()] },
        first,
        settings,
        join_timeout: LAUNCHED_JOIN_TIMEOUT,
        inbox: (to_membership, inbox),
        send: Box::new(|to, message| say(&FromWorker::Message { to, message })),
        speaks: speaks.clone(),
    });
    let mut tell = |body: Event| {
        if speaks.load(Ordering::Relaxed) {
            say(&FromWorker::Event { body });
        }
    };
    run_worker(plan, membership, instant_of(order.launched_at_us), stop, &mut tell)?;
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
