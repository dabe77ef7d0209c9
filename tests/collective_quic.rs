//! Collectives over real QUIC connections on loopback, the workers being threads.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use annulet::net::{
    ClusterKey, GroupOptions, IN_FLIGHT_MAX, NetError, PeerAddress, TransportSettings,
};
use annulet::protocol::collective::{CollectiveId, Content, Reduction};
use annulet::protocol::exchange::Strategy;
use annulet::protocol::message::HEADER_WORDS;
use annulet::train::buffers::BufferError;
use annulet::train::collective::{Collective, CollectiveError, Group};

/// Long enough for seven workers on a busy machine; only failures wait for it.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// One options value a worker, on sockets of its own.
fn group(world: usize) -> Vec<GroupOptions> {
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
        .map(|(rank, socket)| GroupOptions {
            socket,
            key: key.clone(),
            rank,
            peers: peers.clone(),
            run_id: "test".into(),
            config_digest: [7; 32],
            join_timeout: JOIN_TIMEOUT,
            strategy: Strategy::Auto,
            transport: TransportSettings::default(),
        })
        .collect()
}

/// Runs a function for each item on a thread of its own and returns the results in order.
fn in_parallel<A: Send, T: Send>(items: Vec<A>, function: impl Fn(A) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> =
            items.into_iter().map(|item| scope.spawn(|| function(item))).collect();
        threads.into_iter().map(|thread| thread.join().expect("its assertions hold")).collect()
    })
}

/// The joined workers of a group that fits, by rank.
fn form(group: Vec<GroupOptions>) -> Vec<Group> {
    in_parallel(group, |options| Group::join(options).expect("the group forms"))
}

/// What keeps each worker of a group from joining, by rank.
fn fail_to_form(group: Vec<GroupOptions>) -> Vec<NetError> {
    in_parallel(group, |options| Group::join(options).expect_err("the group does not form"))
}

fn close(ring: Group) {
    ring.close().expect("an orderly end");
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
    let worlds = [1, 2, 3, 4, 7];
    for (world, strategy) in worlds.into_iter().flat_map(|n| Strategy::ALL.map(|s| (n, s))) {
        let mut group = group(world);
        group.iter_mut().for_each(|options| options.strategy = strategy);
        let rings = form(group);
        in_parallel(rings, |mut ring| {
            let rank = ring.rank();
            assert_eq!(ring.world_size(), world);
            let reduction = |words: usize| Reduction::new(words - words / 3, words / 3);
            // Twice, the second time with vectors that came out of the first.
            for step in 0..2 {
                for (i, &words) in sizes.iter().enumerate() {
                    let vector = vector(rank, i, words);
                    ring.start(bucket(step, i as u32), reduction(words), vector).expect("started");
                }
                for (i, &words) in sizes.iter().enumerate() {
                    let vector = ring.finish().expect("finished");
                    let expected = reduced(world, i, reduction(words));
                    let name = strategy.name();
                    assert!(vector == expected, "{name}: rank {rank} of {world}, {words} words");
                }
            }
            assert!(matches!(ring.finish(), Err(CollectiveError::NothingStarted)));
            close(ring);
        });
    }
}

#[test]
fn all_workers_measure_one_link_and_choose_alike() {
    let selections = in_parallel(form(group(4)), |mut ring| {
        // More often than three algorithms are tried, eleven times each.
        for words in [1, 10_000, 300_000].repeat(3 * 11 + 2) {
            let reduction = Reduction::sums(words);
            ring.start(bucket(0, 0), reduction, vec![1; words]).expect("started");
            assert_eq!(ring.finish().expect("finished"), vec![4; words]);
        }
        for bytes in [4, 40_000, 1_200_000] {
            assert!(ring.is_settled(bytes));
        }
        let link = ring.link().expect("it was measured");
        let chosen: Vec<_> = ring
            .selections()
            .into_iter()
            .map(|used| (used.bytes, used.algorithm, used.predicted_us.is_some(), used.count))
            .collect();
        close(ring);
        (link, chosen)
    });
    let (link, chosen) = &selections[0];
    assert!(link.latency_ns.max(link.overhead_ns) > 0, "a message takes time: {link}");
    let sizes: Vec<_> = chosen.iter().map(|&(bytes, ..)| bytes).collect();
    assert_eq!(sizes, [4, 40_000, 1_200_000]);
    assert!(selections.iter().all(|selection| *selection == selections[0]), "{selections:?}");
}

