//! A worker's QUIC endpoint: one UDP socket with transport settings that were measured.
//!
//! The settings' defaults are what won on loopback and on shaped links of 200 Mbit/s and
//! 1 Gbit/s; each field says what its value is good for.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{AckFrequencyConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig};
use quinn::{AsyncUdpSocket, ClientConfig, ServerConfig, VarInt};

use serde::{Deserialize, Serialize};

use super::NetError;
use super::congestion::Congestion;
use super::identity::{ClusterKey, SERVER_NAME};
use super::link::EmulatedSocket;
use crate::protocol::link::LinkProfile;

/// How connections behave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportSettings {
    /// A peer from which nothing has come for so long is lost.
    pub failure_timeout: Duration,
    /// While a collective is under way and nothing moves, a warning that names who is awaited is
    /// logged so often.
    pub stall_warning: Duration,
    /// Where nothing else is sent, something is sent so often: it keeps a quiet connection alive
    /// and open in every NAT on the way.
    pub keep_alive: Duration,
    /// Largest UDP payload tried on loopback, as far as a fixed window has room for such packets.
    /// Above [`GSO_MTU_MAX`] each packet is a batch of its own.
    pub loopback_mtu: u16,
    /// Largest UDP payload tried elsewhere: an Ethernet frame, less the headers of IPv6 and UDP. With
    /// [`gso`](Self::gso) at most [`GSO_MTU_MAX`].
    pub mtu: u16,
    /// Bytes in flight, for a stream, a connection and a sender. 16 MiB and more are slower.
    pub window: u32,
    /// The same on loopback, where nothing is under way: what was sent lies in the receiver's socket,
    /// whose buffer a few workers' windows together must not overrun.
    pub loopback_window: u32,
    pub congestion: Congestion,
    /// Whether a batch of packets is handed to the system at once (generic segmentation offload),
    /// where the system can: without it, sending small packets is three to four times slower.
    pub gso: bool,
    /// Packets that a receiver may take before it acknowledges: 9 to 26 % on small collectives.
    pub ack_threshold: u32,
    /// A network card and link to emulate.
    pub link: Option<LinkProfile>,
    /// `SO_RCVBUF`, as far as the system allows. A larger `SO_SNDBUF` overruns slow links, so that
    /// one is left alone.
    pub receive_buffer: usize,
}

impl Default for TransportSettings {
    fn default() -> Self {
        TransportSettings {
            failure_timeout: Duration::from_secs(3),
            stall_warning: Duration::from_secs(5),
            keep_alive: Duration::from_secs(1),
            loopback_mtu: 65_000,
            mtu: 1_452,
            window: 4 << 20,
            loopback_window: 1 << 20,
            congestion: Congestion::Cubic,
            gso: true,
            ack_threshold: 10,
            link: None,
            receive_buffer: 4 << 20,
        }
    }
}

/// The largest UDP payload that goes together with GSO. Ten of them are one batch, which must stay
/// below 64 KiB: a larger batch is swallowed by the kernel, counted as loss, and the connection
/// falls back to the smallest packets.
pub const GSO_MTU_MAX: u16 = 6_500;

/// QUIC's smallest packet, and the largest that fits into a UDP datagram.
const MTU_MIN: u16 = 1_200;
const MTU_MAX: u16 = 65_527;

impl TransportSettings {
    /// Refuses values with which connections would crawl or hang.
    ///
    /// # Errors
    /// If there is such a value; the text names it, says why, and what to do.
    pub fn validate(&self) -> Result<(), NetError> {
        let refuse = |text: String| Err(NetError::Settings(text));
        for mtu in [self.loopback_mtu, self.mtu] {
            if !(MTU_MIN..=MTU_MAX).contains(&mtu) {
                return refuse(format!(
                    "mtu {mtu}: QUIC packets have {MTU_MIN} to {MTU_MAX} bytes"
                ));
            }
        }
        if self.gso && self.mtu > GSO_MTU_MAX {
            return refuse(format!(
                "mtu {}: with GSO ten packets are one batch, which the system loses above 64 KiB; \
                 take at most {GSO_MTU_MAX}, or turn GSO off",
                self.mtu
            ));
        }
        if let Congestion::Fixed(bytes) = self.congestion {
            // A sender that may not send as much as its receiver may leave unacknowledged waits for
            // the receiver's timer in every round.
            let least = self.window_packets_min().saturating_mul(self.mtu.into());
            if bytes < least {
                return refuse(format!(
                    "congestion fixed:{bytes}: receivers acknowledge every {} packets of up to {} \
                     bytes, so with less than {least} bytes in flight each round would wait for a \
                     timer; take fixed:{least} or more, or a smaller mtu",
                    self.ack_threshold, self.mtu
                ));
            }
        }
        Ok(())
    }

