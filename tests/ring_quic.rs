//! The ring over real QUIC connections on loopback, its workers being threads.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use annulet::net::{ClusterKey, NetError, PeerAddress, RingOptions, TransportSettings};
use annulet::protocol::collective::{CollectiveId, Content, Reduction};
use annulet::train::collective::{Collective, CollectiveError, Ring};

/// Long enough for seven workers on a busy machine; only failures wait for it.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// One options value a worker, on sockets of its own.
fn group(world: usize) -> Vec<RingOptions> {
    let key = ClusterKey::generate().expect("a key");
    let sockets: Vec<UdpSocket> =
        (0..world).map(|_| UdpSocket::bind("127.0.0.1:0").expect("a port on loopback")).collect();
    let peers: Vec<Vec<PeerAddress>> = sockets
        .iter()
        .map(|socket| vec![socket.local_addr().expect("a bound socket").into()])
        .collect();
    sockets
        .into_iter()
        .enumerate()
        .map(|(rank, socket)| RingOptions {
            socket,
            key: key.clone(),
            rank,
            peers: peers.clone(),
            run_id: "test".into(),
            config_digest: [7; 32],
            join_timeout: JOIN_TIMEOUT,
            transport: TransportSettings::default(),
        })
        .collect()
}

/// Runs each worker on a thread of its own and returns what each returned, by rank.
fn run<T: Send>(
    group: Vec<RingOptions>,
    worker: impl Fn(usize, Result<Ring, NetError>) -> T + Sync,
) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = group
            .into_iter()
            .map(|options| {
                let worker = &worker;
                scope.spawn(move || worker(options.rank, Ring::join(options)))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a worker's assertions hold"))
            .collect()
    })
}

fn bucket(step: u64, bucket: u32) -> CollectiveId {
    CollectiveId { generation: 0, step, attempt: 0, content: Content::Gradients(bucket) }
}

/// A vector that differs between ranks and collectives, with words that wrap when summed.
fn vector(rank: usize, salt: usize, words: usize) -> Vec<u32> {
    (0..words as u32)
        .map(|i| (i + 1).wrapping_mul(0x9E37_79B9).wrapping_mul(1 + rank as u32 * 31 + salt as u32))
        .collect()
}

fn reduced(world: usize, salt: usize, reduction: Reduction) -> Vec<u32> {
    let mut sum = vector(0, salt, reduction.words());
    for rank in 1..world {
        reduction.reduce(&mut sum, 0, &vector(rank, salt, reduction.words()));
    }
    sum
}

#[test]
fn vectors_of_many_sizes_are_reduced_in_order() {
    let sizes = [0, 1, 2, 3, 5, 997, 58_866, 2_840, 300_001];
    for world in [1, 2, 3, 4, 7] {
        run(group(world), |rank, ring| {
            let mut ring = ring.expect("the ring forms");
            assert_eq!((ring.rank(), ring.world_size()), (rank, world));
            let reduction =
                |words: usize| Reduction { sum_words: words - words / 3, max_words: words / 3 };
            // Twice, the second time with vectors that came out of the first.
            for step in 0..2 {
                for (i, &words) in sizes.iter().enumerate() {
                    let vector = vector(rank, i, words);
                    ring.start(bucket(step, i as u32), reduction(words), vector).expect("started");
                }
                for (i, &words) in sizes.iter().enumerate() {
                    let vector = ring.finish().expect("finished");
                    let expected = reduced(world, i, reduction(words));
                    assert!(vector == expected, "rank {rank} of {world}: {words} words");
                }
            }
            assert!(matches!(ring.finish(), Err(CollectiveError::NothingStarted)));
            ring.close().expect("an orderly end");
        });
    }
}
