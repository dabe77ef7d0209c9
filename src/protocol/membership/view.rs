//! Views: who works together, from which step on, and which answers of a view's members decide.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Names a member for its whole life. A process that is started again is a new member with a new
/// id, since it has forgotten what it promised; so is one that was left behind and comes again.
///
/// The low half names the process, the high half counts its lives as a member.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct MemberId(pub u64);

impl MemberId {
    /// Names the process among all of its run.
    pub fn process(self) -> u32 {
        self.0 as u32
    }

    /// The id with which the same process comes again once it was left behind.
    pub fn next_life(self) -> MemberId {
        MemberId(self.0.wrapping_add(1 << 32))
    }
}

/// `worker 2`, and `worker 2.1` once it has come again.
impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker {}", self.process())?;
        match self.0 >> 32 {
            0 => Ok(()),
            life => write!(f, ".{life}"),
        }
    }
}

/// A worker and where it is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub id: MemberId,
    /// Opaque to the protocol.
    pub addresses: Vec<String>,
}

/// Who works together from a step on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// 0 for the view that a run begins with; each successor has one more.
    pub generation: u32,
    /// By rank: a member's index is its rank.
    pub members: Vec<Member>,
    /// Steps completed when the view begins: those of its most advanced member.
    pub start_step: u64,
    /// The member whose state the others copy: it has completed `start_step` steps.
    pub source: MemberId,
    /// The members whose state is another one, or who have none: they copy the source's.
    pub behind: Vec<MemberId>,
    /// Who left and who came since the view before.
    pub changes: Vec<Change>,
}

/// A member that left or came, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub id: MemberId,
    pub kind: ChangeKind,
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeKind {
    Left,
    Came,
}

impl View {
    /// The view that a run begins with: all its members hold the same state.
    ///
    /// # Panics
    /// If there is no member.
    pub fn first(members: Vec<Member>, start_step: u64) -> View {
        let source = members.first().expect("a view has members").id;
        View { generation: 0, members, start_step, source, behind: Vec::new(), changes: Vec::new() }
    }

    /// Whether its parts fit together: no member is there twice, and one of them holds the state.
    pub(super) fn is_sound(&self) -> bool {
        let distinct: BTreeSet<MemberId> = self.ids().collect();
        distinct.len() == self.members.len()
            && self.contains(self.source)
            && !self.behind.contains(&self.source)
            && self.behind.iter().all(|&id| self.contains(id))
    }

    /// A member's rank.
    pub fn rank(&self, id: MemberId) -> Option<usize> {
        self.members.iter().position(|member| member.id == id)
    }

    pub fn contains(&self, id: MemberId) -> bool {
        self.rank(id).is_some()
    }

    /// The members' ids, by rank.
    pub fn ids(&self) -> impl Iterator<Item = MemberId> {
        self.members.iter().map(|member| member.id)
    }

    /// Whether those members decide for all: more than half of the view, or exactly half of it
    /// with rank 0. Any two such sets have a member in common.
    pub fn is_quorum(&self, includes: impl Fn(MemberId) -> bool) -> bool {
        let count = self.ids().filter(|&id| includes(id)).count();
        let rank_0 = self.members.first().is_some_and(|member| includes(member.id));
        2 * count > self.members.len() || (2 * count == self.members.len() && rank_0)
    }
}

/// The sentence that is logged: what the view is and why it is.
impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.members.len() == 1 { "" } else { "s" };
        write!(
            f,
            "generation {}: {} worker{plural} from step {}",
            self.generation,
            self.members.len(),
            self.start_step
        )?;
        for (i, Change { id, kind, why }) in self.changes.iter().enumerate() {
            let verb = match kind {
                ChangeKind::Left => "left",
                ChangeKind::Came => "came",
            };
            let separator = if i == 0 { ";" } else { "," };
            write!(f, "{separator} {id} {verb} ({why})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(members: u64) -> View {
        let member = |id| Member { id: MemberId(id), addresses: Vec::new() };
        View::first((0..members).map(member).collect(), 7)
    }

    #[test]
    fn any_two_quorums_have_a_member_in_common() {
        for members in 1..=8 {
            let view = view(members);
            let quorums: Vec<u32> = (0..1 << members)
                .filter(|set| view.is_quorum(|MemberId(id)| set >> id & 1 == 1))
                .collect();
            assert!(!quorums.is_empty());
            for (i, a) in quorums.iter().enumerate() {
                assert!(quorums[i..].iter().all(|b| a & b != 0), "{members} members: {a:b}");
            }
        }
    }

    #[test]
    fn half_of_a_view_decides_only_with_rank_0() {
        let two = view(2);
        assert!(two.is_quorum(|id| id == MemberId(0)));
        assert!(!two.is_quorum(|id| id == MemberId(1)));
        let three = view(3);
        assert!(!three.is_quorum(|id| id == MemberId(0)));
        assert!(three.is_quorum(|id| id != MemberId(0)));
    }

    #[test]
    fn a_process_that_comes_again_is_another_member() {
        let again = MemberId(2).next_life();
        assert_ne!(again, MemberId(2));
        assert_eq!((again.process(), again.to_string().as_str()), (2, "worker 2.1"));
        assert_eq!(again.next_life().to_string(), "worker 2.2");
    }

    #[test]
    fn a_view_says_what_it_is_and_why() {
        let mut view = view(2);
        assert_eq!(view.to_string(), "generation 0: 2 workers from step 7");
        let change = |id, kind, why: &str| Change { id: MemberId(id), kind, why: why.into() };
        view.changes = vec![
            change(2, ChangeKind::Left, "its process ended"),
            change(3, ChangeKind::Came, "it asked to"),
        ];
        let text = "generation 0: 2 workers from step 7; worker 2 left (its process ended), \
                    worker 3 came (it asked to)";
        assert_eq!(view.to_string(), text);
    }
}
