//! The UDP socket below quinn on Unix: it wakes its thread for packets that arrived, and for nothing
//! else.
//!
//! Quinn's own socket also asks to be told whenever there is room to send. On loopback that is
//! after every packet, so each one costs a system call and a turn of the runtime for no news; and
//! after each batch of packets it asks the system once more whether there are others. Here room is
//! asked for only once the socket was full, and a batch that has not filled the buffers was the
//! last.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct QuietSocket {
    /// Registered for reading alone.
    io: AsyncFd<UdpSocket>,
    state: UdpSocketState,
    /// The last packet found no room.
    full: AtomicBool,
}

/// Where one call takes several packets, as many as there are, one that has taken fewer than it had
/// buffers for has seen the end of the queue.
const TAKES_ALL: bool = cfg!(any(target_os = "linux", target_os = "android"));

impl QuietSocket {
    /// Takes over a bound socket.
    ///
    /// Must be called within a tokio runtime, which then drives it.
    pub(super) fn new(socket: UdpSocket) -> io::Result<QuietSocket> {
        let state = UdpSocketState::new((&socket).into())?;
        let io = register(socket, Interest::READABLE)?;
        Ok(QuietSocket { io, state, full: AtomicBool::new(false) })
    }
}

#[expect(deprecated, reason = "its successor is unsafe, and a `UdpSocket` keeps its descriptor")]
fn register(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
    AsyncFd::with_interest(socket, interest)
}

fn would_block<T>(outcome: &io::Result<T>) -> bool {
    matches!(outcome, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

impl AsyncUdpSocket for QuietSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Room { socket: self, awaited: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.state.send(self.io.get_ref().into(), transmit);
        if would_block(&sent) {
            self.full.store(true, Ordering::Relaxed);
        }
        sent
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut readable = ready!(self.io.poll_read_ready(cx))?;
            let received = self.state.recv(self.io.get_ref().into(), buffers, meta);
            let all = matches!(received, Ok(count) if TAKES_ALL && count < buffers.len());
            // Packets that arrive from now on are a new event.
            if all || would_block(&received) {
                readable.clear_ready();
            }
            if !would_block(&received) {
                return Poll::Ready(received);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.get_ref().local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

/// Waits for room in a socket that is full.
#[derive(Debug)]
struct Room {
    socket: Arc<QuietSocket>,
    /// The same socket, registered for writing while room is awaited.
    awaited: Option<AsyncFd<UdpSocket>>,
}

impl UdpPoller for Room {
    fn poll_writable(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Room { socket, awaited } = &mut *self;
        if socket.full.load(Ordering::Relaxed) {
            let writable = match awaited {
                Some(writable) => writable,
                None => {
                    let same = socket.io.get_ref().try_clone()?;
                    awaited.insert(register(same, Interest::WRITABLE)?)
                }
            };
            let _ = ready!(writable.poll_write_ready(cx))?;
            socket.full.store(false, Ordering::Relaxed);
        }
        *awaited = None;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn local() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port on loopback");
        let address = socket.local_addr().expect("a bound socket");
        (socket, address)
    }

    fn inside(test: impl Future<Output = ()>) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test);
    }

    async fn receive(socket: &QuietSocket, room_for: usize) -> Vec<u8> {
        let mut buffers = vec![[0; 16]; room_for];
        let mut meta = vec![RecvMeta::default(); room_for];
        let mut slices: Vec<_> = buffers.iter_mut().map(|b| IoSliceMut::new(b)).collect();
        let count = poll_fn(|cx| socket.poll_recv(cx, &mut slices, &mut meta)).await;
        buffers.iter().take(count.expect("packets")).map(|buffer| buffer[0]).collect()
    }

    #[test]
    fn no_packet_is_forgotten_whenever_it_comes() {
        inside(async {
            let ((near, to), (far, _)) = (local(), local());
            let socket = QuietSocket::new(near).expect("a socket");
            let mut sent = 0;
            // Fewer packets than buffers, as many, and more; and then one that is awaited already.
            for burst in [1, 4, 6, 0] {
                let mut received = Vec::new();
                let first = sent;
                for _ in 0..burst {
                    far.send_to(&[sent], to).expect("room for a packet");
                    sent += 1;
                }
                while received.len() < burst {
                    received.extend(receive(&socket, 4).await);
                }
                let far = far.try_clone().expect("the same socket");
                let later = std::thread::spawn(move || far.send_to(&[sent], to));
                received.extend(receive(&socket, 4).await);
                later.join().expect("no panic").expect("room for a packet");
                sent += 1;
                assert_eq!(received, (first..sent).collect::<Vec<_>>());
            }
        });
    }

    #[test]
    fn a_socket_that_was_full_is_written_to_once_it_has_room() {
        inside(async {
            let ((near, _), (far, to)) = (local(), local());
            let socket = Arc::new(QuietSocket::new(near).expect("a socket"));
            let mut room = socket.clone().create_io_poller();
            socket.full.store(true, Ordering::Relaxed);
            poll_fn(|cx| room.as_mut().poll_writable(cx)).await.expect("room");
            assert!(!socket.full.load(Ordering::Relaxed));
            let transmit = Transmit {
                destination: to,
                ecn: None,
                contents: &[7],
                segment_size: None,
                src_ip: None,
            };
            socket.try_send(&transmit).expect("room");
            let mut buffer = [0; 16];
            assert_eq!(far.recv(&mut buffer).expect("a packet"), 1);
            assert_eq!(buffer[0], 7);
        });
    }
}