    /// What a window must have room for, or its sender waits for its receiver's timer.
    fn window_packets_min(&self) -> u32 {
        self.ack_threshold.saturating_add(2)
    }

    /// The largest UDP payload that is tried on loopback.
    fn loopback_mtu(&self) -> u16 {
        let fits = match self.congestion {
            Congestion::Cubic => u32::MAX,
            Congestion::Fixed(bytes) => bytes / self.window_packets_min(),
        };
        self.loopback_mtu.min(u16::try_from(fits).unwrap_or(u16::MAX)).max(MTU_MIN)
    }
}

/// A QUIC endpoint of a worker, server and client at once, which speaks to holders of the same
/// cluster key alone.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    quinn: quinn::Endpoint,
    loopback: Configs,
    elsewhere: Configs,
}

#[derive(Clone, Debug)]
struct Configs {
    client: ClientConfig,
    server: Arc<ServerConfig>,
}

impl Endpoint {
    /// Takes over a bound socket.
    ///
    /// Must be called within a tokio runtime, which then drives the endpoint.
    pub(super) fn new(
        socket: UdpSocket,
        key: &ClusterKey,
        settings: &TransportSettings,
    ) -> Result<Endpoint, NetError> {
        settings.validate()?;
        // Best effort: without privileges the system caps the size, and says nothing.
        if let Err(error) =
            socket2::SockRef::from(&socket).set_recv_buffer_size(settings.receive_buffer)
        {
            tracing::debug!("the receive buffer keeps its size: {error}");
        }
        let mut config = EndpointConfig::default();
        // A peer never sends larger datagrams than this side says that it takes.
        config
            .max_udp_payload_size(settings.loopback_mtu.max(settings.mtu))
            .map_err(|error| NetError::Settings(format!("packet size: {error}")))?;
        let loopback =
            Configs::new(key, settings, settings.loopback_mtu(), settings.loopback_window)?;
        let elsewhere = Configs::new(key, settings, settings.mtu, settings.window)?;
        let link = settings.link.filter(|link| !link.is_transparent());
        // An emulated link has the packets of a real one, wherever it leads.
        let loopback = if link.is_some() { elsewhere.clone() } else { loopback };
        let server = ServerConfig::clone(&elsewhere.server);
        // Endpoints of one machine must not lose the same packets.
        let seed = socket.local_addr().map_or(0, |address| u64::from(address.port()));
        let mut socket = wrap(socket).map_err(NetError::Socket)?;
        if let Some(profile) = link {
            let emulated = EmulatedSocket::new(socket, profile, seed, settings.gso)
                .map_err(NetError::Thread)?;
            socket = Arc::new(emulated);
        }
        let runtime = Arc::new(quinn::TokioRuntime);
        let quinn =
            quinn::Endpoint::new_with_abstract_socket(config, Some(server), socket, runtime)
                .map_err(NetError::Socket)?;
        Ok(Endpoint { quinn, loopback, elsewhere })
    }

    /// Connects to an address; the handshake has only begun.
    pub(super) fn connect(
        &self,
        address: SocketAddr,
    ) -> Result<quinn::Connecting, quinn::ConnectError> {
        let client = self.configs(address).client.clone();
        self.quinn.connect_with(client, address, SERVER_NAME)
    }

    /// Waits for a connection from outside, whose address has been proven; the handshake has only
    /// begun. `None` once closed.
    pub(super) async fn accept(
        &self,
    ) -> Option<(SocketAddr, Result<quinn::Connecting, quinn::ConnectionError>)> {
        loop {
            let incoming = self.quinn.accept().await?;
            // A stranger who gives false addresses never answers from them, and so takes no place
            // among the handshakes. It costs a round trip, once a connection.
            if incoming.remote_address_validated() {
                let address = incoming.remote_address();
                return Some((address, incoming.accept_with(self.configs(address).server.clone())));
            }
            incoming.retry().expect("an address that is not validated may be asked to retry");
        }
    }

    /// From now on, turns away whoever connects.
    pub(super) fn refuse_connections(&self) {
        self.quinn.set_server_config(None);
    }

    /// Closes all connections, and tells all peers why.
    pub(super) fn close(&self, code: VarInt, reason: &[u8]) {
        self.quinn.close(code, reason);
    }

    /// Waits until the peers cannot miss that their connections were closed.
    pub(super) async fn drained(&self) {
        self.quinn.wait_idle().await;
    }

    fn configs(&self, peer: SocketAddr) -> &Configs {
        if peer.ip().to_canonical().is_loopback() { &self.loopback } else { &self.elsewhere }
    }
}

/// Makes a bound socket quinn's, within the runtime that then drives it.
#[cfg(unix)]
fn wrap(socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    Ok(Arc::new(super::socket::QuietSocket::new(socket)?))
}

#[cfg(not(unix))]
fn wrap(socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
    quinn::Runtime::wrap_udp_socket(&quinn::TokioRuntime, socket)
}

