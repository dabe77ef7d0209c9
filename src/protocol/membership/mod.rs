//! Elastic membership: who works together, when members die, stall, part, leave and come.
//!
//! A [`View`] is a generation's list of members. Each view elects its successor by single-decree
//! Paxos (Lamport 1998), and no other election exists, so that there is at most one successor
//! however many members propose, and therefore one history. Either the view's members are the
//! acceptors, or the launcher, which is the parent of all workers, is the only one:
//! see [`Acceptors`].
//!
//! - [`Membership`] is the state machine of one member or joiner, [`Arbiter`] that of the launcher.
//!   Both are driven from outside with messages, losses and the time, and polled for actions.
//! - [`successor`](successor::successor) is the decision itself, a pure function.
//!
//! # What makes it safe
//!
//! A promise ends the work in a view: a member that has promised completes no more steps until it
//! is in the next one, and says how many it has completed. The next view consists of members that
//! have promised, and of joiners, so nothing is done in the old view that the new one has not
//! heard of, but for at most one step by a member that is left behind: a step needs all members.
//! The new view begins with the most advanced state among its members, and the others copy it.
//!
//! Members are crash-stop: a process that is started again is a new member with a new id.
//!
//! # Cost
//!
//! A change takes two round trips from the proposer and a third message that tells the result;
//! n members exchange 5 (n - 1) small messages. Nothing is written to disk.

mod acceptor;
mod action;
mod arbiter;
mod member;
mod message;
mod proposal;
mod propose;
mod receive;
mod settings;
pub mod successor;
mod view;

pub use acceptor::Acceptor;
pub use action::{Action, Ending};
pub use arbiter::{Arbiter, ArbiterAction};
pub use member::{LEAVES, Membership};
pub use message::{Ballot, Message, Party};
pub use proposal::Acceptors;
pub use settings::Settings;
pub use view::{Change, ChangeKind, Member, MemberId, View};
