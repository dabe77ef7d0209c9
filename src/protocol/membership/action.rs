//! What a member's owner has to do, and how a member's part may end.

use std::fmt;

use super::message::{Message, Party};
use super::successor::NoSuccessor;
use super::view::{MemberId, View};

/// What the owner of a [`Membership`](super::Membership) has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this, or drop it if the party cannot be reached.
    Send { to: Party, message: Message },
    /// Complete no more steps in this view, then call
    /// [`handle_halted`](super::Membership::handle_halted).
    Halt { why: String },
    /// Work in this view: copy the state of its [`source`](View::source) if this member is
    /// [`behind`](View::behind), or hand it out if it is the source.
    Install { view: Box<View> },
    /// It is over for this member.
    End(Ending),
}

/// Why a member's part is over before the run's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It wanted to leave, and the others go on without it.
    Left,
    /// The others have gone on without it.
    LeftBehind {
        view: Box<View>,
    },
    /// Too few members can be heard to decide for all.
    NoQuorum {
        heard: usize,
        members: usize,
        missing: Vec<(MemberId, String)>,
    },
    NoSuccessor(NoSuccessor),
    /// A joiner was not admitted in time.
    NotAdmitted {
        why: String,
    },
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Left => f.write_str("it left as it was asked to, and the others go on"),
            Ending::LeftBehind { view } => {
                write!(f, "the others have gone on without this worker: {view}")
            }
            Ending::NoQuorum { heard, members, missing } => {
                write!(
                    f,
                    "lost the quorum: {heard} of {members} workers are left, which is not more \
                     than half of them (or half with rank 0), so the others may have gone on; "
                )?;
                for (i, (id, why)) in missing.iter().enumerate() {
                    let separator = if i == 0 { "missing: " } else { ", " };
                    write!(f, "{separator}{id} ({why})")?;
                }
                Ok(())
            }
            Ending::NoSuccessor(none) => none.fmt(f),
            Ending::NotAdmitted { why } => write!(f, "was not admitted: {why}"),
        }
    }
}
