//! What the machine's loopback does without annulet: plain TCP, and plain UDP in datagrams of the
//! size that annulet uses there. Unencrypted, one way, between two threads.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::net::TransportSettings;

/// Bytes of UDP that are sent before the receiver answers: more could overrun its buffer.
const UDP_BURST_BYTES: usize = 64 << 10;

/// A datagram that was dropped ends the measurement after this.
const UDP_PATIENCE: Duration = Duration::from_millis(200);

/// Microseconds that a message of `bytes` takes by TCP, for each of `repetitions`, from before it
/// is sent until the receiver's one-byte answer is back.
pub fn tcp_times(bytes: usize, repetitions: usize) -> io::Result<Vec<f64>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    thread::scope(|scope| {
        let receiver = scope.spawn(move || -> io::Result<()> {
            let mut buffer = vec![0; bytes];
            for _ in 0..repetitions {
                far.read_exact(&mut buffer)?;
                far.write_all(&[0])?;
            }
            Ok(())
        });
        let message = vec![1; bytes];
        let mut times = Vec::with_capacity(repetitions);
        for _ in 0..repetitions {
            let began = Instant::now();
            near.write_all(&message)?;
            near.read_exact(&mut [0])?;
            times.push(microseconds(began));
        }
        receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(times)
    })
}

/// The same by UDP. Fewer than `repetitions` where the system dropped a datagram.
pub fn udp_times(bytes: usize, repetitions: usize) -> io::Result<Vec<f64>> {
    let settings = TransportSettings::default();
    let datagram_bytes = usize::from(settings.loopback_mtu);
    let near = UdpSocket::bind("127.0.0.1:0")?;
    let far = UdpSocket::bind("127.0.0.1:0")?;
    near.connect(far.local_addr()?)?;
    far.connect(near.local_addr()?)?;
    // Best effort: the system may cap it.
    let _ = socket2::SockRef::from(&far).set_recv_buffer_size(settings.receive_buffer);
    near.set_read_timeout(Some(UDP_PATIENCE))?;
    far.set_read_timeout(Some(UDP_PATIENCE))?;
    // A message is cut into bursts, each burst into datagrams; an empty message is one datagram.
    let bursts: Vec<Vec<usize>> =
        cut(bytes, UDP_BURST_BYTES).into_iter().map(|burst| cut(burst, datagram_bytes)).collect();
    thread::scope(|scope| {
        let bursts = &bursts;
        scope.spawn(move || {
            let mut buffer = vec![0; datagram_bytes];
            for burst in (0..repetitions).flat_map(|_| bursts) {
                for _ in burst {
                    // The sender notices what is missing by the answer that does not come.
                    if far.recv(&mut buffer).is_err() {
                        return;
                    }
                }
                let _ = far.send(&[0]);
            }
        });
        let datagram = vec![1; datagram_bytes];
        let mut times = Vec::with_capacity(repetitions);
        for _ in 0..repetitions {
            let began = Instant::now();
            for burst in bursts {
                for &bytes in burst {
                    near.send(&datagram[..bytes])?;
                }
                if near.recv(&mut [0]).is_err() {
                    return Ok(times);
                }
            }
            times.push(microseconds(began));
        }
        Ok(times)
    })
}

/// Pieces of `piece` bytes and what is left; one empty piece for nothing.
fn cut(bytes: usize, piece: usize) -> Vec<usize> {
    let mut pieces = vec![piece; bytes / piece];
    if pieces.is_empty() || !bytes.is_multiple_of(piece) {
        pieces.push(bytes % piece);
    }
    pieces
}

fn microseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_size_get_through() {
        for bytes in [0, 1, 6_500, 6_501, 200_000] {
            assert_eq!(tcp_times(bytes, 3).unwrap().len(), 3);
            // Datagrams may be dropped; those that get through are timed.
            assert!(udp_times(bytes, 3).unwrap().len() <= 3);
        }
    }

    #[test]
    fn pieces_add_up() {
        assert_eq!(cut(0, 10), [0]);
        assert_eq!(cut(10, 10), [10]);
        assert_eq!(cut(25, 10), [10, 10, 5]);
    }
}