#[test]
fn buffers_are_summed_in_place_with_the_same_bits_everywhere() {
    let world = 3;
    // With 2^24 as the largest magnitude of three workers, multiples of 1/32 are not rounded.
    let small = |i: usize| 1.0 + (i % 32) as f32 / 32.0;
    for strategy in Strategy::ALL {
        let mut group = group(world);
        group.iter_mut().for_each(|options| options.strategy = strategy);
        let sums = in_parallel(form(group), |mut group| {
            let rank = group.rank();
            let mut integers: Vec<i32> = (0..1_001).map(|i| i * (rank as i32 - 1)).collect();
            group.all_reduce_i32(&mut integers).expect("summed");
            assert!(integers.iter().all(|&sum| sum == 0), "-1 + 0 + 1 times anything");
            group.all_reduce_i32(&mut []).expect("nothing is summed too");

            // Magnitudes far apart: plain sums depend on the order, exact ones do not.
            let values: Vec<f32> = (0..1_001)
                .map(|i| [16_777_216.0, -16_777_216.0, small(i)][(rank + i) % world])
                .collect();
            let mut exact = values.clone();
            group.all_reduce_f32(&mut exact).expect("summed");
            let mut plain = values;
            let in_ring_order = group.all_reduce_f32_in_ring_order(&mut plain);
            let has_ring = matches!(strategy, Strategy::Auto | Strategy::Ring);
            assert_eq!(in_ring_order.is_ok(), has_ring, "{in_ring_order:?}");

            // One worker's infinity is everybody's error, and the group goes on.
            let mut infinite = [if rank == 1 { f32::INFINITY } else { 1.0 }];
            let error = group.all_reduce_f32(&mut infinite).expect_err("no exact sum");
            assert!(matches!(error, BufferError::NotFinite));
            group.all_reduce_i32(&mut [1]).expect("the group goes on");
            group.close().expect("an orderly end");
            let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            (bits(exact), has_ring.then(|| bits(plain)))
        });
        assert!(sums.iter().all(|sum| *sum == sums[0]), "{}", strategy.name());
        for (i, &bits) in sums[0].0.iter().enumerate() {
            assert_eq!(f32::from_bits(bits), small(i), "{i}");
        }
    }
}

/// A failure of one worker's ring, whether it came while joining or later.
fn failure<T>(outcome: Result<T, CollectiveError>) -> NetError {
    match outcome {
        Err(CollectiveError::Net(error)) => error,
        Err(other) => panic!("expected a failure of the network, got {other:?}"),
        Ok(_) => panic!("expected a failure of the network"),
    }
}

/// Reduces one small vector.
fn all_reduce(ring: &mut Group, id: CollectiveId) -> Result<Vec<u32>, CollectiveError> {
    let reduction = Reduction::sums(1_000);
    ring.start(id, reduction, vector(ring.rank(), 0, 1_000))?;
    ring.finish()
}

#[test]
fn a_vector_larger_than_all_windows_is_reduced() {
    let words = 3_000_001;
    let reduction = Reduction::sums(words);
    let mut group = group(3);
    for options in &mut group {
        // No multiple of four, so that words are sent in part.
        options.transport.loopback_window = 1_000_003;
    }
    in_parallel(form(group), |mut ring| {
        ring.start(bucket(0, 0), reduction, vector(ring.rank(), 1, words)).expect("started");
        assert!(ring.finish().expect("finished") == reduced(3, 1, reduction));
        close(ring);
    });
}

#[test]
fn an_emulated_link_slows_and_loses_but_changes_nothing() {
    let words = 50_000;
    let reduction = Reduction::sums(words);
    for link in ["100mbit/1ms", "1gbit/0.1ms/2%/jitter=0.2ms"] {
        let mut group = group(2);
        for options in &mut group {
            options.strategy = Strategy::Ring;
            options.transport.link = Some(link.parse().expect("a link"));
        }
        let times = in_parallel(form(group), |mut ring| {
            let began = Instant::now();
            ring.start(bucket(0, 0), reduction, vector(ring.rank(), 1, words)).expect("started");
            assert!(ring.finish().expect("finished") == reduced(2, 1, reduction), "{link}");
            let took = began.elapsed();
            close(ring);
            took
        });
        if link == "100mbit/1ms" {
            // 200 kB at 100 Mbit/s, and two steps of 1 ms: no card is faster than it says.
            assert!(times.iter().all(|took| took.as_millis() >= 18), "{times:?}");
        }
    }
}

