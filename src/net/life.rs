//! A group's life on the communication thread: the others are joined, vectors are reduced until the
//! trainer has no more, and the connections are closed in a way that tells the others why.

use std::net::UdpSocket;
use std::time::Duration;

use super::door::Door;
use super::driver::{Driver, End};
use super::endpoint::{Endpoint, TransportSettings};
use super::group::{Command, Event, Reduced, Seat, Trainer};
use super::identity::ClusterKey;
use super::interrupt::Interrupt;
use super::peer::{self, CODE_ABORT, CODE_DONE, JoinLimit};
use super::stall::StallWatch;
use super::{NetError, wire};
use crate::protocol::message::{Abort, Hello};

/// Is the thread of a group that has one of its own.
pub(super) fn run(
    socket: UdpSocket,
    key: ClusterKey,
    transport: TransportSettings,
    seat: Seat,
    trainer: Trainer,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return trainer.tell(Err(NetError::Thread(error))),
    };
    // As a task of its own: waking the future of `block_on` itself costs system calls.
    let work = runtime.spawn(async move {
        match Endpoint::new(socket, &key, &transport) {
            Ok(endpoint) => {
                let door = Door::own(endpoint);
                work(door, seat, transport.stall_warning, Interrupt::default(), trainer).await;
            }
            Err(error) => trainer.tell(Err(error)),
        }
    });
    if let Err(error) = runtime.block_on(work) {
        std::panic::resume_unwind(error.into_panic());
    }
    // A name that is still being resolved must not hold up the end.
    runtime.shutdown_background();
}

/// Is a group, from its seat to its end.
pub(super) async fn work(
    door: Door,
    seat: Seat,
    stall_warning: Duration,
    interrupt: Interrupt,
    trainer: Trainer,
) {
    let (rank, world) = (seat.rank, seat.peers.len());
    if world == 1 {
        return alone(trainer, &interrupt).await;
    }
    let wanted = seat.strategy.peers(rank, world);
    if let Some(peer) = wanted.iter().find(|&&peer| seat.peers[peer].is_empty()) {
        return trainer.tell(Err(NetError::Settings(format!("rank {peer} has no address"))));
    }
    let hello = Hello {
        run_id: seat.run_id,
        config_digest: seat.config_digest,
        world_size: world as u32,
        generation: seat.generation,
        rank: rank as u32,
        strategy: seat.strategy,
    };
    let limit = JoinLimit::new(seat.join_timeout);
    let joined = tokio::select! {
        joined = peer::join(&door, &hello, &seat.peers, &wanted, limit) => joined,
        reason = interrupt.raised() => Err(NetError::Interrupted(reason)),
    };
    door.refuse_connections().await;
    let mesh = match joined {
        Ok(mesh) => mesh,
        Err(error) => {
            close(&door, rank, &trainer, Err(End::Failed(error))).await;
            return;
        }
    };
    trainer.tell(Ok(Event::Joined));
    let stall = StallWatch::new(stall_warning);
    let mut driver = Driver::new(rank, world, mesh, trainer, stall);
    let end = tokio::select! {
        end = driver.run() => end,
        reason = interrupt.raised() => Err(NetError::Interrupted(reason).into()),
    };
    for peer in driver.peers() {
        let (to, path) = (peer.rank, peer.connection.stats().path);
        tracing::debug!("rank {rank}: the path to rank {to} was {path:?}");
    }
    // The driver lives on until the connections are closed: dropping its streams before would look
    // like a fault to the others.
    close(&door, rank, driver.trainer(), end).await;
}

/// Tells the trainer and the other workers how it ended.
async fn close(door: &Door, rank: usize, trainer: &Trainer, end: Result<(), End>) {
    let abort = match end {
        Ok(()) => None,
        Err(End::Left(reason)) => Some(Abort::new(rank as u32, Some(rank as u32), reason)),
        Err(End::Failed(error)) => {
            let abort = error.to_abort(rank);
            trainer.tell(Err(error));
            Some(abort)
        }
    };
    match abort {
        None => door.close(CODE_DONE, b"done").await,
        Some(abort) => door.close(CODE_ABORT, &wire::encode(&abort).unwrap_or_default()).await,
    }
}

