//! What members, joiners and the launcher say to each other about views.

use serde::{Deserialize, Serialize};

use super::view::{Member, MemberId, View};

/// Who speaks or is spoken to.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum Party {
    /// The parent process of all workers of a local run.
    Launcher,
    Member(MemberId),
}

impl From<MemberId> for Party {
    fn from(id: MemberId) -> Party {
        Party::Member(id)
    }
}

/// Orders proposals for one successor: no two proposals have the same ballot.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Ballot {
    pub round: u32,
    pub proposer: MemberId,
}

impl Message {
    /// The members that the message names, with their addresses.
    pub fn members(&self) -> &[Member] {
        match self {
            Message::Accept { view, .. }
            | Message::Commit { view }
            | Message::Promise { accepted: Some((_, view)), .. } => &view.members,
            Message::Join { member } => std::slice::from_ref(member),
            _ => &[],
        }
    }

    /// Whether the view in it, if there is one, can be one: what a member decides never fails this.
    pub fn is_sound(&self) -> bool {
        match self {
            Message::Accept { view, .. }
            | Message::Commit { view }
            | Message::Promise { accepted: Some((_, view)), .. } => view.is_sound(),
            _ => true,
        }
    }
}

/// `generation` is always that of the view whose successor is sought; `Commit` carries the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Stop working in this view, promise to heed no lower ballot, and say what you have.
    Prepare {
        generation: u32,
        ballot: Ballot,
    },
    /// The promise, and the successor that this acceptor has accepted already, if it has.
    Promise {
        generation: u32,
        ballot: Ballot,
        accepted: Option<(Ballot, Box<View>)>,
        /// Steps completed by the state that the sender holds; it completes no more in this view.
        /// `None`: it holds none.
        step: Option<u64>,
    },
    /// The ballot is too low: a higher one was promised.
    Refused {
        generation: u32,
        ballot: Ballot,
        promised: Ballot,
    },
    /// Accept this successor, unless a higher ballot was promised.
    Accept {
        generation: u32,
        ballot: Ballot,
        view: Box<View>,
    },
    Accepted {
        generation: u32,
        ballot: Ballot,
    },
    /// This view was chosen, or is the newest that the sender knows.
    Commit {
        view: Box<View>,
    },
    /// The sender takes this member for lost.
    Suspect {
        generation: u32,
        member: MemberId,
        why: String,
    },
    /// The sender wants to leave, and why. A joiner, which has no view yet, tells the launcher alone,
    /// as of generation 0.
    Leave {
        generation: u32,
        why: String,
    },
    /// A worker wants to come: from itself to any member, which tells the others.
    Join {
        member: Member,
    },
    /// To a joiner: not now, and why.
    NotAdmitted {
        why: String,
    },
    /// The sender knows no newer view than this one (`None`: no view at all), and was spoken to as
    /// if it did.
    Ask {
        generation: Option<u32>,
    },
}