#[test]
fn traffic_is_what_the_ring_costs() {
    let (world, words) = (4, 10_000);
    let reduction = Reduction::sums(words);
    let mut group = group(world);
    group.iter_mut().for_each(|options| options.strategy = Strategy::Ring);
    let traffic = in_parallel(form(group), |mut ring| {
        ring.start(bucket(0, 0), reduction, vector(ring.rank(), 0, words)).expect("started");
        ring.finish().expect("finished");
        let traffic = ring.traffic();
        close(ring);
        traffic
    });
    // 2(n - 1)/n of the vector, and a header.
    let expected = 4 * (2 * (world - 1) * words / world + HEADER_WORDS) as u64;
    for traffic in traffic {
        assert_eq!((traffic.bytes_sent, traffic.bytes_received), (expected, expected));
    }
}

#[test]
fn a_worker_that_leaves_is_named_by_all() {
    let rings = in_parallel(form(group(4)), |mut ring| {
        all_reduce(&mut ring, bucket(0, 0)).expect("all are there");
        ring
    });
    let errors = in_parallel(rings, |mut ring| {
        // Dropped while the others are within the next collective or about to begin it.
        (ring.rank() != 2).then(|| failure(all_reduce(&mut ring, bucket(1, 0))))
    });
    for error in errors.into_iter().flatten() {
        assert_eq!(error.culprit(), Some(2), "{error}");
        assert_eq!(error.to_string(), "rank 2 ended the run: it left before the run's end");
    }
}

#[test]
fn the_reason_of_an_abort_reaches_all() {
    let errors = in_parallel(form(group(4)), |mut ring| {
        if ring.rank() == 1 {
            ring.abort("loss diverged at step 812; lower --lr".to_owned());
            return None;
        }
        let error = failure(all_reduce(&mut ring, bucket(812, 0)));
        // Whoever goes on is told again.
        let again = failure(all_reduce(&mut ring, bucket(813, 0)));
        assert!(again.to_string().contains("loss diverged"), "{again}");
        let at_the_end = ring.close().expect_err("the ring has failed");
        assert!(at_the_end.to_string().contains("loss diverged"), "{at_the_end}");
        Some(error)
    });
    for error in errors.into_iter().flatten() {
        let text = "rank 1 ended the run: loss diverged at step 812; lower --lr";
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn a_worker_that_falls_silent_is_lost_within_the_failure_timeout() {
    let mut group = group(3);
    for options in &mut group {
        options.transport.failure_timeout = Duration::from_secs(2);
    }
    // What rank 0 sends to rank 1 goes through a relay that stops without a word.
    let relay = Relay::start(address(&group[0]), address(&group[1]));
    group[0].peers[1] = vec![relay.near.into()];
    let rings = in_parallel(form(group), |mut ring| {
        all_reduce(&mut ring, bucket(0, 0)).expect("all are there");
        ring
    });
    relay.cut.store(true, Ordering::Relaxed);
    let errors = in_parallel(rings, |mut ring| {
        // Whether the worker off the cut can finish the first of these depends on the algorithm.
        let mut outcomes = (1..).map(|step| all_reduce(&mut ring, bucket(step, 0)));
        failure(outcomes.find(Result::is_err).expect("it does not go on for ever"))
    });
    // Either end of the cut may notice first, and then tells the others that it lost the other.
    let (by_near, by_far) =
        (format!("lost rank 1 at {}", relay.near), format!("lost rank 0 at {}", relay.far));
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("nothing came from it any more"), "{text}");
        assert!(text.contains(&by_near) || text.contains(&by_far), "{text}");
    }
}

