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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    use quinn::Runtime as _;

    use super::*;

    /// 10 ms each at 1 Mbit/s, with their headers, and a short one.
    const LENGTHS: [usize; 4] = [1_208, 1_208, 1_208, 100];

    fn in_runtime(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    fn emulated(link: &str) -> EmulatedSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = quinn::TokioRuntime.wrap_udp_socket(socket).unwrap();
        EmulatedSocket::new(socket, link.parse().unwrap(), 0, true).unwrap()
    }

    /// Sends one batch of [`LENGTHS`], each packet filled with its number.
    fn send_batch(from: &EmulatedSocket, to: SocketAddr) {
        let contents: Vec<u8> =
            LENGTHS.iter().zip(0..).flat_map(|(&len, fill)| vec![fill; len]).collect();
        from.try_send(&Transmit {
            destination: to,
            ecn: None,
            contents: &contents,
            segment_size: Some(LENGTHS[0]),
            src_ip: None,
        })
        .unwrap();
    }

    #[test]
    fn cards_of_one_process_hand_packets_over_in_order_and_not_too_soon() {
        in_runtime(async {
            let (sender, receiver) = (emulated("1mbit/5ms"), emulated("1mbit"));
            let began = Instant::now();
            send_batch(&sender, receiver.local_addr().unwrap());
            let mut received = Vec::new();
            let mut buffers = vec![vec![0; 2_000]; 8];
            while received.len() < LENGTHS.len() {
                let mut slices: Vec<_> = buffers.iter_mut().map(|b| IoSliceMut::new(b)).collect();
                let mut meta = [RecvMeta::default(); 8];
                let count = poll_fn(|cx| receiver.poll_recv(cx, &mut slices, &mut meta)).await;
                drop(slices);
                for (buffer, meta) in buffers.iter().zip(&meta).take(count.unwrap()) {
                    assert_eq!(meta.addr, sender.local_addr().unwrap());
                    assert!(buffer[..meta.len].iter().all(|&byte| byte == buffer[0]));
                    received.push((usize::from(buffer[0]), meta.len));
                }
            }
            let expected: Vec<_> = LENGTHS.into_iter().enumerate().collect();
            assert_eq!(received, expected);
            // The long ones leave one after another, and the last of them is taken in.
            assert!(began.elapsed() >= Duration::from_millis(3 * 10 + 5 + 10));
        });
    }

    #[test]
    fn packets_to_other_processes_go_through_the_kernel_each_as_it_is() {
        in_runtime(async {
            let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
            receiver.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            // So fast that all are due together.
            let sender = emulated("10gbit");
            // The runtime has yet to learn that the socket can be written to.
            let mut room = sender.inner.clone().create_io_poller();
            poll_fn(|cx| room.as_mut().poll_writable(cx)).await.unwrap();
            send_batch(&sender, receiver.local_addr().unwrap());
            for (fill, len) in LENGTHS.into_iter().enumerate() {
                let mut buffer = [0; 2_000];
                let (received, from) = receiver.recv_from(&mut buffer).unwrap();
                assert_eq!((received, from), (len, sender.local_addr().unwrap()));
                assert!(buffer[..len].iter().all(|&byte| usize::from(byte) == fill));
            }
        });
    }
}
