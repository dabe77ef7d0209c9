//! The ring all-reduce over plain TCP on the loopback interface: the same state machine, without
//! QUIC, encryption and peers that may fail. What `bench collective` is compared with.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::BenchError;
use super::collective::AllReduce;
use crate::protocol::collective::{Reduction, StreamFault};
use crate::protocol::ring::RingAllReduce;

/// As much is read at once as the QUIC driver does.
const BUFFER_WORDS: usize = 16 << 10;

/// One worker of the ring.
pub struct TcpRing {
    rank: usize,
    world: usize,
    runtime: Runtime,
    streams: Streams,
}

/// The connections with the neighbours.
struct Streams {
    next: TcpStream,
    previous: TcpStream,
    /// Words as they arrived, and how many of its bytes are filled and not yet used.
    buffer: Box<[u32]>,
    filled: usize,
}

impl TcpRing {
    /// A socket that the previous worker connects to, and its address.
    pub fn listen() -> io::Result<(TcpListener, SocketAddr)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    /// Connects with both neighbours, which do the same; `addresses` are those of all workers, by
    /// rank.
    ///
    /// # Panics
    /// If `rank` is none of theirs.
    pub fn join(
        listener: &TcpListener,
        rank: usize,
        addresses: &[SocketAddr],
    ) -> io::Result<TcpRing> {
        let world = addresses.len();
        let next = std::net::TcpStream::connect(addresses[(rank + 1) % world])?;
        let (previous, _) = listener.accept()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        let stream = |stream: std::net::TcpStream| {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            TcpStream::from_std(stream)
        };
        let (next, previous) = (stream(next)?, stream(previous)?);
        drop(entered);
        let buffer = vec![0; BUFFER_WORDS].into_boxed_slice();
        Ok(TcpRing { rank, world, runtime, streams: Streams { next, previous, buffer, filled: 0 } })
    }
}

impl Streams {
    /// Sends and receives whatever can be, until neither moves.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        ring: &mut RingAllReduce,
        vector: &mut [u32],
        sent_bytes: &mut usize,
    ) -> Poll<Result<(), BenchError>> {
        loop {
            let received = self.poll_receive(cx, ring, vector)?;
            let sent = self.poll_send(cx, ring, vector, sent_bytes)?;
            if ring.is_finished() {
                return Poll::Ready(Ok(()));
            }
            if !received && !sent {
                return Poll::Pending;
            }
        }
    }

    fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        ring: &mut RingAllReduce,
        vector: &mut [u32],
    ) -> Result<bool, BenchError> {
        // Words of the next collective stay in the socket.
        let wanted = 4 * ring.words_to_receive().min(BUFFER_WORDS);
        if wanted == 0 {
            return Ok(false);
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.buffer);
        let mut read = ReadBuf::new(&mut bytes[self.filled..wanted]);
        match Pin::new(&mut self.previous).poll_read(cx, &mut read) {
            Poll::Pending => return Ok(false),
            Poll::Ready(outcome) => outcome.map_err(BenchError::Loopback)?,
        }
        if read.filled().is_empty() {
            let closed = io::Error::from(io::ErrorKind::UnexpectedEof);
            return Err(BenchError::Loopback(closed));
        }
        self.filled += read.filled().len();
        let whole = self.filled / 4;
        ring.receive(vector, &self.buffer[..whole]).map_err(broken)?;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.buffer);
        bytes.copy_within(4 * whole..self.filled, 0);
        self.filled -= 4 * whole;
        Ok(true)
    }

    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        ring: &mut RingAllReduce,
        vector: &[u32],
        sent_bytes: &mut usize,
    ) -> Result<bool, BenchError> {
        let words = ring.next_send();
        if words.is_empty() {
            return Ok(false);
        }
        // The first word may be sent in part.
        let bytes: &[u8] = bytemuck::cast_slice(&vector[words]);
        match Pin::new(&mut self.next).poll_write(cx, &bytes[*sent_bytes % 4..]) {
            Poll::Pending => Ok(false),
            Poll::Ready(outcome) => {
                let before = *sent_bytes / 4;
                *sent_bytes += outcome.map_err(BenchError::Loopback)?;
                ring.sent(*sent_bytes / 4 - before);
                Ok(true)
            }
        }
    }
}

fn broken(fault: StreamFault) -> BenchError {
    BenchError::Loopback(io::Error::other(fault))
}

impl AllReduce for TcpRing {
    fn rank(&self) -> usize {
        self.rank
    }

    fn workers(&self) -> usize {
        self.world
    }

    fn all_reduce(
        &mut self,
        _iteration: usize,
        reduction: Reduction,
        mut vector: Vec<u32>,
    ) -> Result<Vec<u32>, BenchError> {
        let mut ring = RingAllReduce::new(self.rank, self.world, reduction);
        let mut sent_bytes = 0;
        let TcpRing { runtime, streams, .. } = self;
        runtime.block_on(std::future::poll_fn(|cx| {
            streams.poll(cx, &mut ring, &mut vector, &mut sent_bytes)
        }))?;
        Ok(vector)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn vectors_of_any_size_are_summed() {
        let world = 3;
        let listeners: Vec<_> = (0..world).map(|_| TcpRing::listen().unwrap()).collect();
        let addresses: Vec<_> = listeners.iter().map(|(_, address)| *address).collect();
        thread::scope(|scope| {
            for (rank, (listener, _)) in listeners.iter().enumerate() {
                let addresses = &addresses;
                scope.spawn(move || {
                    let mut ring = TcpRing::join(listener, rank, addresses).unwrap();
                    for words in [0, 1, 2, 1_000, 200_003, 1] {
                        let vector = vec![rank as u32 + 1; words];
                        let sums = ring.all_reduce(0, Reduction::sums(words), vector).unwrap();
                        assert_eq!(sums, vec![6; words]);
                    }
                });
            }
        });
    }
}