#[test]
fn workers_out_of_step_name_both_sides() {
    let errors = in_parallel(form(group(3)), |mut ring| {
        let id = if ring.rank() == 1 { bucket(5, 0) } else { bucket(4, 1) };
        failure(all_reduce(&mut ring, id))
    });
    let ahead = "rank 1 sent step 5 bucket 0, this worker is at step 4 bucket 1";
    let behind = ["rank 0", "rank 2"]
        .map(|rank| format!("{rank} sent step 4 bucket 1, this worker is at step 5 bucket 0"));
    for error in errors {
        let text = error.to_string();
        let named = text.contains(ahead) || behind.iter().any(|behind| text.contains(behind));
        assert!(named, "{text}");
    }
}

#[test]
fn vectors_of_different_length_are_out_of_step() {
    let errors = in_parallel(form(group(2)), |mut ring| {
        let words = 10 + ring.rank();
        let reduction = Reduction::sums(words);
        ring.start(bucket(0, 0), reduction, vec![1; words]).expect("started");
        failure(ring.finish())
    });
    for error in errors {
        let text = error.to_string();
        assert!(text.contains("with 10 words") && text.contains("with 11 words"), "{text}");
    }
}

#[test]
fn a_worker_that_has_finished_is_named_by_one_that_goes_on() {
    let errors = in_parallel(form(group(3)), |mut ring| {
        all_reduce(&mut ring, bucket(0, 0)).expect("all are there");
        if ring.rank() > 0 {
            // May see rank 0's failure, or not.
            let _ = ring.close();
            return None;
        }
        Some(failure(all_reduce(&mut ring, bucket(1, 0))))
    });
    let text = errors[0].as_ref().expect("rank 0 goes on").to_string();
    assert!(text.contains("during step 1 bucket 0: it has finished its run"), "{text}");
}

#[test]
fn what_does_not_fit_is_named_on_both_sides() {
    type Change = fn(&mut GroupOptions);
    let cases: [(Change, &[&str]); 5] = [
        (
            |options| options.config_digest = [9; 32],
            &[
                "config digest differs",
                "rank 0 has 0707070707070707…",
                "rank 1 has 0909090909090909…",
            ],
        ),
        (
            |options| options.run_id = "other".into(),
            &["run id differs", "rank 0 has \"test\"", "rank 1 has \"other\""],
        ),
        (
            |options| options.peers.push(options.peers[0].clone()),
            &["world size differs", "rank 0 has 2", "rank 1 has 3"],
        ),
        (
            |options| options.strategy = Strategy::Ring,
            &["algorithm differs", "rank 0 has auto", "rank 1 has ring", "--algorithm"],
        ),
        (|options| options.key = ClusterKey::generate().expect("a key"), &["another cluster key"]),
    ];
    for (change, expected) in cases {
        let mut group = group(2);
        change(&mut group[1]);
        // Only a side that hears of the fault by accepting alone would wait for it.
        group.iter_mut().for_each(|options| options.join_timeout = Duration::from_secs(5));
        for error in fail_to_form(group) {
            let error = error.to_string();
            for part in expected {
                assert!(error.contains(part), "{error} should contain {part}");
            }
        }
    }
}

#[test]
fn two_workers_of_one_rank_do_not_fit() {
    let mut group = group(3);
    group[2].rank = 1;
    group.iter_mut().for_each(|options| options.join_timeout = Duration::from_secs(5));
    // The one at rank 2's address is met by the other one, or by itself.
    let error = fail_to_form(group)[2].to_string();
    assert!(error.contains("rank differs: rank 1 met rank 1 where rank 0"), "{error}");
}

#[test]
fn a_worker_that_is_not_there_is_named() {
    let mut group = group(2);
    group.truncate(1);
    let options = &mut group[0];
    options.join_timeout = Duration::from_millis(300);
    options.peers[1].push("[::1]:4000".parse().expect("an address"));
    options.peers[1].push("no-such-host.invalid:4000".parse().expect("an address"));
    let silent = options.peers[1][0].to_string();
    let error = Group::join(group.remove(0)).expect_err("nobody is there");
    assert_eq!(error.culprit(), Some(1));
    let text = error.to_string();
    for part in ["rank 1", "within 0.3 s", &silent, "no answer"] {
        assert!(text.contains(part), "{text} should contain {part}");
    }
}

