//! The thread that wakes the emulated cards of this process when something on them is due, and the
//! addresses at which they find each other.
//!
//! One thread serves all of them: with one a card, sixteen workers on two cores would spend their
//! time switching between threads that each move one packet. The runtime's own timer is too coarse
//! for it, since a packet takes 12 µs at 1 Gbit/s.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::port::Port;

/// All that the cards of this process share.
pub(super) struct Mover {
    /// The beginning of all cards' time.
    began: Instant,
    ports: Mutex<HashMap<SocketAddr, Weak<Port>>>,
    schedule: Mutex<Schedule>,
    /// Something became due earlier than the thread waits for.
    earlier: Condvar,
}

#[derive(Default)]
struct Schedule {
    turns: BinaryHeap<Reverse<Turn>>,
    /// Until when the thread sleeps, while it does.
    asleep: Option<Duration>,
}

/// A port is to be looked at.
struct Turn {
    at: Duration,
    port: Arc<Port>,
}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Turn {}

impl Mover {
    /// The process's, whose thread starts with the first emulated card and then sleeps while there
    /// is nothing to move.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(super) fn of_this_process() -> io::Result<Arc<Mover>> {
        static MOVER: Mutex<Option<Arc<Mover>>> = Mutex::new(None);
        let mut slot = MOVER.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mover) = &*slot {
            return Ok(mover.clone());
        }
        let mover = Arc::new(Mover {
            began: Instant::now(),
            ports: Mutex::default(),
            schedule: Mutex::default(),
            earlier: Condvar::new(),
        });
        let run = mover.clone();
        thread::Builder::new().name("annulet-link".to_owned()).spawn(move || run.run())?;
        Ok(slot.insert(mover).clone())
    }

    /// The time of all cards.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Lets other cards find a port. One that is bound to no address in particular is not found.
    pub(super) fn enter(&self, address: SocketAddr, port: &Arc<Port>) {
        if !address.ip().is_unspecified() {
            self.ports().insert(address, Arc::downgrade(port));
        }
    }

    /// The port of this process at an address.
    pub(super) fn port(&self, address: SocketAddr) -> Option<Arc<Port>> {
        self.ports().get(&address)?.upgrade()
    }

    /// Lets a port be found no more.
    pub(super) fn leave(&self, address: SocketAddr, port: &Arc<Port>) {
        let mut ports = self.ports();
        // The address may have another socket by now.
        if ports.get(&address).is_some_and(|other| other.as_ptr() == Arc::as_ptr(port)) {
            ports.remove(&address);
        }
    }

    /// Has a port [looked at](Port::turn) at a time.
    pub(super) fn schedule(&self, at: Duration, port: Arc<Port>) {
        let mut schedule = self.lock();
        schedule.turns.push(Reverse(Turn { at, port }));
        if schedule.asleep.is_some_and(|until| at < until) {
            schedule.asleep = None;
            drop(schedule);
            self.earlier.notify_one();
        }
    }

    fn run(&self) {
        let mut schedule = self.lock();
        loop {
            let now = self.now();
            let due = schedule.turns.peek().map(|Reverse(turn)| turn.at);
            if due.is_some_and(|due| due <= now) {
                let Reverse(turn) = schedule.turns.pop().expect("one was peeked at");
                drop(schedule);
                turn.port.turn(turn.at);
                drop(turn);
                schedule = self.lock();
                continue;
            }
            schedule.asleep = Some(due.unwrap_or(Duration::MAX));
            schedule = match due {
                Some(due) => {
                    let waited = self.earlier.wait_timeout(schedule, due - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.earlier.wait(schedule).unwrap_or_else(PoisonError::into_inner),
            };
            schedule.asleep = None;
        }
    }

    fn ports(&self) -> MutexGuard<'_, HashMap<SocketAddr, Weak<Port>>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
