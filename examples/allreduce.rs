//! The encrypted all-reduce in any program: four workers sum their buffers, here as threads of one
//! process. On several machines each worker binds its own socket, reads the same key file
//! (`annulet key`), and is given the same list of addresses.
//!
//! ```sh
//! cargo run --release --example allreduce
//! ```

use std::net::UdpSocket;

use annulet::net::{ClusterKey, GroupOptions, PeerAddress};
use annulet::train::collective::Group;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// All that a worker needs.
fn worker(
    socket: UdpSocket,
    key: ClusterKey,
    rank: usize,
    peers: Vec<Vec<PeerAddress>>,
) -> Result<String, Failure> {
    let mut group = Group::join(GroupOptions::new(socket, key, rank, peers))?;

    let mut gradients: Vec<f32> = (0..1_000).map(|i| 0.001 * (i + rank) as f32).collect();
    group.all_reduce_f32(&mut gradients)?; // exact: the same bits for any order of workers

    let mut counts = [1, rank as i32];
    group.all_reduce_i32(&mut counts)?;

    group.close()?;
    Ok(format!(
        "rank {rank}: {} workers, ranks add up to {}, sum {}",
        counts[0], counts[1], gradients[999]
    ))
}

fn main() -> Result<(), Failure> {
    let key = ClusterKey::generate()?;
    let sockets: Vec<UdpSocket> =
        (0..4).map(|_| UdpSocket::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let peers: Vec<Vec<PeerAddress>> = sockets
        .iter()
        .map(|socket| Ok(vec![socket.local_addr()?.into()]))
        .collect::<std::io::Result<_>>()?;
    let workers: Vec<_> = sockets
        .into_iter()
        .enumerate()
        .map(|(rank, socket)| {
            let (key, peers) = (key.clone(), peers.clone());
            std::thread::spawn(move || worker(socket, key, rank, peers))
        })
        .collect();
    for worker in workers {
        println!("{}", worker.join().expect("a worker does not panic")?);
    }
    Ok(())
}