#[test]
fn every_address_is_tried() {
    let mut group = group(2);
    let port = address(&group[1]).port();
    // An IPv6 address cannot be reached from an IPv4 socket; the name may stand for both.
    group[0].peers[1] = ["[::1]:4000".to_owned(), format!("localhost:{port}")]
        .map(|address| address.parse().expect("an address"))
        .to_vec();
    in_parallel(form(group), |mut ring| {
        all_reduce(&mut ring, bucket(0, 0)).expect("reduced");
        close(ring);
    });
}

#[test]
fn strangers_do_not_disturb_the_forming_of_a_ring() {
    let group = group(2);
    let target = address(&group[0]);
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a port on loopback");
    // Bytes of all kinds, among them what begins like a QUIC handshake.
    for first in (0..=255).step_by(4) {
        let mut datagram = vec![first; 1_200];
        datagram[1..5].copy_from_slice(&1u32.to_be_bytes());
        stranger.send_to(&datagram, target).expect("sent");
    }
    in_parallel(form(group), |mut ring| {
        all_reduce(&mut ring, bucket(0, 0)).expect("reduced");
        close(ring);
    });
}

#[test]
fn too_many_vectors_under_way_are_refused() {
    let reduction = Reduction::sums(1);
    in_parallel(form(group(2)), |mut ring| {
        for i in 0..IN_FLIGHT_MAX {
            ring.start(bucket(0, i as u32), reduction, vec![1]).expect("room for it");
        }
        let error = failure(ring.start(bucket(1, 0), reduction, vec![1]));
        assert!(matches!(error, NetError::TooManyInFlight(IN_FLIGHT_MAX)));
        for _ in 0..IN_FLIGHT_MAX {
            assert_eq!(ring.finish().expect("finished"), [2]);
        }
        close(ring);
    });
}

#[test]
fn a_stalled_ring_says_who_is_awaited() {
    let (warnings, received) = mpsc::channel();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::WARN)
        .with_writer(move || Lines(warnings.clone()))
        .finish();
    tracing::subscriber::set_global_default(subscriber).expect("no other test sets it");
    let mut group = group(2);
    // Nothing to choose, so that the first collective is the test's own and not a probe.
    group.iter_mut().for_each(|options| options.strategy = Strategy::Ring);
    group[0].transport.stall_warning = Duration::from_millis(20);
    let prev = address(&group[1]);
    let expected = format!("waiting for rank 1 at {prev} to send step 3 bucket 0");
    let received = Mutex::new(received);
    in_parallel(form(group), |mut ring| {
        if ring.rank() == 1 {
            // Begins once rank 0 has complained about it.
            let received = received.lock().expect("one worker uses it");
            while !received.recv().expect("a warning").contains(&expected) {}
        }
        all_reduce(&mut ring, bucket(3, 0)).expect("reduced");
        close(ring);
    });
}

fn address(options: &GroupOptions) -> SocketAddr {
    options.socket.local_addr().expect("a bound socket")
}

/// Passes datagrams on between two workers until it is cut.
struct Relay {
    /// Where the near worker sends to, and where the far one sees it.
    near: SocketAddr,
    far: SocketAddr,
    cut: Arc<AtomicBool>,
}

impl Relay {
    fn start(near_worker: SocketAddr, far_worker: SocketAddr) -> Relay {
        let bind = || Arc::new(UdpSocket::bind("127.0.0.1:0").expect("a port on loopback"));
        let (near, far) = (bind(), bind());
        let cut = Arc::new(AtomicBool::new(false));
        let relay = Relay {
            near: near.local_addr().expect("a bound socket"),
            far: far.local_addr().expect("a bound socket"),
            cut: cut.clone(),
        };
        for (from, to, target) in
            [(near.clone(), far.clone(), far_worker), (far, near, near_worker)]
        {
            let cut = cut.clone();
            from.set_read_timeout(Some(Duration::from_millis(20))).expect("a valid timeout");
            thread::spawn(move || {
                let mut datagram = [0; 1 << 16];
                loop {
                    let received = from.recv(&mut datagram);
                    if cut.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Ok(length) = received {
                        to.send_to(&datagram[..length], target).expect("sent");
                    }
                }
            });
        }
        relay
    }
}

/// Sends each log line to a test.
struct Lines(mpsc::Sender<String>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // The test may be over.
        let _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