/// The only worker's group: each vector is its own reduction.
async fn alone(mut trainer: Trainer, interrupt: &Interrupt) {
    trainer.tell(Ok(Event::Joined));
    loop {
        tokio::select! {
            command = trainer.commands.recv() => {
                let Some(Command::Reduce { vector, .. }) = command else { return };
                trainer.tell(Ok(Event::Reduced(Reduced { vector, took: Duration::ZERO })));
            }
            reason = interrupt.raised() => {
                return trainer.tell(Err(NetError::Interrupted(reason)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::thread;

    use super::*;
    use crate::net::group::{GroupHandle, GroupOptions};
    use crate::net::peer::PeerAddress;
    use crate::protocol::collective::{CollectiveId, Content, Reduction};
    use crate::protocol::exchange::{Algorithm, Strategy};
    use crate::protocol::message::{CollectiveHeader, HEADER_WORDS};

    /// What rank 0 of two says of a rank 1 that holds the key and does this with its stream.
    fn verdict_on(rogue: impl FnOnce(&mut quinn::SendStream)) -> NetError {
        let key = ClusterKey::generate().expect("a key");
        let bind = || UdpSocket::bind("127.0.0.1:0").expect("a port on loopback");
        let sockets = [bind(), bind()];
        let peers: Vec<Vec<PeerAddress>> = sockets
            .iter()
            .map(|socket| vec![socket.local_addr().expect("a bound socket").into()])
            .collect();
        let [socket, rogue_socket] = sockets;
        let options = GroupOptions {
            socket,
            key: key.clone(),
            rank: 0,
            peers: peers.clone(),
            run_id: "test".into(),
            config_digest: [7; 32],
            join_timeout: Duration::from_secs(30),
            strategy: Strategy::Ring,
            transport: TransportSettings::default(),
        };
        let worker = thread::spawn(|| {
            let mut handle = GroupHandle::join(options).expect("the rogue joins as others do");
            let reduction = Reduction::sums(4);
            handle.start(id(), Algorithm::Ring, reduction, vec![1; 4]).expect("started");
            handle.finish().expect_err("the rogue breaks the protocol")
        });
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let transport = TransportSettings::default();
            let endpoint = Endpoint::new(rogue_socket, &key, &transport).expect("an endpoint");
            let hello = Hello {
                run_id: "test".into(),
                config_digest: [7; 32],
                world_size: 2,
                generation: 0,
                rank: 1,
                strategy: Strategy::Ring,
            };
            let limit = JoinLimit::new(Duration::from_secs(30));
            let mesh = peer::join(&Door::own(endpoint), &hello, &peers, &[0], limit).await;
            let link = &mut mesh.expect("the group forms").links[0];
            rogue(&mut link.send);
            // It is told what it did.
            let error = link.peer.connection.closed().await;
            assert!(matches!(link.peer.lost(&error, "nothing"), NetError::Aborted(_)));
        });
        worker.join().expect("its assertions hold")
    }

    fn id() -> CollectiveId {
        CollectiveId { generation: 0, step: 3, attempt: 0, content: Content::Gradients(1) }
    }

    fn write(stream: &mut quinn::SendStream, words: &[u32]) {
        let bytes = bytemuck::cast_slice(words);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let written = Pin::new(stream).poll_write(&mut cx, bytes);
        assert!(matches!(written, Poll::Ready(Ok(written)) if written == bytes.len()));
    }

    #[test]
    fn words_that_are_no_header_are_a_violation() {
        let error = verdict_on(|stream| write(stream, &[0xDEAD_BEEF; HEADER_WORDS]));
        assert!(matches!(error, NetError::Violation { rank: 1, .. }), "{error}");
        assert!(error.to_string().contains("0xdeadbeef"), "{error}");
    }

    #[test]
    fn a_stream_that_ends_early_is_a_lost_peer() {
        let reduction = Reduction::sums(4);
        let header = CollectiveHeader::new(id(), Algorithm::Ring, reduction, 0);
        let error = verdict_on(|stream| {
            write(stream, &header.encode());
            write(stream, &[1]);
            stream.finish().expect("an open stream");
        });
        assert!(matches!(error, NetError::Lost { rank: 1, .. }), "{error}");
        let text = "during step 3 bucket 1: it has finished its run";
        assert!(error.to_string().contains(text), "{error}");
    }

    #[test]
    fn a_collective_that_was_not_asked_for_is_out_of_step() {
        let reduction = Reduction::sums(4);
        let header = CollectiveHeader::new(id(), Algorithm::Ring, reduction, 1);
        let error = verdict_on(|stream| write(stream, &header.encode()));
        assert!(matches!(error, NetError::OutOfStep(_)), "{error}");
        assert!(error.to_string().contains("(its collective 1)"), "{error}");
    }
}
