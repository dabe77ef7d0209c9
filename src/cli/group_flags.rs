//! The flags that give a worker its place in a group over several machines.

use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::Args;
use sha2::{Digest, Sha256};
use socket2::{Domain, Socket, Type};

use crate::launch::LaunchError;
use crate::launch::elastic::{ElasticPlace, Way};
use crate::launch::star::StarPlace;
use crate::launch::worker::GroupPlace;
use crate::net::PeerAddress;
use crate::net::identity::ClusterKey;
use crate::protocol::membership::{Acceptors, Member, MemberId, Settings, View};

use super::CommandError;
use super::plan_flags::WORKERS_MAX;

#[derive(Debug, Args)]
#[command(next_help_heading = "Group")]
pub struct GroupFlags {
    /// This worker's place in --peers, from 0
    #[arg(long, env = "ANNULET_RANK", requires = "cluster_key")]
    pub rank: Option<usize>,
    /// Every worker's HOST:PORT, in the order of the ranks, the same list for all
    #[arg(long, env = "ANNULET_PEERS", value_delimiter = ',', value_name = "HOST:PORT,...")]
    pub peers: Vec<PeerAddress>,
    /// Instead of --peers: come into a run under way, by the HOST:PORT of any of its workers
    #[arg(
        long,
        env = "ANNULET_JOIN",
        value_delimiter = ',',
        value_name = "HOST:PORT,...",
        conflicts_with_all = ["peers", "rank"],
        requires = "cluster_key"
    )]
    pub join: Vec<PeerAddress>,
    /// With --join: the HOST:PORT at which the others reach this worker [default: the address at
    /// which the worker that it comes to sees it]
    #[arg(long, env = "ANNULET_ADVERTISE", value_name = "HOST:PORT", requires = "join")]
    pub advertise: Option<PeerAddress>,
    /// Stop, with a checkpoint, when fewer workers than this are left
    #[arg(long, env = "ANNULET_MIN_WORKERS", value_name = "WORKERS", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=WORKERS_MAX))]
    pub min_workers: u64,
    /// Let nobody come when there are so many workers
    #[arg(long, env = "ANNULET_MAX_WORKERS", value_name = "WORKERS", default_value_t = WORKERS_MAX,
          value_parser = clap::value_parser!(u64).range(1..=WORKERS_MAX))]
    pub max_workers: u64,
    /// The file that `annulet key` made, the same for all
    #[arg(long, env = "ANNULET_CLUSTER_KEY", value_name = "FILE")]
    pub cluster_key: Option<PathBuf>,
    /// Address to listen on [default: the port of this worker's entry in --peers, on all
    /// interfaces]
    #[arg(long, env = "ANNULET_LISTEN", value_name = "IP:PORT")]
    pub listen: Option<SocketAddr>,
    /// Seconds to wait for the other workers to appear, or to be let in
    #[arg(long, env = "ANNULET_JOIN_TIMEOUT", value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub join_timeout: u64,
}

impl GroupFlags {
    /// The place around parameter servers that the flags give, as one of so many workers.
    pub fn place_around(
        self,
        servers: Vec<PeerAddress>,
        workers: usize,
    ) -> Result<StarPlace, CommandError> {
        let (Some(rank), Some(key_file)) = (self.rank, &self.cluster_key) else {
            return Err(CommandError::Usage("--server needs --rank and --cluster-key".into()));
        };
        if rank >= workers {
            return Err(CommandError::Usage(format!(
                "--rank {rank}: among {workers} workers ranks go from 0 to {}",
                workers.saturating_sub(1)
            )));
        }
        refuse_some_loopback("--server", &servers)?;
        Ok(StarPlace {
            key: ClusterKey::read(key_file)?,
            // The worker connects to the servers; nobody needs to know its port.
            socket: listen(self.listen, 0)?,
            node: rank,
            workers,
            run_id: run_id_of(&servers),
            servers: servers.into_iter().map(|server| vec![server]).collect(),
            join_timeout: Duration::from_secs(self.join_timeout),
        })
    }

