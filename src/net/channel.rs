//! The words between this worker and one other: where both directions of their stream stand among
//! the collectives under way.
//!
//! The words of consecutive collectives follow each other without a gap: while the last words of
//! one are still awaited, the first of the next may already be on their way. A collective whose
//! algorithm has no words for this peer is passed over.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use quinn::{ReadError, WriteError};
use tokio::time::Instant;

use super::NetError;
use super::peer::{Link, Peer};
use crate::protocol::exchange::Exchange;
use crate::protocol::message::{CollectiveHeader, HEADER_WORDS, describe};

/// The collectives under way, in the order in which they were started, which is that of all
/// streams.
#[derive(Default)]
pub(super) struct Jobs {
    queue: VecDeque<Job>,
    /// The number of the first one in the queue, counted from the start of the run.
    first: u64,
}

/// One collective under way.
pub(super) struct Job {
    pub(super) header: CollectiveHeader,
    pub(super) exchange: Exchange,
    pub(super) vector: Vec<u32>,
    pub(super) since: Instant,
    /// Directions of streams that have not passed it yet.
    pub(super) streams: usize,
}

impl Jobs {
    /// Collectives started so far: the number of the next one.
    pub(super) fn started(&self) -> u64 {
        self.first + self.queue.len() as u64
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn push(&mut self, job: Job) {
        self.queue.push_back(job);
    }

    /// The oldest one.
    pub(super) fn front(&self) -> Option<&Job> {
        self.queue.front()
    }

    /// Takes the oldest one out, if all streams have passed it.
    pub(super) fn pop_finished(&mut self) -> Option<Job> {
        let job = self.queue.pop_front_if(|job| job.streams == 0)?;
        debug_assert!(job.exchange.is_finished());
        self.first += 1;
        Some(job)
    }

    /// The job at or behind number `at` that uses the stream; `at` is moved there.
    fn next(&mut self, at: &mut u64, uses: impl Fn(&Exchange) -> bool) -> Option<&mut Job> {
        *at = (*at).max(self.first);
        loop {
            let index = usize::try_from(*at - self.first).ok()?;
            if uses(&self.queue.get(index)?.exchange) {
                return self.queue.get_mut(index);
            }
            *at += 1;
        }
    }
}

/// Bytes of vectors and headers that went through all streams, and the time it took.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) busy_ns: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
}

/// The stream to and from one worker.
pub(super) struct Channel {
    link: Link,
    outgoing: Outgoing,
    incoming: Incoming,
}

/// Where the stream to the peer stands.
#[derive(Default)]
struct Outgoing {
    /// The number of the job being sent.
    job: u64,
    /// Bytes of its header and words that are sent.
    bytes: usize,
}

/// Where the stream from the peer stands.
struct Incoming {
    /// The number of the job being received.
    job: u64,
    /// Whether its header has come.
    header_seen: bool,
    /// Words as they arrived, in the machine's byte order as far as they are complete.
    buffer: Box<[u32]>,
    /// Bytes of the buffer that are filled and not yet used.
    filled: usize,
}

const HEADER_BYTES: usize = HEADER_WORDS * size_of::<u32>();

/// 64 KiB stay in the processor's caches while they are reduced.
const BUFFER_WORDS: usize = 16 << 10;

impl Channel {
    pub(super) fn new(link: Link) -> Channel {
        Channel {
            link,
            outgoing: Outgoing::default(),
            incoming: Incoming {
                job: 0,
                header_seen: false,
                buffer: vec![0; BUFFER_WORDS].into_boxed_slice(),
                filled: 0,
            },
        }
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.link.peer
    }

    /// Directions in which a collective uses this stream: 0 to 2.
    pub(super) fn directions(&self, exchange: &Exchange) -> usize {
        let rank = self.link.peer.rank;
        usize::from(exchange.sends_to(rank)) + usize::from(exchange.receives_from(rank))
    }

