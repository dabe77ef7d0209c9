//! An emulated network card behind quinn's socket: packets leave and arrive when the
//! [`Card`] says. The packets themselves are the [`Port`]'s.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};

use super::port::Port;
use crate::protocol::link::{Card, LinkProfile};

/// A socket with an emulated card before it.
pub(super) struct EmulatedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    port: Arc<Port>,
}

impl fmt::Debug for EmulatedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmulatedSocket").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl EmulatedSocket {
    /// Puts a card before a socket; losses and jitter follow from the seed. `gso`: whether the
    /// system may be given several packets at once.
    ///
    /// # Errors
    /// If the system gives no thread to move packets, or does not know the socket's address.
    pub(super) fn new(
        inner: Arc<dyn AsyncUdpSocket>,
        profile: LinkProfile,
        seed: u64,
        gso: bool,
    ) -> io::Result<EmulatedSocket> {
        let port = Port::new(inner.clone(), Card::new(profile, seed), gso)?;
        Ok(EmulatedSocket { inner, port })
    }
}

impl AsyncUdpSocket for EmulatedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Room(self.port.clone()))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.port.send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.port.poll_recv(cx, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

impl Drop for EmulatedSocket {
    fn drop(&mut self) {
        self.port.close();
    }
}

/// Waits for room on the card.
struct Room(Arc<Port>);

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Room")
    }
}

impl UdpPoller for Room {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_room(cx).map(Ok)
    }
}