    /// The place that the flags give among workers that go on without those that are lost; `None` if
    /// they give none. `stop` ends the run for all.
    pub fn elastic_place(
        self,
        failure_timeout: Duration,
        stop: Arc<AtomicBool>,
    ) -> Result<Option<ElasticPlace>, CommandError> {
        let Some(key_file) = &self.cluster_key else { return Ok(None) };
        let (least, most) = (self.min_workers as usize, self.max_workers as usize);
        if least.max(self.peers.len()) > most {
            return Err(CommandError::Usage(format!(
                "--max-workers {most}: there are to be {} at least; give a larger number",
                least.max(self.peers.len())
            )));
        }
        refuse_some_loopback("--peers", &self.peers)?;
        refuse_some_loopback("--advertise", self.join.iter().chain(&self.advertise))?;
        let member = |(id, peer): (u64, &PeerAddress)| Member {
            id: MemberId(id),
            addresses: vec![peer.to_string()],
        };
        let (me, first, port) = match self.rank {
            Some(rank) => {
                let port = self.own_address(rank)?.port();
                let view = View::first((0..).zip(&self.peers).map(member).collect(), 0);
                (view.members[rank].clone(), Some(view), port)
            }
            None if self.join.is_empty() => return Ok(None),
            None => {
                let id = MemberId(u64::from(random_number()));
                let addresses = self.advertise.iter().map(ToString::to_string).collect();
                (Member { id, addresses }, None, self.advertise.as_ref().map_or(0, |a| a.port()))
            }
        };
        let settings = Settings {
            acceptors: Acceptors::Members,
            failure_timeout,
            join_timeout: Duration::from_secs(self.join_timeout),
            members_min: least,
            members_max: most,
        };
        Ok(Some(ElasticPlace {
            key: ClusterKey::read(key_file)?,
            socket: listen(self.listen, port)?,
            run_id: run_id_of(&self.peers),
            me,
            first,
            join_timeout: settings.join_timeout,
            settings,
            inbox: channel(),
            way: Way::Network { contacts: self.join },
            stop,
            speaks: Arc::default(),
        }))
    }

    /// The place that the flags give, its socket bound; `None` if they give none.
    pub fn place(self) -> Result<Option<GroupPlace>, CommandError> {
        let (Some(rank), Some(key_file)) = (self.rank, &self.cluster_key) else { return Ok(None) };
        let own = self.own_address(rank)?;
        refuse_some_loopback("--peers", &self.peers)?;
        Ok(Some(GroupPlace {
            key: ClusterKey::read(key_file)?,
            socket: listen(self.listen, own.port())?,
            rank,
            run_id: run_id_of(&self.peers),
            peers: self.peers.into_iter().map(|peer| vec![peer]).collect(),
            join_timeout: Duration::from_secs(self.join_timeout),
        }))
    }

    fn own_address(&self, rank: usize) -> Result<&PeerAddress, CommandError> {
        if self.peers.is_empty() {
            return Err(CommandError::Usage(
                "--rank needs --peers, the list it is a place in".into(),
            ));
        }
        self.peers.get(rank).ok_or_else(|| {
            CommandError::Usage(format!(
                "--rank {rank}: --peers lists {} workers, so ranks go from 0 to {}",
                self.peers.len(),
                self.peers.len().saturating_sub(1)
            ))
        })
    }
}

/// Refuses addresses of which some mean another machine to each machine, and others do not: whoever
/// is elsewhere would look for such a worker on its own machine.
pub fn refuse_some_loopback<'a>(
    flag: &str,
    addresses: impl IntoIterator<Item = &'a PeerAddress>,
) -> Result<(), CommandError> {
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| is_loopback(address));
    match (here.first(), elsewhere.first()) {
        (Some(here), Some(elsewhere)) => Err(CommandError::Usage(format!(
            "{flag}: {here} is a loopback address, which leads every machine to itself, and \
             {elsewhere} is not; give the address at which the others reach that machine"
        ))),
        _ => Ok(()),
    }
}

fn is_loopback(address: &PeerAddress) -> bool {
    let text = address.to_string();
    let host = text.rsplit_once(':').map_or(&*text, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Binds to the address that was asked for, or else to a port on all interfaces.
pub fn listen(address: Option<SocketAddr>, port: u16) -> Result<UdpSocket, CommandError> {
    let bind = |address: String, source| LaunchError::Bind { address, source };
    if let Some(address) = address {
        return UdpSocket::bind(address).map_err(|e| bind(address.to_string(), e).into());
    }
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

/// Tells a worker that comes from all others: no worker that a run begins with has such a number.
fn random_number() -> u32 {
    // The standard library's hashers are keyed by the system's randomness.
    let random = std::hash::RandomState::new().build_hasher().finish() as u32;
    random | 1 << 31
}

/// Those that were given the same list are in the same run.
pub fn run_id_of(peers: &[PeerAddress]) -> String {
    let names: Vec<String> = peers.iter().map(ToString::to_string).collect();
    let digest = Sha256::digest(names.join(","));
    crate::train::metrics::hex(&digest[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_goes_with_loopback_alone() {
        let check = |texts: &[&str]| {
            let addresses: Vec<PeerAddress> =
                texts.iter().map(|text| text.parse().unwrap()).collect();
            refuse_some_loopback("--peers", &addresses)
        };
        assert!(check(&["127.0.0.1:1", "[::1]:2", "localhost:3", "[::ffff:127.0.0.1]:4"]).is_ok());
        assert!(check(&["10.0.0.1:1", "b:2"]).is_ok());
        for loopback in ["127.0.0.1:1", "[::1]:1", "localhost:1"] {
            let text = check(&["10.0.0.1:1", loopback]).unwrap_err().to_string();
            assert!(text.contains(loopback) && text.contains("10.0.0.1:1"), "{text}");
        }
    }
}