    /// Reads once and reduces what came, so that it can be passed on before more is read. Whether
    /// anything moved.
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        jobs: &mut Jobs,
        traffic: &Counters,
    ) -> Result<bool, NetError> {
        // What is left in the buffer may have waited for a job that is there now.
        let mut moved = self.use_buffer(jobs)?;
        let Channel { link: Link { peer, receive, .. }, incoming, .. } = self;
        let Some(job) = jobs.next(&mut incoming.job, |e| e.receives_from(peer.rank)) else {
            return Ok(moved);
        };
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut incoming.buffer);
        let read = match receive.poll_read(cx, &mut bytes[incoming.filled..]) {
            Poll::Pending => return Ok(moved),
            Poll::Ready(Ok(0)) => return Err(peer.finished(describe(&job.header.id))),
            Poll::Ready(Ok(read)) => read,
            Poll::Ready(Err(ReadError::ConnectionLost(error))) => {
                return Err(peer.lost(&error, describe(&job.header.id)));
            }
            Poll::Ready(Err(error)) => return Err(peer.violation(error)),
        };
        let complete =
            incoming.filled / size_of::<u32>()..(incoming.filled + read) / size_of::<u32>();
        for word in &mut incoming.buffer[complete] {
            *word = u32::from_le(*word);
        }
        incoming.filled += read;
        traffic.received.fetch_add(read as u64, Ordering::Relaxed);
        moved = true;
        self.use_buffer(jobs)?;
        Ok(moved)
    }

    /// Gives the buffered words to the jobs they belong to.
    fn use_buffer(&mut self, jobs: &mut Jobs) -> Result<bool, NetError> {
        let peer = &self.link.peer;
        let Incoming { job: at, header_seen, buffer, filled } = &mut self.incoming;
        let mut words = &buffer[..*filled / size_of::<u32>()];
        let (all, first) = (words.len(), *at);
        while let Some(job) = jobs.next(at, |exchange| exchange.receives_from(peer.rank)) {
            if !*header_seen {
                let Some((header, rest)) = words.split_first_chunk::<HEADER_WORDS>() else { break };
                let theirs =
                    CollectiveHeader::decode(header).map_err(|fault| peer.violation(fault))?;
                job.header.check(&theirs, peer.rank).map_err(Box::new)?;
                *header_seen = true;
                words = rest;
            }
            let left = job.exchange.words_to_receive(peer.rank);
            let (piece, rest) = words.split_at(words.len().min(left));
            job.exchange
                .receive(peer.rank, &mut job.vector, piece)
                .map_err(|fault| peer.violation(fault))?;
            words = rest;
            if piece.len() < left {
                break;
            }
            job.streams -= 1;
            *at += 1;
            *header_seen = false;
        }
        let used = (all - words.len()) * size_of::<u32>();
        bytemuck::cast_slice_mut::<u32, u8>(buffer).copy_within(used..*filled, 0);
        *filled -= used;
        Ok(used > 0 || *at > first)
    }

    /// Sends as much as may be sent and as the transport takes. Whether anything moved.
    pub(super) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        jobs: &mut Jobs,
        traffic: &Counters,
    ) -> Result<bool, NetError> {
        let Channel { link: Link { peer, send, .. }, outgoing, .. } = self;
        let mut moved = false;
        while let Some(job) = jobs.next(&mut outgoing.job, |e| e.sends_to(peer.rank)) {
            let bytes = outgoing.bytes;
            let header;
            let mut reordered = Vec::new();
            let sendable = if bytes < HEADER_BYTES {
                header = job.header.encode();
                &little_endian(&header, &mut reordered)[bytes..]
            } else {
                // The first word may be sent in part.
                let words = job.exchange.next_send(peer.rank, &job.vector);
                &little_endian(words, &mut reordered)[bytes % size_of::<u32>()..]
            };
            if sendable.is_empty() {
                if job.exchange.words_to_send(peer.rank) > 0 {
                    break;
                }
                job.streams -= 1;
                *outgoing = Outgoing { job: outgoing.job + 1, bytes: 0 };
                moved = true;
                continue;
            }
            // The transport copies the bytes; the vector may change at once.
            let written = match Pin::new(&mut *send).poll_write(cx, sendable) {
                Poll::Pending => break,
                Poll::Ready(Ok(written)) => written,
                Poll::Ready(Err(WriteError::ConnectionLost(error))) => {
                    return Err(peer.lost(&error, describe(&job.header.id)));
                }
                Poll::Ready(Err(error)) => return Err(peer.violation(error)),
            };
            let words_before = bytes.saturating_sub(HEADER_BYTES) / size_of::<u32>();
            let words_after = (bytes + written).saturating_sub(HEADER_BYTES) / size_of::<u32>();
            job.exchange.sent(peer.rank, words_after - words_before);
            outgoing.bytes += written;
            traffic.sent.fetch_add(written as u64, Ordering::Relaxed);
            moved = true;
        }
        Ok(moved)
    }

    /// Tells the peer that nothing more will be sent.
    pub(super) fn finish(&mut self) {
        // A stream that is closed already needs no end.
        let _ = self.link.send.finish();
    }

    /// Waits until the peer has everything that was sent.
    pub(super) async fn drained(&mut self) -> Result<(), NetError> {
        match self.link.send.stopped().await {
            Err(quinn::StoppedError::ConnectionLost(error)) if !super::peer::is_done(&error) => {
                Err(self.link.peer.lost(&error, "the end of the run"))
            }
            _ => Ok(()),
        }
    }

    /// What the peer is awaited for, if it is: that it sends words of the oldest job.
    pub(super) fn awaited_words(&self, jobs: &Jobs) -> Option<String> {
        let Peer { rank, address, .. } = &self.link.peer;
        let job = jobs.front()?;
        let left = job.exchange.words_to_receive(*rank);
        let open = job.exchange.receives_from(*rank) && self.incoming.job <= jobs.first;
        open.then(|| {
            let id = describe(&job.header.id);
            format!("waiting for rank {rank} at {address} to send {id} ({left} words left)")
        })
    }

    /// What the peer is awaited for, if it is: that it takes words of the oldest job.
    pub(super) fn awaited_room(&self, jobs: &Jobs) -> Option<String> {
        let Peer { rank, address, .. } = &self.link.peer;
        let job = jobs.front()?;
        let left = job.exchange.words_to_send(*rank);
        let open = job.exchange.sends_to(*rank) && self.outgoing.job <= jobs.first;
        open.then(|| {
            let id = describe(&job.header.id);
            format!("waiting for rank {rank} at {address} to take {id} ({left} words left)")
        })
    }
}

/// The words' bytes in the order in which they are sent: the words themselves, on most machines.
fn little_endian<'a>(words: &'a [u32], reordered: &'a mut Vec<u32>) -> &'a [u8] {
    if cfg!(target_endian = "little") {
        return bytemuck::cast_slice(words);
    }
    reordered.extend(words.iter().take(BUFFER_WORDS).map(|word| word.to_le()));
    bytemuck::cast_slice(reordered)
}