impl Configs {
    fn new(
        key: &ClusterKey,
        settings: &TransportSettings,
        mtu: u16,
        window: u32,
    ) -> Result<Configs, NetError> {
        let transport = Arc::new(transport(settings, mtu, window)?);
        let unfit = |error: &dyn std::fmt::Display| NetError::Settings(format!("TLS: {error}"));
        let client = key.client_config().map_err(|error| unfit(&error))?;
        let client = QuicClientConfig::try_from(client).map_err(|error| unfit(&error))?;
        let mut client = ClientConfig::new(Arc::new(client));
        client.transport_config(transport.clone());
        let server = key.server_config().map_err(|error| unfit(&error))?;
        let server = QuicServerConfig::try_from(server).map_err(|error| unfit(&error))?;
        let mut server = ServerConfig::with_crypto(Arc::new(server));
        server.transport_config(transport);
        Ok(Configs { client, server: Arc::new(server) })
    }
}

/// Retransmission of the first packet: a peer whose process has just started is found sooner than
/// with QUIC's 333 ms, and on no path does a packet take longer without retransmissions anyway.
const INITIAL_RTT: Duration = Duration::from_millis(100);

/// Packets that a new connection may have in flight. It must be well above the number that a
/// receiver may leave unacknowledged, or the first rounds each wait for the receiver's timer.
const INITIAL_WINDOW_PACKETS: u64 = 32;

/// The search for the packet size ends where it would change by less than this.
const PROBE_STEP_MIN: u16 = 20;

/// A receiver's timer for what it may leave unacknowledged. It is part of how long a sender waits
/// before it takes the last packet of a vector for lost; QUIC's 25 ms are many training steps.
const ACK_DELAY_MAX: Duration = Duration::from_millis(5);

fn transport(
    settings: &TransportSettings,
    mtu: u16,
    window: u32,
) -> Result<TransportConfig, NetError> {
    let idle_timeout = IdleTimeout::try_from(settings.failure_timeout)
        .map_err(|error| NetError::Settings(format!("failure timeout: {error}")))?;
    // A lost keep-alive or two must not look like a dead peer.
    let keep_alive = settings.keep_alive.min(settings.failure_timeout / 4);
    let mut discovery = MtuDiscoveryConfig::default();
    // A handful of probes finds the largest packet, or one nearly as large.
    discovery.upper_bound(mtu).minimum_change(((mtu - MTU_MIN) / 8).max(PROBE_STEP_MIN));
    let mut ack_frequency = AckFrequencyConfig::default();
    ack_frequency.ack_eliciting_threshold(settings.ack_threshold.into());
    ack_frequency.max_ack_delay(Some(ACK_DELAY_MAX));
    let initial_window = INITIAL_WINDOW_PACKETS * u64::from(mtu);
    let mut transport = TransportConfig::default();
    transport
        .congestion_controller_factory(settings.congestion.factory(initial_window))
        .enable_segmentation_offload(settings.gso && mtu <= GSO_MTU_MAX)
        .max_idle_timeout(Some(idle_timeout))
        .keep_alive_interval(Some(keep_alive))
        .initial_rtt(INITIAL_RTT)
        .mtu_discovery_config(Some(discovery))
        .ack_frequency_config(Some(ack_frequency))
        .stream_receive_window(window.into())
        .receive_window(window.into())
        .send_window(window.into())
        // The connecting side opens one stream, for both directions.
        .max_concurrent_bidi_streams(1u8.into())
        .max_concurrent_uni_streams(0u8.into())
        .datagram_receive_buffer_size(None);
    Ok(transport)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_would_crawl_or_hang_are_refused() {
        let settings = TransportSettings::default();
        settings.validate().expect("the defaults");
        let with_mtu = |mtu, gso| TransportSettings {
            loopback_mtu: mtu,
            mtu,
            gso,
            ..TransportSettings::default()
        };
        let fixed = |bytes| TransportSettings {
            congestion: Congestion::Fixed(bytes),
            ..TransportSettings::default()
        };
        for (settings, part) in [
            (with_mtu(1_199, true), "mtu 1199: QUIC packets have 1200 to 65527"),
            (with_mtu(65_528, false), "mtu 65528: QUIC packets have"),
            (with_mtu(6_501, true), "mtu 6501: with GSO"),
            (fixed(17_423), "take fixed:17424 or more"),
        ] {
            let error = settings.validate().expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
        for settings in [with_mtu(1_200, true), with_mtu(65_527, false), fixed(17_424)] {
            settings.validate().expect("a value that works");
        }
        // On loopback packets are as large as a fixed window allows.
        assert_eq!(TransportSettings::default().loopback_mtu(), 65_000);
        assert_eq!(fixed(780_000).loopback_mtu(), 65_000);
        assert_eq!(fixed(17_424).loopback_mtu(), 1_452);
    }
}
